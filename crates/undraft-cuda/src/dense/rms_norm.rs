//! `dense_rms_norm`.

use super::select::DenseKernel;
use crate::error::Result;
use crate::raw::{CUstream, DevicePtr, Grid, Launcher};
use crate::select::Kernel;

/// Threads of a block, as in the kernel.
const THREADS: u32 = 512;

/// Parameters of [`Launcher::dense_rms_norm`].
#[derive(Clone, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct DenseNormParams {
    /// `[num_rows, len]`; written where there is a `delta`.
    pub x: DevicePtr,
    /// `[num_rows, len]`, added to `x` first; 0: nothing.
    pub delta: DevicePtr,
    /// `[len]`: `1 + weight` where the weight is zero-centred.
    pub factor: DevicePtr,
    /// `[num_rows, len]`, not `x`.
    pub out: DevicePtr,
    pub x_stride: i64,
    pub delta_stride: i64,
    pub out_stride: i64,
    pub num_rows: i32,
    pub len: i32,
    pub eps: f32,
}

impl Launcher {
    /// `x += delta`, then `out = x / sqrt(mean(x^2) + eps) * factor` for every row.
    ///
    /// # Errors
    /// [`crate::CudaError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn dense_rms_norm(&self, stream: CUstream, params: &DenseNormParams) -> Result<()> {
        let shared = THREADS as usize / 32 * size_of::<f32>();
        let grid = Grid { blocks: (params.num_rows.max(0) as u64, 1), threads: THREADS, shared };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch("dense_rms_norm", Kernel::Dense(DenseKernel::RmsNorm), grid, stream, params) }
    }
}
