//! The runner on CUDA held against its own plain decoding, and against the CPU's.

mod lossless;
mod rounds;
mod values;

use std::sync::Arc;

use undraft::Device;
use undraft::cuda::CudaBackend;
use undraft_emulator::{EmulatedDriver, Options};
use undraft_model::cuda::{CudaCache, CudaModel};
use undraft_model::generate::{Acceptance, GenerateOptions};
use undraft_model::model::CacheConfig;
use undraft_model::sampling::SamplingParams;

use crate::runner::repository;

/// A device whose kernels run on this machine's CPU.
fn emulated() -> Device {
    let driver = EmulatedDriver::new(Options::default()).unwrap();
    Device::cuda_with(CudaBackend::with_driver(Arc::new(driver)).unwrap())
}

fn load(path: &str) -> CudaModel {
    CudaModel::load(&repository(path), &emulated(), &mut |_, _| {}).unwrap()
}

fn cache(model: &CudaModel, capacity: usize, max_window: usize) -> CudaCache {
    model.new_cache(CacheConfig { capacity, max_window }).unwrap()
}

fn options(sampling: &SamplingParams, window: usize, max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        sampling: sampling.clone(),
        acceptance: Acceptance::Match,
        window,
        stop_tokens: vec![],
    }
}
