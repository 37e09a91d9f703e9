//! The runner on Metal, its kernels run on the CPU by the emulator.
#![cfg(not(target_vendor = "apple"))]

#[path = "runner/mod.rs"]
mod runner;

mod gpu;
#[path = "gpu/schedules.rs"]
mod schedules;

use std::sync::Arc;

use undraft::Device;
use undraft::metal::MetalBackend;
use undraft_emulator::{EmulatedMetal, Options};
use undraft_model::metal::MetalGpu;

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

#[test]
fn no_order_of_threads_changes_a_result() {
    schedules::no_order_of_threads_changes_a_result(&emulated(Options::every_schedule()));
}
