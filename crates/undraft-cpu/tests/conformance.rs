//! The conformance suite on every instruction set that this machine has, and on several threads.

use std::sync::Arc;

use undraft_cpu::{CpuBackend, Isa, ThreadPool};

undraft_testing::conformance!(cpu_scalar, || CpuBackend::with_isa(Isa::Scalar).ok());
undraft_testing::conformance!(cpu_avx2, || CpuBackend::with_isa(Isa::Avx2).ok());
undraft_testing::conformance!(cpu_avx512, || CpuBackend::with_isa(Isa::Avx512).ok());
undraft_testing::conformance!(cpu_neon, || CpuBackend::with_isa(Isa::Neon).ok());
undraft_testing::conformance!(cpu_threads, || Some(CpuBackend::new().with_executor(Arc::new(ThreadPool::new(3)))));
#[cfg(feature = "rayon")]
undraft_testing::conformance!(cpu_rayon, || Some(
    CpuBackend::new().with_executor(Arc::new(undraft_cpu::RayonExecutor))
));
