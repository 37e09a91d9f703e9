//! What several tests share, those of the emulator as well.
#![allow(dead_code)]

pub mod decode;
pub mod dense;
#[path = "../../../undraft-cuda/tests/common/windows.rs"]
pub mod windows;

use undraft_metal::{MetalBackend, MetalError};

/// The default GPU of an Apple system, or a printed skip; with `UNDRAFT_REQUIRE=metal` a skip is a failure.
pub fn default_gpu() -> Option<MetalBackend> {
    match MetalBackend::new() {
        Ok(backend) => Some(backend),
        // A device that is there and fails is no reason to skip.
        Err(MetalError::NotApple | MetalError::NoDevice) => {
            undraft_testing::skip_absent("metal");
            None
        }
        Err(e) => panic!("{e}"),
    }
}
