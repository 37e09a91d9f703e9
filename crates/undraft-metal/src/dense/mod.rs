//! The dense parts of a model: embedding, norms, matrix products, attention, MLP, experts, choice of the largest logit.
//!
//! Launches as in [`crate::raw`], under the same contract. Every output element is summed in an order that follows from the
//! sizes of the layer and from positions alone, so that a token's values are the same bits whichever tokens come with it.
//! Positions and token ids are read on the device. Activations are f32 and contiguous, except where a stride is given.

pub(crate) mod argmax;
pub(crate) mod attention;
pub(crate) mod embed;
pub(crate) mod linear;
pub(crate) mod moe;
pub(crate) mod rms_norm;
pub(crate) mod rotate;
pub(crate) mod select;
pub(crate) mod silu_mul;

pub use argmax::{ArgmaxParams, INVALID, argmax_parts};
pub use attention::{AttentionParams, attention_segments};
pub use embed::EmbedParams;
pub use linear::LinearParams;
pub use moe::{MAX_TOP_K, MoeParams};
pub use rms_norm::DenseNormParams;
pub use rotate::RotateParams;
pub use silu_mul::SiluMulParams;
