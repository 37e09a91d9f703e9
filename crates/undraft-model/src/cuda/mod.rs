//! Models on an NVIDIA GPU: [`crate::gpu`] on CUDA. What a window of so many tokens comes to is recorded as a CUDA graph when
//! one first comes.
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

mod device;

pub use device::CudaGpu;

use crate::gpu;

/// A hybrid language model on an NVIDIA GPU, ready to run.
pub type CudaModel = gpu::GpuModel<CudaGpu>;
/// What one sequence leaves behind on the device.
pub type CudaCache = gpu::GpuCache<CudaGpu>;
/// An undecided window.
pub type CudaWindow<'c> = gpu::GpuWindow<'c, CudaGpu>;
/// Outputs of the last call.
pub type CudaOutputs = gpu::GpuOutputs<CudaGpu>;
/// States of the trunk on the device.
pub type HiddenRows = gpu::HiddenRows<CudaGpu>;
/// The multi-token prediction head on the device.
pub type CudaMtpHead = gpu::GpuMtpHead<CudaGpu>;
/// Drafts with that head.
pub type CudaMtpDrafter<'m> = gpu::GpuMtpDrafter<'m, CudaGpu>;
