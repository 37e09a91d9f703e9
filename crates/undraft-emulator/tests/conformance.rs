//! The conformance suite on the CUDA kernels, run on the CPU.

use std::sync::Arc;

use undraft_cuda::CudaBackend;
use undraft_emulator::{EmulatedDriver, Options};

fn emulated() -> Option<CudaBackend> {
    let driver = EmulatedDriver::new(Options { max_shared: 232_448, ..Options::default() }).unwrap();
    Some(CudaBackend::with_driver(Arc::new(driver)).unwrap())
}

undraft_testing::conformance!(cuda_emulated, crate::emulated);
