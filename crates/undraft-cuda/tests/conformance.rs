//! The conformance suite on the first GPU of this machine. Without one it is skipped, and said so; with
//! `UNDRAFT_REQUIRE=cuda` that is a failure.

use undraft_cuda::{CudaBackend, CudaError};

/// A device that is there and fails is no reason to skip.
fn first_device() -> Option<CudaBackend> {
    match CudaBackend::new(0) {
        Ok(backend) => Some(backend),
        Err(CudaError::NoDriver { .. } | CudaError::NoDevice { .. }) => None,
        Err(e) => panic!("{e}"),
    }
}

undraft_testing::conformance!(cuda, crate::first_device);
