//! The first adapter of this machine. A test that finds none is skipped, and says so; with `UNDRAFT_REQUIRE=wgpu` that is a
//! failure.

use undraft_wgpu::{DeviceOptions, WgpuBackend, WgpuError};

/// A device that is there and fails is no reason to skip.
pub fn first_device(options: &DeviceOptions) -> Option<WgpuBackend> {
    match WgpuBackend::with_options(0, options) {
        Ok(backend) => Some(backend),
        Err(WgpuError::NoAdapter) => {
            undraft_testing::skip_absent("wgpu");
            None
        }
        Err(e) => panic!("{e}"),
    }
}
