//! Trees, a decay per channel and 16-bit states in emulation: the same checks as on a GPU.

#[path = "../../undraft-cuda/tests/common/windows.rs"]
mod windows;

use std::sync::Arc;

use undraft_cuda::CudaBackend;
use undraft_emulator::{EmulatedDriver, Options};

fn emulated() -> CudaBackend {
    let driver = EmulatedDriver::new(Options::default()).unwrap();
    CudaBackend::with_driver(Arc::new(driver)).unwrap()
}

#[test]
fn nodes_equal_decoding_their_path() {
    windows::nodes_equal_decoding_their_path(&emulated());
}

#[test]
fn a_replay_rounds_as_ieee_754_says() {
    windows::a_replay_rounds_as_ieee_754_says(&emulated());
}

#[test]
fn a_convolution_tree_equals_its_paths() {
    windows::a_convolution_tree_equals_its_paths(&emulated());
}
