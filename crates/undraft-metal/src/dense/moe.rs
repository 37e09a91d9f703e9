//! `dense_moe_route` and `dense_moe_sum`.

use super::select::DenseKernel;
use crate::error::{MetalError, Result};
use crate::raw::{Call, EncoderHandle, Launcher, Slice, Switch, check_sizes};
use crate::select::Kernel;

/// Most experts that a token may take.
pub const MAX_TOP_K: usize = 32;

/// Parameters of [`Launcher::dense_moe_route`] and [`Launcher::dense_moe_sum`].
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct MoeParams {
    /// `[num_tokens, num_experts + 1]`: of the experts, then of the shared expert's gate.
    pub logits: Slice,
    /// `[num_tokens, top_k]` u32, rising numbers; the route writes them.
    pub experts: Slice,
    /// `[num_tokens, top_k]`; the route writes them, the sum reads them.
    pub weights: Slice,
    /// `[num_tokens, top_k, len]` of the experts; for the sum.
    pub results: Slice,
    /// `[num_tokens, len]` of the shared expert; for the sum.
    pub shared: Slice,
    /// `[num_tokens, len]`; the sum writes it.
    pub out: Slice,
    pub len: i64,
    pub num_tokens: i32,
    pub num_experts: i32,
    /// At most [`MAX_TOP_K`] and `num_experts`.
    pub top_k: i32,
    /// Whether the chosen probabilities are divided by their sum.
    pub norm_topk_prob: Switch,
}

/// As in the kernels' source.
#[repr(C)]
struct Words {
    len: i64,
    num_experts: i32,
    top_k: i32,
    norm_topk_prob: Switch,
}

impl MoeParams {
    fn buffers(&self) -> [Slice; 6] {
        [self.logits, self.experts, self.weights, self.results, self.shared, self.out]
    }
    fn words(&self) -> Words {
        Words { len: self.len, num_experts: self.num_experts, top_k: self.top_k, norm_topk_prob: self.norm_topk_prob }
    }
    fn check(&self, op: &'static str) -> Result<()> {
        check_sizes(op, 0, &[("len", self.len), ("num_tokens", self.num_tokens.into())])?;
        check_sizes(op, 1, &[("num_experts", self.num_experts.into()), ("top_k", self.top_k.into())])?;
        if self.top_k > self.num_experts || self.top_k as usize > MAX_TOP_K {
            let (arg, expected) = ("top_k", "at most 32 and `num_experts`");
            return Err(MetalError::Argument { op, arg, got: self.top_k.into(), expected });
        }
        Ok(())
    }
}

impl Launcher {
    /// Chooses the experts of every token.
    ///
    /// # Errors
    /// [`MetalError::Argument`] for more experts a token than there are or a kernel takes; [`MetalError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn dense_moe_route(&self, encoder: EncoderHandle, params: &MoeParams) -> Result<()> {
        const OP: &str = "dense_moe_route";
        params.check(OP)?;
        let call = Call {
            op: OP,
            kernel: Kernel::Dense(DenseKernel::MoeRoute),
            buffers: &params.buffers(),
            params_slot: 6,
            threadgroups: [params.num_tokens as u64, 1, 1],
            threads: [32, 1, 1],
            threadgroup_bytes: 0,
        };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch(encoder, call, &params.words()) }
    }

    /// Adds up what the experts of every token gave.
    ///
    /// # Errors
    /// As of [`Launcher::dense_moe_route`].
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn dense_moe_sum(&self, encoder: EncoderHandle, params: &MoeParams) -> Result<()> {
        const OP: &str = "dense_moe_sum";
        params.check(OP)?;
        let call = Call {
            op: OP,
            kernel: Kernel::Dense(DenseKernel::MoeSum),
            buffers: &params.buffers(),
            params_slot: 6,
            threadgroups: [(params.len as u64).div_ceil(128), params.num_tokens as u64, 1],
            threads: [128, 1, 1],
            threadgroup_bytes: 0,
        };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch(encoder, call, &params.words()) }
    }
}
