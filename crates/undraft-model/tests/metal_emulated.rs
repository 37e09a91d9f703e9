//! The runner on Metal, its kernels run on the CPU by the emulator.
#![cfg(not(target_vendor = "apple"))]

#[path = "runner/mod.rs"]
mod runner;

mod gpu;

use std::sync::Arc;

use undraft::Device;
use undraft::metal::MetalBackend;
use undraft_emulator::{EmulatedMetal, Options};
use undraft_model::generate::{Acceptance, GenerateOptions, Quiet, generate};
use undraft_model::metal::{MetalGpu, MetalModel, MetalMtpDrafter};
use undraft_model::model::CacheConfig;
use undraft_model::sampling::SamplingParams;

type Gpu = MetalGpu;

/// More would take minutes here.
fn is_fast() -> bool {
    false
}

fn emulated(options: Options) -> Device {
    Device::metal_with(MetalBackend::with_driver(Arc::new(EmulatedMetal::new(options).unwrap())))
}

fn device() -> Option<Device> {
    Some(emulated(Options::default()))
}

/// The emulator does every launch in several orders, and compares.
#[test]
fn no_order_of_threads_changes_a_result() {
    let device = emulated(Options::every_schedule());
    let model = MetalModel::load(&runner::repository(runner::NEXT), &device, &mut |_, _| {}).unwrap();
    let mut cache = model.new_cache(CacheConfig { capacity: 200, max_window: 4 }).unwrap();
    let mut drafter = MetalMtpDrafter::new(model.mtp().unwrap(), 200).unwrap();
    let options = GenerateOptions {
        max_tokens: 4,
        sampling: SamplingParams::default(),
        acceptance: Acceptance::Match,
        window: 3,
        stop_tokens: vec![],
    };
    // Two segments of positions.
    let prompt: Vec<u32> = (0..130).map(|i| i * 31 % 512).collect();
    let run = generate(&model, &mut cache, &prompt, &options, Some(&mut drafter), &mut Quiet).unwrap();
    assert_eq!(run.tokens.len(), 4);
}
