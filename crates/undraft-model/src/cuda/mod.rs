//! Models on an NVIDIA GPU: weights, states, keys and values stay there, and every part of a round runs there.
//!
//! What goes up in a round is the window's token ids; what comes down is the id of the largest logit of each of its tokens,
//! or the logits where sampling or an observer needs them. Decode, verify and prefill are the same arithmetic here: a token's
//! logits, states, keys and values are the same bits whichever of them it goes through. They are close to those of the CPU,
//! not equal to them.
//!
//! ```no_run
//! use std::path::Path;
//! use undraft::Device;
//! use undraft_model::cuda::{CudaModel, CudaMtpDrafter};
//! use undraft_model::generate::{Acceptance, GenerateOptions, Quiet, generate};
//! use undraft_model::model::CacheConfig;
//! use undraft_model::sampling::SamplingParams;
//!
//! let device = Device::cuda(0)?;
//! let model = CudaModel::load(Path::new("models/qwen3_5-tiny-mtp"), &device, &mut |_, _| {})?;
//! let mut cache = model.new_cache(CacheConfig { capacity: 1024, max_window: 4 })?;
//! let mut drafter = model.mtp().map(|head| CudaMtpDrafter::new(head, 1024)).transpose()?;
//! let options = GenerateOptions {
//!     max_tokens: 100,
//!     sampling: SamplingParams::default(),
//!     acceptance: Acceptance::Match,
//!     window: 3,
//!     stop_tokens: vec![],
//! };
//! let drafter = drafter.as_mut().map(|drafter| drafter as _);
//! let text = generate(&model, &mut cache, &[5, 17, 9], &options, drafter, &mut Quiet)?;
//! # Ok::<(), undraft_model::ModelError>(())
//! ```

mod block;
mod cache;
mod load;
mod model;
mod mtp;
mod ops;
mod outputs;
mod weights;
mod workspace;

pub use cache::{CudaCache, CudaWindow};
pub use model::CudaModel;
pub use mtp::{CudaMtpDrafter, CudaMtpHead};
pub use outputs::{CudaOutputs, HiddenRows};

/// Name of the device in errors.
const DEVICE: &str = "cuda";

/// Tokens of a prompt that go through at a time.
const CHUNK: usize = 64;
