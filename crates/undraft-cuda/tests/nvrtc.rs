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
                let required = std::env::var("UNDRAFT_REQUIRE").unwrap_or_default();
                assert!(!required.split(',').any(|r| r.trim() == "nvrtc"), "UNDRAFT_REQUIRE asks for nvrtc");
                eprintln!("skipped: NVRTC is not available on this machine");
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
