//! `dense_moe_route` and `dense_moe_sum`.

use super::select::DenseKernel;
use crate::error::Result;
use crate::raw::{CUstream, DevicePtr, Grid, Launcher, Switch};
use crate::select::Kernel;

/// Most experts that a token may take.
pub const MAX_TOP_K: usize = 32;

/// Parameters of [`Launcher::dense_moe_route`] and [`Launcher::dense_moe_sum`].
#[derive(Clone, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct MoeParams {
    /// `[num_tokens, num_experts + 1]`: of the experts, then of the shared expert's gate.
    pub logits: DevicePtr,
    /// `[num_tokens, top_k]` u32, rising numbers; the route writes them.
    pub experts: DevicePtr,
    /// `[num_tokens, top_k]`; the route writes them, the sum reads them.
    pub weights: DevicePtr,
    /// `[num_tokens, top_k, len]` of the experts; for the sum.
    pub results: DevicePtr,
    /// `[num_tokens, len]` of the shared expert; for the sum.
    pub shared: DevicePtr,
    /// `[num_tokens, len]`; the sum writes it.
    pub out: DevicePtr,
    pub len: i64,
    pub num_tokens: i32,
    pub num_experts: i32,
    /// At most [`MAX_TOP_K`] and `num_experts`.
    pub top_k: i32,
    /// Whether the chosen probabilities are divided by their sum.
    pub norm_topk_prob: Switch,
}

impl Launcher {
    /// Chooses the experts of every token.
    ///
    /// # Errors
    /// [`crate::CudaError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn dense_moe_route(&self, stream: CUstream, params: &MoeParams) -> Result<()> {
        let grid = Grid { blocks: (params.num_tokens.max(0) as u64, 1), threads: 32, shared: 0 };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch("dense_moe_route", Kernel::Dense(DenseKernel::MoeRoute), grid, stream, params) }
    }

    /// Adds up what the experts of every token gave.
    ///
    /// # Errors
    /// [`crate::CudaError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn dense_moe_sum(&self, stream: CUstream, params: &MoeParams) -> Result<()> {
        let blocks = ((params.len.max(0) as u64).div_ceil(128), params.num_tokens.max(0) as u32);
        let grid = Grid { blocks, threads: 128, shared: 0 };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch("dense_moe_sum", Kernel::Dense(DenseKernel::MoeSum), grid, stream, params) }
    }
}
