//! One block: a mixer, then an MLP, each behind a norm and added to its input.

use undraft::Device;

use super::gated_attention::{AttentionScratch, GatedAttention};
use super::gdn::{Gdn, GdnScratch};
use super::trace::Trace;
use crate::dense::mlp::MlpScratch;
use crate::dense::moe::MoeScratch;
use crate::dense::{AlignedBuffer, Compute, Mlp, Moe, Paths, RmsNorm};

/// `x += mixer(input_norm(x)); x += mlp(post_norm(x))`.
#[derive(Debug)]
pub(super) struct Block<M = Mixer> {
    pub(super) input_norm: RmsNorm,
    pub(super) mixer: M,
    pub(super) post_norm: RmsNorm,
    pub(super) mlp: FeedForward,
}

impl Block<Mixer> {
    /// Bytes of the weights of linear layers.
    pub(super) fn memory(&self) -> usize {
        let mixer = match &self.mixer {
            Mixer::Gdn(gdn) => gdn.memory(),
            Mixer::Attention(attention) => attention.memory(),
        };
        mixer + self.mlp.memory()
    }
}

#[derive(Debug)]
pub(super) enum Mixer {
    Gdn(Box<Gdn>),
    Attention(Box<GatedAttention>),
}

#[derive(Debug)]
pub(super) enum FeedForward {
    Dense(Box<Mlp>),
    Experts(Box<Moe>),
}

impl FeedForward {
    /// Both `[n, H]`.
    pub(super) fn forward(&self, compute: &Compute, x: &[f32], scratch: &mut FeedForwardScratch, out: &mut [f32]) {
        match self {
            Self::Dense(mlp) => mlp.forward(compute, x, &mut scratch.mlp, out),
            Self::Experts(moe) => moe.forward(compute, x, &mut scratch.moe, out),
        }
    }

    /// Bytes of the weights.
    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Dense(mlp) => mlp.memory(),
            Self::Experts(moe) => moe.memory(),
        }
    }
}

/// Scratch memory of [`FeedForward::forward`].
#[derive(Debug, Default)]
pub(super) struct FeedForwardScratch {
    mlp: MlpScratch,
    moe: MoeScratch,
}

/// Scratch memory of a pass through the blocks.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    /// The residual stream, `[n, H]`.
    pub(super) x: AlignedBuffer,
    /// What a mixer or MLP reads, `[n, H]`.
    pub(super) h: AlignedBuffer,
    /// What it gives, `[n, H]`.
    pub(super) delta: AlignedBuffer,
    /// `[n, rotary_dim]`.
    pub(super) rope: AlignedBuffer,
    pub(super) gdn: GdnScratch,
    pub(super) attention: AttentionScratch,
    pub(super) mlp: FeedForwardScratch,
}

/// What the parts of a pass share.
pub(super) struct Pass<'a> {
    pub(super) device: &'a Device,
    pub(super) compute: &'a Compute,
    /// Cosines and sines of the tokens' positions, `[n, rotary_dim]`.
    pub(super) rope: &'a [f32],
    /// The tree whose last tokens these are; none where each token follows the one before it.
    pub(super) paths: Option<&'a Paths>,
    pub(super) trace: Option<&'a mut Trace>,
    /// The layer that is being run, counted over all layers.
    pub(super) layer: usize,
}

impl Pass<'_> {
    /// Keeps a value, if this call is traced.
    pub(super) fn record(&mut self, name: &'static str, value: &[f32]) {
        if let Some(trace) = &mut self.trace {
            trace.record(self.layer, name, value);
        }
    }
}
