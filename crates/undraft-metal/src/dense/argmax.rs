//! `dense_argmax`.

use super::select::DenseKernel;
use crate::error::Result;
use crate::raw::{Call, EncoderHandle, Launcher, Slice, check_sizes};
use crate::select::Kernel;

const OP: &str = "dense_argmax";
/// Threads of a threadgroup and elements of a part, as in the kernel.
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
#[allow(missing_docs)]
pub struct ArgmaxParams {
    /// `[num_rows, len]`.
    pub x: Slice,
    /// `[num_rows, num_parts, 2]` u32: room.
    pub parts: Slice,
    /// `[num_rows]` u32.
    pub out: Slice,
    /// Below 2^31.
    pub len: i64,
    pub num_rows: i32,
    /// [`argmax_parts`] of `len`.
    pub num_parts: i32,
}

/// As in the kernels' source.
#[repr(C)]
struct Words {
    len: i64,
    num_parts: i32,
}

impl Launcher {
    /// The index of the largest of every row, of equal ones the first; [`INVALID`] where there is none: two kernels.
    ///
    /// # Errors
    /// [`crate::MetalError`] of the launches.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn dense_argmax(&self, encoder: EncoderHandle, params: &ArgmaxParams) -> Result<()> {
        let &ArgmaxParams { x, parts, out, len, num_rows, num_parts } = params;
        check_sizes(OP, 0, &[("len", len), ("num_rows", num_rows.into()), ("num_parts", num_parts.into())])?;
        let buffers = [x, parts, out];
        let of_parts = Call {
            op: OP,
            kernel: Kernel::Dense(DenseKernel::ArgmaxParts),
            buffers: &buffers,
            params_slot: 3,
            threadgroups: [num_parts as u64, num_rows as u64, 1],
            threads: [THREADS, 1, 1],
            threadgroup_bytes: THREADS as usize / 32 * 2 * size_of::<u32>(),
        };
        let of_rows = Call {
            kernel: Kernel::Dense(DenseKernel::Argmax),
            threadgroups: [num_rows as u64, 1, 1],
            threads: [32, 1, 1],
            threadgroup_bytes: 0,
            ..of_parts
        };
        let words = Words { len, num_parts };
        // SAFETY: both kernels take these parameters; the caller's promise.
        unsafe {
            self.launch(encoder, of_parts, &words)?;
            self.launch(encoder, of_rows, &words)
        }
    }
}
