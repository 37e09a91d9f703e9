//! The conformance suite on the CUDA kernels, run on the CPU.

use std::sync::Arc;

use undraft_cuda::CudaBackend;
use undraft_emulator::{EmulatedDriver, Options};

fn emulated() -> Option<CudaBackend> {
    let driver = EmulatedDriver::new(Options { max_shared: 232_448, ..Options::default() }).unwrap();
    Some(CudaBackend::with_driver(Arc::new(driver)).unwrap())
}

undraft_testing::conformance!(cuda_emulated, crate::emulated);

/// The recurrence with kernels for heads of 96 and 192, which a GPU's program compiles.
fn compiled() -> Option<CudaBackend> {
    let backend = emulated()?;
    for head_k_dim in [96, 192] {
        assert!(backend.launcher().compile_for(head_k_dim).unwrap());
    }
    Some(backend)
}

mod compiled_for {
    undraft_testing::conformance!(
        @op cuda_emulated,
        crate::compiled,
        fused_recurrent_gated_delta_rule,
        FusedRecurrentGatedDeltaRule
    );
}
