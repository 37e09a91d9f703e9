//! What a machine without a GPU, or without this one, is told.

use undraft_cuda::{CudaBackend, CudaError};

#[test]
fn a_device_that_is_not_there_is_an_error() {
    match CudaBackend::new(4096) {
        Err(e @ CudaError::NoDriver { .. }) => {
            assert!(e.to_string().starts_with("no NVIDIA driver found, expected one of the libraries "), "{e}");
        }
        Err(e @ CudaError::NoDevice { ordinal: 4096, .. }) => {
            assert!(e.to_string().starts_with("CUDA device 4096 was asked for, expected 0.."), "{e}");
        }
        // A driver without any device refuses to start.
        Err(e @ CudaError::Driver { call: "cuInit", .. }) => {
            assert!(e.to_string().starts_with("`cuInit` failed with "), "{e}");
        }
        other => panic!("expected an error, got {other:?}"),
    }
}
