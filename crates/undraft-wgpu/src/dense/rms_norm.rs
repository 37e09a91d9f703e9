//! `dense_rms_norm`.

use super::files;
use crate::batch::Batch;
use crate::buffer::Binding;
use crate::error::Result;
use crate::kernel::{Access, KernelSource, Params};

/// Threads of a workgroup.
const THREADS: u32 = 128;

crate::params! {
    /// Parameters of [`Batch::dense_rms_norm`].
    #[allow(missing_docs)]
    pub struct DenseNormParams {
        pub x_first: u32,
        pub delta_first: u32,
        pub out_first: u32,
        pub x_stride: u32,
        pub delta_stride: u32,
        pub out_stride: u32,
        /// 1 or 0: whether `delta` is added to `x` first.
        pub has_delta: u32,
        pub num_rows: u32,
        pub len: u32,
        pub eps: f32,
    }
}

/// Buffers of [`Batch::dense_rms_norm`].
#[derive(Clone, Copy, Debug)]
pub struct DenseNormBuffers<'a> {
    /// `[num_rows, len]`; written where there is a delta.
    pub x: Binding<'a>,
    /// `[num_rows, len]`; without a delta any buffer that the kernel does not write.
    pub delta: Binding<'a>,
    /// `[len]`: `1 + weight` where the weight is zero-centred.
    pub factor: Binding<'a>,
    /// `[num_rows, len]`.
    pub out: Binding<'a>,
}

const KERNEL: KernelSource<'_> = KernelSource {
    name: "dense_rms_norm",
    files: files!("dense.wgsl", "dense_rms_norm.wgsl"),
    params: DenseNormParams::WGSL,
    buffers: &[Access::ReadWrite, Access::Read, Access::Read, Access::ReadWrite],
    exchanges: false,
    is_large: false,
};

impl Batch<'_> {
    /// `x += delta`, then `out = x / sqrt(mean(x^2) + eps) * factor` for every row.
    ///
    /// # Errors
    /// [`crate::WgpuError`] of the kernel or the dispatch.
    pub fn dense_rms_norm(&mut self, buffers: &DenseNormBuffers<'_>, params: &DenseNormParams) -> Result<()> {
        let DenseNormBuffers { x, delta, factor, out } = *buffers;
        let kernel = self.device().pipeline(&KERNEL, &[("THREADS", THREADS)])?;
        self.dispatch(&kernel, &[x, delta, factor, out], params, u64::from(params.num_rows))
    }
}
