//! The runner on CUDA held against its own plain decoding, and against the CPU's, on the device that the test binary has.

mod lossless;
mod rounds;
mod values;

use undraft_model::cuda::{CudaCache, CudaModel};
use undraft_model::generate::{Acceptance, GenerateOptions};
use undraft_model::model::CacheConfig;
use undraft_model::sampling::SamplingParams;

use crate::runner::repository;

fn load(path: &str) -> Option<CudaModel> {
    let device = crate::device()?;
    Some(CudaModel::load(&repository(path), &device, &mut |_, _| {}).unwrap())
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
