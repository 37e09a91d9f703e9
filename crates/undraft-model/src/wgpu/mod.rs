//! Models on a GPU through wgpu (Vulkan, DirectX 12, Metal): [`crate::gpu`] on that. What a window of so many tokens comes to is
//! put together as a list of dispatches when one first comes, and encoded anew each time.
//!
//! ```no_run
//! use std::path::Path;
//! use undraft::Device;
//! use undraft_model::generate::{Acceptance, GenerateOptions, Quiet, generate};
//! use undraft_model::model::CacheConfig;
//! use undraft_model::sampling::SamplingParams;
//! use undraft_model::wgpu::{WgpuModel, WgpuMtpDrafter};
//!
//! let device = Device::wgpu(0)?;
//! let model = WgpuModel::load(Path::new("models/qwen3_5-tiny-mtp"), &device, &mut |_, _| {})?;
//! let mut cache = model.new_cache(CacheConfig { capacity: 1024, max_window: 4 })?;
//! let mut drafter = model.mtp().map(|head| WgpuMtpDrafter::new(head, 1024)).transpose()?;
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

pub use device::{WgpuBuffer, WgpuGpu, WgpuWeights};

use crate::gpu;

/// A hybrid language model on an adapter, ready to run.
pub type WgpuModel = gpu::GpuModel<WgpuGpu>;
/// What one sequence leaves behind on the adapter.
pub type WgpuCache = gpu::GpuCache<WgpuGpu>;
/// An undecided window.
pub type WgpuWindow<'c> = gpu::GpuWindow<'c, WgpuGpu>;
/// Outputs of the last call.
pub type WgpuOutputs = gpu::GpuOutputs<WgpuGpu>;
/// States of the trunk on the adapter.
pub type HiddenRows = gpu::HiddenRows<WgpuGpu>;
/// The multi-token prediction head on the adapter.
pub type WgpuMtpHead = gpu::GpuMtpHead<WgpuGpu>;
/// Drafts with that head.
pub type WgpuMtpDrafter<'m> = gpu::GpuMtpDrafter<'m, WgpuGpu>;
