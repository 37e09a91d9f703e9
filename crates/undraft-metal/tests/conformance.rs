//! The conformance suite on the default GPU of an Apple system. Elsewhere it is skipped, and said so; with
//! `UNDRAFT_REQUIRE=metal` that is a failure.

use undraft_metal::{MetalBackend, MetalError};

/// A device that is there and fails is no reason to skip.
fn default_device() -> Option<MetalBackend> {
    match MetalBackend::new() {
        Ok(backend) => Some(backend),
        Err(MetalError::NotApple | MetalError::NoDevice) => None,
        Err(e) => panic!("{e}"),
    }
}

undraft_testing::conformance!(metal, crate::default_device);
