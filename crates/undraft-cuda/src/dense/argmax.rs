//! `dense_argmax`.

use super::select::DenseKernel;
use crate::error::Result;
use crate::raw::{CUstream, DevicePtr, Grid, Launcher};
use crate::select::Kernel;

/// Threads of a block and elements of a part, as in the kernel.
const THREADS: u32 = 256;
const PART: usize = 4096;

/// What is written for a row with NaN or plus infinity, or of minus infinity alone.
pub const INVALID: u32 = u32::MAX;

/// Parts of a row of `len` elements.
pub fn argmax_parts(len: usize) -> usize {
    len.div_ceil(PART).max(1)
}

/// Parameters of [`Launcher::dense_argmax`].
#[derive(Clone, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ArgmaxParams {
    /// `[num_rows, len]`.
    pub x: DevicePtr,
    /// `[num_rows, num_parts]` u64: room.
    pub parts: DevicePtr,
    /// `[num_rows]` u32.
    pub out: DevicePtr,
    /// Below 2^32 - 1.
    pub len: i64,
    pub num_rows: i32,
    /// [`argmax_parts`] of `len`.
    pub num_parts: i32,
}

impl Launcher {
    /// The index of the largest of every row, of equal ones the first; [`INVALID`] where there is none: two kernels.
    ///
    /// # Errors
    /// [`crate::CudaError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn dense_argmax(&self, stream: CUstream, params: &ArgmaxParams) -> Result<()> {
        const OP: &str = "dense_argmax";
        let rows = params.num_rows.max(0) as u32;
        let shared = THREADS as usize / 32 * size_of::<u64>();
        let parts = Grid { blocks: (params.num_parts.max(0) as u64, rows), threads: THREADS, shared };
        let whole = Grid { blocks: (u64::from(rows), 1), threads: 32, shared: 0 };
        // SAFETY: both kernels take these parameters; the caller's promise.
        unsafe {
            self.launch(OP, Kernel::Dense(DenseKernel::ArgmaxParts), parts, stream, params)?;
            self.launch(OP, Kernel::Dense(DenseKernel::Argmax), whole, stream, params)
        }
    }
}
