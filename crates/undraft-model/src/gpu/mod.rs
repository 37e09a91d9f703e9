//! Models on a GPU: weights, states, keys and values stay there, and every part of a round runs there.
//!
//! What goes up in a round is the window's token ids; what comes down is the id of the largest logit of each of its tokens,
//! or the logits where sampling or an observer needs them. Decode, verify and prefill are the same arithmetic here: a token's
//! logits, states, keys and values are the same bits whichever of them it goes through. They are close to those of the CPU,
//! not equal to them.
//!
//! The model, its cache and its drafter are written once, over what a device does: [`Gpu`]. [`crate::cuda`], [`crate::metal`] and
//! [`crate::wgpu`] implement it, and have names for the types on it.

mod args;
mod block;
mod cache;
mod device;
mod load;
mod model;
mod mtp;
mod outputs;
mod recorder;
mod weights;
mod workspace;

pub use args::{
    ArgMax, Attention, AttentionSizes, Convolution, ExpertProducts, Experts, Ids, Kv, NormGated, Place, Recurrence,
    Rotation, Rows,
};
pub use block::GdnState;
pub use cache::{GpuCache, GpuWindow};
pub use device::{Element, Gpu, Memory};
pub use model::GpuModel;
pub use mtp::{GpuMtpDrafter, GpuMtpHead};
pub use outputs::{GpuOutputs, HiddenRows};
pub use weights::{Matrix, Norm, Parts};
pub use workspace::Header;

pub(crate) use args::expect_len;
pub(crate) use recorder::Recorder;

/// What [`Gpu::argmax`] writes for a row that has no largest element.
pub const INVALID: u32 = u32::MAX;

/// Tokens of a prompt that go through at a time.
const CHUNK: usize = 64;
