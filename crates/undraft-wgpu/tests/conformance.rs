//! The conformance suite on the first adapter of this machine. Without one it is skipped, and said so; with
//! `UNDRAFT_REQUIRE=wgpu` that is a failure.

use undraft_wgpu::{WgpuBackend, WgpuError};

/// A device that is there and fails is no reason to skip.
fn first_device() -> Option<WgpuBackend> {
    match WgpuBackend::new(0) {
        Ok(backend) => Some(backend),
        Err(WgpuError::NoAdapter) => None,
        Err(e) => panic!("{e}"),
    }
}

undraft_testing::conformance!(wgpu, crate::first_device);
