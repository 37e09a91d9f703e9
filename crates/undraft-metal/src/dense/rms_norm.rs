//! `dense_rms_norm`.

use super::select::DenseKernel;
use crate::error::Result;
use crate::raw::{Call, EncoderHandle, Launcher, Slice, check_sizes, present};
use crate::select::Kernel;

const OP: &str = "dense_rms_norm";
/// Threads of a threadgroup, as in the kernel.
const THREADS: u32 = 256;

/// Parameters of [`Launcher::dense_rms_norm`].
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct DenseNormParams {
    /// `[num_rows, len]`; written where there is a `delta`.
    pub x: Slice,
    /// `[num_rows, len]`, added to `x` first; none: nothing.
    pub delta: Slice,
    /// `[len]`: `1 + weight` where the weight is zero-centred.
    pub factor: Slice,
    /// `[num_rows, len]`, not `x`.
    pub out: Slice,
    pub x_stride: i64,
    pub delta_stride: i64,
    pub out_stride: i64,
    pub num_rows: i32,
    pub len: i32,
    pub eps: f32,
}

/// As in the kernel's source.
#[repr(C)]
struct Words {
    x_stride: i64,
    delta_stride: i64,
    out_stride: i64,
    len: i32,
    eps: f32,
    present: u32,
}

impl Launcher {
    /// `x += delta`, then `out = x / sqrt(mean(x^2) + eps) * factor` for every row.
    ///
    /// # Errors
    /// [`crate::MetalError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn dense_rms_norm(&self, encoder: EncoderHandle, params: &DenseNormParams) -> Result<()> {
        check_sizes(OP, 0, &[("num_rows", params.num_rows.into())])?;
        check_sizes(OP, 1, &[("len", params.len.into())])?;
        let buffers = [params.x, params.delta, params.factor, params.out];
        let call = Call {
            op: OP,
            kernel: Kernel::Dense(DenseKernel::RmsNorm),
            buffers: &buffers,
            params_slot: 4,
            threadgroups: [params.num_rows as u64, 1, 1],
            threads: [THREADS, 1, 1],
            threadgroup_bytes: THREADS as usize / 32 * size_of::<f32>(),
        };
        let words = Words {
            x_stride: params.x_stride,
            delta_stride: params.delta_stride,
            out_stride: params.out_stride,
            len: params.len,
            eps: params.eps,
            present: present(&buffers),
        };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch(encoder, call, &words) }
    }
}
