//! `dense_embed`.

use super::{THREADS, files, workgroups};
use crate::batch::Batch;
use crate::buffer::Binding;
use crate::error::Result;
use crate::kernel::{Access, KernelSource, Params};

crate::params! {
    /// Parameters of [`Batch::dense_embed`].
    #[allow(missing_docs)]
    pub struct EmbedParams {
        pub tokens_first: u32,
        pub out_first: u32,
        pub len: u32,
        pub num_tokens: u32,
        pub vocab_size: u32,
        /// A [`crate::raw::Elements`], of the table.
        pub dtype: u32,
    }
}

/// Buffers of [`Batch::dense_embed`].
#[derive(Clone, Copy, Debug)]
pub struct EmbedBuffers<'a> {
    /// `[vocab_size, len]`.
    pub table: Binding<'a>,
    /// `[num_tokens]` u32; an id beyond the table reads its last row.
    pub tokens: Binding<'a>,
    /// `[num_tokens, len]`.
    pub out: Binding<'a>,
}

const KERNEL: KernelSource<'_> = KernelSource {
    name: "dense_embed",
    files: files!("dense_embed.wgsl"),
    params: EmbedParams::WGSL,
    buffers: &[Access::Read, Access::Read, Access::ReadWrite],
    exchanges: false,
    is_large: false,
};

impl Batch<'_> {
    /// Rows of an embedding, widened.
    ///
    /// # Errors
    /// [`crate::WgpuError`] of the kernel or the dispatch.
    pub fn dense_embed(&mut self, buffers: &EmbedBuffers<'_>, params: &EmbedParams) -> Result<()> {
        let EmbedBuffers { table, tokens, out } = *buffers;
        let workgroups = workgroups("num_tokens * len", u64::from(params.num_tokens) * u64::from(params.len))?;
        let kernel = self.device().pipeline(&KERNEL, &[("THREADS", THREADS)])?;
        self.dispatch(&kernel, &[table, tokens, out], params, workgroups)
    }
}
