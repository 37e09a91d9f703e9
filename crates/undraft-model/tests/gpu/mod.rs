//! The runner on a GPU held against its own plain decoding, and against the CPU's, on the device that the test binary has: its
//! `Gpu` is the kind, `device()` opens it, `is_fast()` says whether it does more than a test or two a second.

mod lossless;
mod queue;
mod rounds;
mod values;

use undraft_model::generate::{Acceptance, GenerateOptions};
use undraft_model::gpu;
use undraft_model::model::CacheConfig;
use undraft_model::sampling::SamplingParams;

use crate::runner::repository;

type Model = gpu::GpuModel<crate::Gpu>;
type Cache = gpu::GpuCache<crate::Gpu>;
type Outputs = gpu::GpuOutputs<crate::Gpu>;
type HiddenRows = gpu::HiddenRows<crate::Gpu>;
type MtpDrafter<'m> = gpu::GpuMtpDrafter<'m, crate::Gpu>;

fn load(path: &str) -> Option<Model> {
    let device = crate::device()?;
    Some(Model::load(&repository(path), &device, &mut |_, _| {}).unwrap())
}

fn cache(model: &Model, capacity: usize, max_window: usize) -> Cache {
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
