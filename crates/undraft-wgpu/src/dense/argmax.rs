//! `dense_argmax`.

use super::{THREADS, files};
use crate::batch::Batch;
use crate::buffer::Binding;
use crate::error::Result;
use crate::kernel::{Access, KernelSource, Params};

/// Elements of a part, as in the kernel.
const PART: usize = 1024;

/// What is written for a row with NaN or plus infinity, or of minus infinity alone.
pub const INVALID: u32 = u32::MAX;

/// Parts of a row of `len` elements.
pub fn argmax_parts(len: usize) -> usize {
    len.div_ceil(PART).max(1)
}

crate::params! {
    /// Parameters of [`Batch::dense_argmax`].
    #[allow(missing_docs)]
    pub struct ArgmaxParams {
        pub out_first: u32,
        pub len: u32,
        pub num_rows: u32,
        /// [`argmax_parts`] of `len`.
        pub num_parts: u32,
    }
}

/// Buffers of [`Batch::dense_argmax`].
#[derive(Clone, Copy, Debug)]
pub struct ArgmaxBuffers<'a> {
    /// `[num_rows, len]`.
    pub x: Binding<'a>,
    /// `[num_rows, num_parts, 2]` u32: room.
    pub parts: Binding<'a>,
    /// `[num_rows]` u32.
    pub out: Binding<'a>,
}

const OF_PARTS: KernelSource<'_> = KernelSource {
    name: "dense_argmax_parts",
    files: files!("dense_order.wgsl", "dense_argmax_parts.wgsl"),
    params: ArgmaxParams::WGSL,
    buffers: &[Access::Read, Access::ReadWrite],
    exchanges: false,
    is_large: false,
};
const OF_ALL: KernelSource<'_> = KernelSource {
    name: "dense_argmax",
    files: files!("dense_order.wgsl", "dense_argmax.wgsl"),
    params: ArgmaxParams::WGSL,
    buffers: &[Access::Read, Access::ReadWrite],
    exchanges: false,
    is_large: false,
};

impl Batch<'_> {
    /// The index of the largest of every row, of equal ones the first; [`INVALID`] where there is none: two dispatches.
    ///
    /// # Errors
    /// [`crate::WgpuError`] of the kernels or the dispatches.
    pub fn dense_argmax(&mut self, buffers: &ArgmaxBuffers<'_>, params: &ArgmaxParams) -> Result<()> {
        let ArgmaxBuffers { x, parts, out } = *buffers;
        let threads = [("THREADS", THREADS)];
        let rows = u64::from(params.num_rows);
        let kernel = self.device().pipeline(&OF_PARTS, &threads)?;
        self.dispatch(&kernel, &[x, parts], params, rows * u64::from(params.num_parts))?;
        let kernel = self.device().pipeline(&OF_ALL, &threads)?;
        self.dispatch(&kernel, &[parts, out], params, rows)
    }
}
