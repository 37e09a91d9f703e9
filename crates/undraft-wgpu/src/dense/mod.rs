//! The dense parts of a model: embedding, norms, matrix products, attention, MLP, experts, choice of the largest logit.
//!
//! Dispatches as in [`crate::raw`], under the same contract. Every output element is summed in an order that follows from the
//! sizes of the layer and from positions alone, so that a token's values are the same bits whichever tokens come with it.
//! Positions and token ids are read on the device. Activations are f32 and contiguous, except where a stride is given.

pub(crate) mod argmax;
pub(crate) mod attention;
pub(crate) mod embed;
pub(crate) mod linear;
pub(crate) mod moe;
pub(crate) mod rms_norm;
pub(crate) mod rotate;
pub(crate) mod silu_mul;

pub use argmax::{ArgmaxBuffers, ArgmaxParams, INVALID, argmax_parts};
pub use attention::{AttentionBuffers, AttentionParams, attention_segments};
pub use embed::{EmbedBuffers, EmbedParams};
pub use linear::{LinearBuffers, LinearParams};
pub use moe::{MAX_TOP_K, MoeBuffers, MoeParams};
pub use rms_norm::{DenseNormBuffers, DenseNormParams};
pub use rotate::{RotateBuffers, RotateParams};
pub use silu_mul::{SiluMulBuffers, SiluMulParams};

/// What most kernels begin with.
macro_rules! files {
    ($($file:literal),*) => {
        &[include_str!("../../kernels/prelude.wgsl"), $(include_str!(concat!("../../kernels/", $file))),*]
    };
}
use files;

/// Threads of a workgroup where each has an element of its own.
const THREADS: u32 = 64;

/// Workgroups of [`THREADS`] for so many elements, whose numbers are 32 bits wide.
fn workgroups(what: &'static str, elements: u64) -> crate::Result<u64> {
    Ok(u64::from(crate::host::count(what, elements)?).div_ceil(u64::from(THREADS)))
}
