//! What several tests share, those of the emulator as well.
#![allow(dead_code)]

pub mod batches;
pub mod chunk;
pub mod driver;
pub mod windows;

use undraft_cuda::{CudaBackend, CudaError};

/// The first GPU of this machine, or a printed skip; with `UNDRAFT_REQUIRE=cuda` a skip is a failure.
pub fn first_gpu() -> Option<CudaBackend> {
    match CudaBackend::new(0) {
        Ok(backend) => Some(backend),
        // A device that is there and fails is no reason to skip.
        Err(CudaError::NoDriver { .. } | CudaError::NoDevice { .. }) => {
            undraft_testing::skip_absent("cuda");
            None
        }
        Err(e) => panic!("{e}"),
    }
}
