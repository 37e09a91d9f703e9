//! `dense_attention`.

use super::{THREADS, files};
use crate::batch::Batch;
use crate::buffer::Binding;
use crate::error::Result;
use crate::kernel::{Access, KernelSource, Params};

/// Positions of a segment, as in the kernels.
const SEGMENT: usize = 128;

/// Segments of a cache of `capacity` positions.
pub fn attention_segments(capacity: usize) -> usize {
    capacity.div_ceil(SEGMENT).max(1)
}

crate::params! {
    /// Parameters of [`Batch::dense_attention`].
    #[allow(missing_docs)]
    pub struct AttentionParams {
        pub query_first: u32,
        pub parts_first: u32,
        pub gate_first: u32,
        pub out_first: u32,
        pub gate_stride: u32,
        /// Element of `words` that has the positions held: token t stands at that, plus `offset`, plus t, and sees the positions up
        /// to its own.
        pub len_at: u32,
        pub offset: u32,
        pub num_tokens: u32,
        pub num_heads: u32,
        pub num_kv_heads: u32,
        pub head_dim: u32,
        /// [`attention_segments`] of the capacity.
        pub num_segments: u32,
    }
}

/// Buffers of [`Batch::dense_attention`].
#[derive(Clone, Copy, Debug)]
pub struct AttentionBuffers<'a> {
    /// `[num_tokens, num_heads, D]`, scaled.
    pub query: Binding<'a>,
    /// `[capacity, num_kv_heads, D]`; head `h` reads `h / (num_heads / num_kv_heads)`.
    pub keys: Binding<'a>,
    /// `[capacity, num_kv_heads, D]`.
    pub values: Binding<'a>,
    /// u32.
    pub words: Binding<'a>,
    /// `[num_tokens, num_heads, num_segments, D + 2]`: room for sums.
    pub parts: Binding<'a>,
    /// `[num_tokens, num_heads]`, heads `2 D` apart.
    pub gate: Binding<'a>,
    /// `[num_tokens, num_heads, D]`.
    pub out: Binding<'a>,
}

const OF_PARTS: KernelSource<'_> = KernelSource {
    name: "dense_attention_parts",
    files: files!("dense.wgsl", "dense_attention_parts.wgsl"),
    params: AttentionParams::WGSL,
    buffers: &[Access::Read, Access::Read, Access::Read, Access::Read, Access::ReadWrite],
    exchanges: false,
    is_large: false,
};
const OF_ALL: KernelSource<'_> = KernelSource {
    name: "dense_attention",
    files: files!("dense_attention.wgsl"),
    params: AttentionParams::WGSL,
    buffers: &[Access::Read, Access::Read, Access::Read, Access::ReadWrite],
    exchanges: false,
    is_large: false,
};

impl Batch<'_> {
    /// Attends, and multiplies by the sigmoid of the gate: two dispatches.
    ///
    /// # Errors
    /// [`crate::WgpuError`] of the kernels or the dispatches.
    pub fn dense_attention(&mut self, buffers: &AttentionBuffers<'_>, params: &AttentionParams) -> Result<()> {
        let AttentionBuffers { query, keys, values, words, parts, gate, out } = *buffers;
        let threads = [("THREADS", THREADS)];
        let heads = u64::from(params.num_tokens) * u64::from(params.num_heads);
        let kernel = self.device().pipeline(&OF_PARTS, &threads)?;
        let workgroups = heads * u64::from(params.num_segments);
        self.dispatch(&kernel, &[query, keys, values, words, parts], params, workgroups)?;
        let kernel = self.device().pipeline(&OF_ALL, &threads)?;
        self.dispatch(&kernel, &[parts, gate, words, out], params, heads)
    }
}
