//! `dense_rotate`.

use super::{THREADS, files};
use crate::batch::Batch;
use crate::buffer::Binding;
use crate::error::Result;
use crate::kernel::{Access, KernelSource, Params};

crate::params! {
    /// Parameters of [`Batch::dense_rotate`].
    #[allow(missing_docs)]
    pub struct RotateParams {
        /// Element of `words` that has the positions held: token t stands at that, plus `offset`, plus t, below the capacity.
        pub len_at: u32,
        pub offset: u32,
        pub num_tokens: u32,
        pub num_heads: u32,
        pub num_kv_heads: u32,
        pub head_dim: u32,
        /// Values of a head that are turned, the first ones; even.
        pub rotary_dim: u32,
        pub eps: f32,
        /// Of the queries.
        pub scale: f32,
    }
}

/// Buffers of [`Batch::dense_rotate`].
#[derive(Clone, Copy, Debug)]
pub struct RotateBuffers<'a> {
    /// A token's row: `[num_heads, 2, D]` (query, gate), `[num_kv_heads, D]` keys, `[num_kv_heads, D]` values.
    pub qkv: Binding<'a>,
    /// `[D]`: `1 + weight` of the queries' norm.
    pub q_factor: Binding<'a>,
    /// `[D]`: `1 + weight` of the keys' norm.
    pub k_factor: Binding<'a>,
    /// `[capacity, rotary_dim]`: cosines, then sines, of a position's angles.
    pub rope: Binding<'a>,
    /// u32.
    pub words: Binding<'a>,
    /// `[num_tokens, num_heads, D]`.
    pub query: Binding<'a>,
    /// `[capacity, num_kv_heads, D]`.
    pub keys: Binding<'a>,
    /// `[capacity, num_kv_heads, D]`.
    pub values: Binding<'a>,
}

const KERNEL: KernelSource<'_> = KernelSource {
    name: "dense_rotate",
    files: files!("dense.wgsl", "dense_rotate.wgsl"),
    params: RotateParams::WGSL,
    buffers: &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::ReadWrite,
        Access::ReadWrite,
        Access::ReadWrite,
    ],
    exchanges: false,
    is_large: false,
};

impl Batch<'_> {
    /// Norms and rotates queries and keys; puts keys and values into the cache.
    ///
    /// # Errors
    /// [`crate::WgpuError`] of the kernel or the dispatch.
    pub fn dense_rotate(&mut self, buffers: &RotateBuffers<'_>, params: &RotateParams) -> Result<()> {
        let RotateBuffers { qkv, q_factor, k_factor, rope, words, query, keys, values } = *buffers;
        let kernel = self.device().pipeline(&KERNEL, &[("THREADS", THREADS)])?;
        let heads = u64::from(params.num_heads) + 2 * u64::from(params.num_kv_heads);
        let buffers = [qkv, q_factor, k_factor, rope, words, query, keys, values];
        self.dispatch(&kernel, &buffers, params, u64::from(params.num_tokens) * heads)
    }
}
