//! `dense_silu_mul`.

use super::select::DenseKernel;
use crate::error::Result;
use crate::raw::{Call, EncoderHandle, Launcher, Slice, check_sizes};
use crate::select::Kernel;

const OP: &str = "dense_silu_mul";

/// Parameters of [`Launcher::dense_silu_mul`].
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct SiluMulParams {
    /// `[num_rows, 2, len]`: the gates of a row, then what they gate.
    pub gate_up: Slice,
    /// `[num_rows, len]`.
    pub out: Slice,
    pub len: i64,
    pub num_rows: i32,
}

/// As in the kernel's source.
#[repr(C)]
struct Words {
    len: i64,
}

impl Launcher {
    /// `silu(gate) * up` of every row.
    ///
    /// # Errors
    /// [`crate::MetalError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn dense_silu_mul(&self, encoder: EncoderHandle, params: &SiluMulParams) -> Result<()> {
        let &SiluMulParams { gate_up, out, len, num_rows } = params;
        check_sizes(OP, 0, &[("len", len), ("num_rows", num_rows.into())])?;
        let call = Call {
            op: OP,
            kernel: Kernel::Dense(DenseKernel::SiluMul),
            buffers: &[gate_up, out],
            params_slot: 2,
            threadgroups: [(len as u64).div_ceil(128), num_rows as u64, 1],
            threads: [128, 1, 1],
            threadgroup_bytes: 0,
        };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch(encoder, call, &Words { len }) }
    }
}
