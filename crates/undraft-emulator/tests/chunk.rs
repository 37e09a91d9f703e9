//! The chunked form over several chunks in emulation, its tensor cores' kernels among them.

#[path = "../../undraft-cuda/tests/common/chunk.rs"]
mod chunk;

use std::sync::Arc;

use undraft_cuda::CudaBackend;
use undraft_emulator::{EmulatedDriver, Options};

/// With the shared memory of sm_90.
fn emulated() -> CudaBackend {
    let driver = EmulatedDriver::new(Options { max_shared: 232_448, ..Options::default() }).unwrap();
    CudaBackend::with_driver(Arc::new(driver)).unwrap()
}

#[test]
fn long_prompts_are_near_the_recurrence() {
    chunk::long_prompts_are_near_the_recurrence(&emulated(), 330);
}
