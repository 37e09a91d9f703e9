//! `dense_silu_mul`.

use super::select::DenseKernel;
use crate::error::Result;
use crate::raw::{CUstream, DevicePtr, Grid, Launcher};
use crate::select::Kernel;

/// Parameters of [`Launcher::dense_silu_mul`].
#[derive(Clone, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct SiluMulParams {
    /// `[num_rows, 2, len]`: the gates of a row, then what they gate.
    pub gate_up: DevicePtr,
    /// `[num_rows, len]`.
    pub out: DevicePtr,
    pub len: i64,
    pub num_rows: i32,
}

impl Launcher {
    /// `silu(gate) * up` for every row.
    ///
    /// # Errors
    /// [`crate::CudaError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn dense_silu_mul(&self, stream: CUstream, params: &SiluMulParams) -> Result<()> {
        let blocks = ((params.len.max(0) as u64).div_ceil(128), params.num_rows.max(0) as u32);
        let grid = Grid { blocks, threads: 128, shared: 0 };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch("dense_silu_mul", Kernel::Dense(DenseKernel::SiluMul), grid, stream, params) }
    }
}
