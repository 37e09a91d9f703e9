//! `gated_delta_net_decode_f32_{1,2,4}` and `gated_delta_net_decode_capture_f32_{1,2,4}`.

use crate::driver::Slice;
use crate::error::{MetalError, Result};
use crate::raw::{Call, EncoderHandle, Launcher, check_sizes};
use crate::select::Kernel;

const OP: &str = "gated_delta_net_decode";

/// Parameters of the compatible family, all tensors f32 and dense. Value heads are tiled (`h % n_k_heads`), the state decays
/// by `exp(-g)`.
///
/// Engines that compile [`crate::sources::GATED_DELTA_NET_DECODE`] on their own dispatch these kernels as they did those of that
/// name: threadgroups `(D_v / NSG, n_v_heads, n_seqs)` of `(32, NSG, 1)` threads with `NSG = D_k / 32`.
#[derive(Clone, Debug, Default)]
pub struct DecodeParams {
    /// `[n_seqs, n_tokens, n_k_heads, D_k]`.
    pub q: Slice,
    /// `[n_seqs, n_tokens, n_k_heads, D_k]`.
    pub k: Slice,
    /// `[n_seqs, n_tokens, n_v_heads, D_v]`.
    pub v: Slice,
    /// `[n_seqs, n_tokens, n_v_heads]`.
    pub g: Slice,
    /// `[n_seqs, n_tokens, n_v_heads]`.
    pub beta: Slice,
    /// `[n_seqs, n_v_heads, D_v, D_k]`.
    pub state_in: Slice,
    /// `[n_seqs, n_tokens, n_v_heads, D_v]`.
    pub output: Slice,
    /// As `state_in`; the state after the last token.
    pub state_out: Slice,
    /// `[n_seqs, n_tokens, n_v_heads, D_v, D_k]`, the state after each token; or none: the kernels without capture run.
    pub state_capture: Slice,
    /// 32, 64 or 128.
    pub head_k_dim: u32,
    /// Any.
    pub head_v_dim: u32,
    /// Key heads.
    pub num_k_heads: u32,
    /// Value heads, a multiple of the key heads.
    pub num_v_heads: u32,
    /// Tokens of each sequence.
    pub num_tokens: u32,
    /// Sequences.
    pub num_seqs: u32,
    /// Factor of the output; 0 stands for 1.
    pub q_scale: f32,
}

impl Launcher {
    /// Decodes `num_tokens` tokens of each sequence, with the state after each where `state_capture` is given.
    ///
    /// # Errors
    /// [`MetalError::Argument`] for other head sizes or heads; [`MetalError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`]; states need no alignment beyond that of f32.
    pub unsafe fn gated_delta_net_decode(&self, encoder: EncoderHandle, params: &DecodeParams) -> Result<()> {
        let &DecodeParams { head_k_dim, head_v_dim, num_k_heads, num_v_heads, num_tokens, num_seqs, .. } = params;
        let sizes = [("head_v_dim", head_v_dim), ("num_k_heads", num_k_heads), ("num_v_heads", num_v_heads)];
        check_sizes(OP, 1, &sizes.map(|(name, size)| (name, size.into())))?;
        if !matches!(head_k_dim, 32 | 64 | 128) {
            let (arg, got) = ("head_k_dim", head_k_dim.into());
            return Err(MetalError::Argument { op: OP, arg, got, expected: "32, 64 or 128" });
        }
        if !num_v_heads.is_multiple_of(num_k_heads) {
            let (arg, got) = ("num_v_heads", num_v_heads.into());
            return Err(MetalError::Argument { op: OP, arg, got, expected: "a multiple of `num_k_heads`" });
        }
        let (nsg, capture) = (head_k_dim / 32, !params.state_capture.is_none());
        let buffers = [
            params.q,
            params.k,
            params.v,
            params.g,
            params.beta,
            params.state_in,
            params.output,
            params.state_out,
            // The slot of the parameters.
            Slice::NONE,
            params.state_capture,
        ];
        let call = Call {
            op: OP,
            kernel: Kernel::Decode { nsg, capture },
            buffers: &buffers,
            params_slot: 8,
            threadgroups: [head_v_dim.div_ceil(nsg).into(), num_v_heads.into(), num_seqs.into()],
            threads: [32, nsg, 1],
            threadgroup_bytes: 0,
        };
        let scale = params.q_scale.to_bits();
        let words = [head_k_dim, head_v_dim, num_k_heads, num_v_heads, num_tokens, num_seqs, 0, 0, scale];
        // SAFETY: the kernel takes these words; the caller's promise.
        unsafe { self.launch(encoder, call, &words) }
    }
}
