//! `dense_linear`.

use super::select::{self, DenseKernel};
use crate::error::{CudaError, Result};
use crate::raw::{CUstream, DevicePtr, Elements, Grid, Launcher};
use crate::select::Kernel;

/// Warps and outputs of a block, as in the kernel.
const WARPS: usize = 4;
const OUTPUTS: usize = 4;

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
    /// At most 262,140.
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
        let tile = select::linear_rows(rows, params.experts != 0);
        // Along the outputs a grid has at most 65,535 blocks.
        let blocks = (rows.div_ceil(tile) as u64, u32::try_from(outputs.div_ceil(OUTPUTS)).unwrap_or(u32::MAX));
        let most = 0xffff;
        if blocks.1 > most {
            let (op, what) = ("dense_linear", "blocks of outputs");
            return Err(CudaError::Launch { op, what, got: blocks.1.into(), most: most.into() });
        }
        let shared = WARPS * OUTPUTS * tile * size_of::<f32>();
        let grid = Grid { blocks, threads: WARPS as u32 * 32, shared };
        let kernel = Kernel::Dense(DenseKernel::Linear { weight: weight.into(), rows: tile });
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch("dense_linear", kernel, grid, stream, params) }
    }
}
