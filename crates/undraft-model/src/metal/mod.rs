//! Models on the GPU of an Apple system: [`crate::gpu`] on Metal. What a window of so many tokens comes to is kept as a list of
//! launches when one first comes, and encoded anew each time.
//!
//! Executed in emulation and type-checked, not yet run on Apple hardware.
//!
//! ```no_run
//! use std::path::Path;
//! use undraft::Device;
//! use undraft_model::generate::{Acceptance, GenerateOptions, Quiet, generate};
//! use undraft_model::metal::{MetalModel, MetalMtpDrafter};
//! use undraft_model::model::CacheConfig;
//! use undraft_model::sampling::SamplingParams;
//!
//! let device = Device::metal()?;
//! let model = MetalModel::load(Path::new("models/qwen3_5-tiny-mtp"), &device, &mut |_, _| {})?;
//! let mut cache = model.new_cache(CacheConfig { capacity: 1024, max_window: 4 })?;
//! let mut drafter = model.mtp().map(|head| MetalMtpDrafter::new(head, 1024)).transpose()?;
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

mod device;
mod queue;

pub use device::{MetalBuffer, MetalGpu, MetalWeights};
pub use queue::Recorded;

use crate::gpu;

/// A hybrid language model on an Apple GPU, ready to run.
pub type MetalModel = gpu::GpuModel<MetalGpu>;
/// What one sequence leaves behind on the device.
pub type MetalCache = gpu::GpuCache<MetalGpu>;
/// An undecided window.
pub type MetalWindow<'c> = gpu::GpuWindow<'c, MetalGpu>;
/// Outputs of the last call.
pub type MetalOutputs = gpu::GpuOutputs<MetalGpu>;
/// States of the trunk on the device.
pub type HiddenRows = gpu::HiddenRows<MetalGpu>;
/// The multi-token prediction head on the device.
pub type MetalMtpHead = gpu::GpuMtpHead<MetalGpu>;
/// Drafts with that head.
pub type MetalMtpDrafter<'m> = gpu::GpuMtpDrafter<'m, MetalGpu>;
