//! A generation on an emulator that does every launch in several orders, and compares.

use undraft::Device;
use undraft_model::generate::{Acceptance, GenerateOptions, Quiet, generate};
use undraft_model::gpu::{GpuModel, GpuMtpDrafter};
use undraft_model::model::CacheConfig;
use undraft_model::sampling::SamplingParams;

use crate::runner::{NEXT, repository};

/// With drafts of the MTP head, behind a prompt of two segments of positions.
pub fn no_order_of_threads_changes_a_result(device: &Device) {
    let model = GpuModel::<crate::Gpu>::load(&repository(NEXT), device, &mut |_, _| {}).unwrap();
    let mut cache = model.new_cache(CacheConfig { capacity: 200, max_window: 4 }).unwrap();
    let mut drafter = GpuMtpDrafter::new(model.mtp().unwrap(), 200).unwrap();
    let options = GenerateOptions {
        max_tokens: 4,
        sampling: SamplingParams::default(),
        acceptance: Acceptance::Match,
        window: 3,
        stop_tokens: vec![],
    };
    let prompt: Vec<u32> = (0..130).map(|i| i * 31 % 512).collect();
    let run = generate(&model, &mut cache, &prompt, &options, Some(&mut drafter), &mut Quiet).unwrap();
    assert_eq!(run.tokens.len(), 4);
}
