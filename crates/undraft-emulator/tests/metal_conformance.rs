//! The conformance suite on the Metal kernels, run on the CPU.

use std::sync::Arc;

use undraft_emulator::{EmulatedMetal, Options};
use undraft_metal::MetalBackend;

fn emulated() -> Option<MetalBackend> {
    Some(MetalBackend::with_driver(Arc::new(EmulatedMetal::new(Options::default()).unwrap())))
}

undraft_testing::conformance!(metal_emulated, crate::emulated);
