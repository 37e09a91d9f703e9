//! What a model folder holds, by the part that it is of.

use undraft::GdnDims;

use crate::weights::WeightData;

/// A matrix `[out_features, in_features]` as stored.
#[derive(Debug)]
pub(crate) struct Matrix {
    pub(crate) data: WeightData,
    pub(crate) out_features: usize,
    pub(crate) in_features: usize,
}

/// `x += mixer(input_norm(x)); x += mlp(post_norm(x))`. Weights of norms are as stored: zero-centred.
#[derive(Debug)]
pub(crate) struct BlockParts<M = MixerParts> {
    /// `[H]`.
    pub(crate) input_norm: Vec<f32>,
    pub(crate) mixer: M,
    /// `[H]`.
    pub(crate) post_norm: Vec<f32>,
    pub(crate) mlp: FeedForwardParts,
}

#[derive(Debug)]
pub(crate) enum MixerParts {
    Gdn(Box<GdnParts>),
    Attention(Box<AttentionParts>),
}

/// A Gated DeltaNet mixer; value heads in order.
#[derive(Debug)]
pub(crate) struct GdnParts {
    pub(crate) dims: GdnDims,
    /// `[C, 1, W]`.
    pub(crate) conv_weight: Vec<f32>,
    /// `[HV]`.
    pub(crate) a_log: Vec<f32>,
    /// `[HV]`.
    pub(crate) dt_bias: Vec<f32>,
    /// `[V]`, plain.
    pub(crate) norm_weight: Vec<f32>,
    /// `[C, H]`: all q, all k, all v.
    pub(crate) in_proj_qkv: Matrix,
    /// `[HV * V, H]`.
    pub(crate) in_proj_z: Matrix,
    /// `[HV, H]`.
    pub(crate) in_proj_b: Matrix,
    /// `[HV, H]`.
    pub(crate) in_proj_a: Matrix,
    /// `[H, HV * V]`.
    pub(crate) out_proj: Matrix,
}

/// A gated full-attention mixer.
#[derive(Debug)]
pub(crate) struct AttentionParts {
    /// `[num_heads, 2, head_dim]` rows: of each head the query, then the gate.
    pub(crate) q_proj: Matrix,
    /// `[num_kv_heads * head_dim, H]`.
    pub(crate) k_proj: Matrix,
    /// `[num_kv_heads * head_dim, H]`.
    pub(crate) v_proj: Matrix,
    /// `[H, num_heads * head_dim]`.
    pub(crate) o_proj: Matrix,
    /// `[head_dim]`, zero-centred.
    pub(crate) q_norm: Vec<f32>,
    /// `[head_dim]`, zero-centred.
    pub(crate) k_norm: Vec<f32>,
}

#[derive(Debug)]
pub(crate) enum FeedForwardParts {
    Dense(MlpParts),
    Experts(Box<MoeParts>),
}

/// `down(silu(gate x) * up x)`.
#[derive(Debug)]
pub(crate) struct MlpParts {
    /// `[inner, H]`.
    pub(crate) gate: Matrix,
    /// `[inner, H]`.
    pub(crate) up: Matrix,
    /// `[H, inner]`.
    pub(crate) down: Matrix,
}

#[derive(Debug)]
pub(crate) struct MoeParts {
    /// `[num_experts, H]`.
    pub(crate) router: Matrix,
    pub(crate) experts: Vec<MlpParts>,
    pub(crate) shared_expert: MlpParts,
    /// `[1, H]`.
    pub(crate) shared_expert_gate: Matrix,
}

/// The head that drafts the token after the next.
#[derive(Debug)]
pub(crate) struct MtpParts {
    /// `[H]`, zero-centred.
    pub(crate) norm_embedding: Vec<f32>,
    /// `[H]`, zero-centred.
    pub(crate) norm_hidden: Vec<f32>,
    /// `[H, 2 H]`: columns of the embedding, then of the hidden state.
    pub(crate) fc: Matrix,
    pub(crate) block: BlockParts<AttentionParts>,
    /// `[H]`, zero-centred.
    pub(crate) norm: Vec<f32>,
}
