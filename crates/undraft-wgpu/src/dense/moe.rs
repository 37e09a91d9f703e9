//! `dense_moe_route` and `dense_moe_sum`.

use super::{THREADS, files, workgroups};
use crate::batch::Batch;
use crate::buffer::Binding;
use crate::error::Result;
use crate::kernel::{Access, KernelSource, Params};

/// Most experts that a token may take.
pub const MAX_TOP_K: usize = THREADS as usize;

crate::params! {
    /// Parameters of [`Batch::dense_moe_route`] and [`Batch::dense_moe_sum`].
    #[allow(missing_docs)]
    pub struct MoeParams {
        pub len: u32,
        pub num_tokens: u32,
        pub num_experts: u32,
        /// At most [`MAX_TOP_K`] and `num_experts`.
        pub top_k: u32,
        /// 1 or 0: whether the chosen probabilities are divided by their sum.
        pub norm_topk_prob: u32,
    }
}

/// Buffers of [`Batch::dense_moe_route`] and [`Batch::dense_moe_sum`].
#[derive(Clone, Copy, Debug)]
pub struct MoeBuffers<'a> {
    /// `[num_tokens, num_experts + 1]`: of the experts, then of the shared expert's gate.
    pub logits: Binding<'a>,
    /// `[num_tokens, top_k]` u32, rising numbers; the route writes them.
    pub experts: Binding<'a>,
    /// `[num_tokens, top_k]`; the route writes them, the sum reads them.
    pub weights: Binding<'a>,
    /// `[num_tokens, top_k, len]` of the experts; for the sum.
    pub results: Binding<'a>,
    /// `[num_tokens, len]` of the shared expert; for the sum.
    pub shared: Binding<'a>,
    /// `[num_tokens, len]`; the sum writes it.
    pub out: Binding<'a>,
}

const ROUTE: KernelSource<'_> = KernelSource {
    name: "dense_moe_route",
    files: files!("dense.wgsl", "dense_order.wgsl", "dense_moe_route.wgsl"),
    params: MoeParams::WGSL,
    buffers: &[Access::Read, Access::ReadWrite, Access::ReadWrite],
    exchanges: false,
    is_large: false,
};
const SUM: KernelSource<'_> = KernelSource {
    name: "dense_moe_sum",
    files: files!("dense_moe_sum.wgsl"),
    params: MoeParams::WGSL,
    buffers: &[Access::Read, Access::Read, Access::Read, Access::Read, Access::ReadWrite],
    exchanges: false,
    is_large: false,
};

impl Batch<'_> {
    /// Chooses the experts of every token.
    ///
    /// # Errors
    /// [`crate::WgpuError`] of the kernel or the dispatch.
    pub fn dense_moe_route(&mut self, buffers: &MoeBuffers<'_>, params: &MoeParams) -> Result<()> {
        let MoeBuffers { logits, experts, weights, .. } = *buffers;
        let kernel = self.device().pipeline(&ROUTE, &[("THREADS", THREADS)])?;
        self.dispatch(&kernel, &[logits, experts, weights], params, u64::from(params.num_tokens))
    }

    /// Adds up what the experts of every token gave.
    ///
    /// # Errors
    /// [`crate::WgpuError`] of the kernel or the dispatch.
    pub fn dense_moe_sum(&mut self, buffers: &MoeBuffers<'_>, params: &MoeParams) -> Result<()> {
        let MoeBuffers { logits, weights, results, shared, out, .. } = *buffers;
        let workgroups = workgroups("num_tokens * len", u64::from(params.num_tokens) * u64::from(params.len))?;
        let kernel = self.device().pipeline(&SUM, &[("THREADS", THREADS)])?;
        self.dispatch(&kernel, &[logits, weights, results, shared, out], params, workgroups)
    }
}
