//! The runner on CUDA, its kernels run on the CPU by the emulator.
#![cfg(not(target_vendor = "apple"))]

#[path = "runner/mod.rs"]
mod runner;

mod gpu;
#[path = "gpu/schedules.rs"]
mod schedules;

use std::sync::Arc;

use undraft::Device;
use undraft::cuda::CudaBackend;
use undraft_emulator::{EmulatedDriver, Options};
use undraft_model::cuda::CudaGpu;

type Gpu = CudaGpu;

/// More would take minutes here.
fn is_fast() -> bool {
    false
}

fn emulated(options: Options) -> Device {
    let driver = EmulatedDriver::new(options).unwrap();
    Device::cuda_with(CudaBackend::with_driver(Arc::new(driver)).unwrap())
}

fn device() -> Option<Device> {
    Some(emulated(Options::default()))
}

#[test]
fn no_order_of_threads_changes_a_result() {
    schedules::no_order_of_threads_changes_a_result(&emulated(Options::every_schedule()));
}
