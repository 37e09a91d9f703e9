//! `dense_linear`.

use super::select::{self, DenseKernel};
use crate::error::Result;
use crate::raw::{CUstream, DevicePtr, Elements, Grid, Launcher};
use crate::select::Kernel;

/// Warps of a block, as in the kernel.
const WARPS: usize = 4;

/// Parameters of [`Launcher::dense_linear`].
#[derive(Clone, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct LinearParams {
    /// `[out_features, in_features]`, 16-byte aligned; one such matrix for each expert.
    pub weight: DevicePtr,
    /// `[num_rows / rows_per_x, in_features]`, 16-byte aligned.
    pub x: DevicePtr,
    /// `[num_rows]` u32: the expert that a row takes; 0: all take the one matrix.
    pub experts: DevicePtr,
    /// `[num_rows, out_features]`.
    pub y: DevicePtr,
    /// A multiple of 4.
    pub x_stride: i64,
    pub y_stride: i64,
    /// Elements from one expert's matrix to the next; a multiple of 4.
    pub expert_stride: i64,
    pub num_rows: i32,
    /// A multiple of 4.
    pub in_features: i32,
    pub out_features: i32,
    /// Rows of `y` that read the same row of `x`, one behind the other; at least 1.
    pub rows_per_x: i32,
}

impl Launcher {
    /// `y = W x` for every row.
    ///
    /// # Errors
    /// [`crate::CudaError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn dense_linear(&self, stream: CUstream, params: &LinearParams, weight: Elements) -> Result<()> {
        let (rows, outputs) = (params.num_rows.max(0) as usize, params.out_features.max(0) as usize);
        let num_sms = self.device.attributes().num_sms;
        let tile = select::linear(rows, outputs, params.experts != 0, num_sms);
        let blocks = (rows.div_ceil(tile.rows) as u64, outputs.div_ceil(WARPS * tile.outputs) as u32);
        let grid = Grid { blocks, threads: WARPS as u32 * 32, shared: 0 };
        let kernel = Kernel::Dense(DenseKernel::Linear { weight: weight.into(), tile });
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch("dense_linear", kernel, grid, stream, params) }
    }
}
