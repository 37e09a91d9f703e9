//! The recurrence with kernels compiled by NVRTC, on the first GPU. Without a GPU or NVRTC it is skipped, and said so; with
//! `UNDRAFT_REQUIRE=cuda` or `nvrtc` that is a failure.

mod common;

use undraft_cuda::{CudaBackend, CudaError};

fn compiled() -> Option<CudaBackend> {
    let backend = common::first_gpu()?;
    for head_k_dim in [32, 96, 160, 192, 224] {
        match backend.launcher().compile_for(head_k_dim) {
            Ok(compiled) => assert!(compiled, "{head_k_dim}"),
            Err(CudaError::NoCompiler) => {
                undraft_testing::skip_absent("nvrtc");
                return None;
            }
            Err(e) => panic!("{e}"),
        }
    }
    assert_eq!(backend.launcher().compile_for(128), Ok(false));
    assert_eq!(backend.launcher().compile_for(100), Ok(false));
    Some(backend)
}

undraft_testing::conformance!(@op cuda, crate::compiled, fused_recurrent_gated_delta_rule, FusedRecurrentGatedDeltaRule);
