//! The conformance suite on every instruction set that this machine has, and on several threads; equality between them.

use std::sync::Arc;

use undraft_core::{Capture, DType};
use undraft_cpu::{CpuBackend, Isa, ThreadPool};
use undraft_testing::cases::fused_recurrent_gated_delta_rule::{DeltaRuleCase, NUM_CASES};
use undraft_testing::compare;
use undraft_testing::harness::{Memory, fused_recurrent_gated_delta_rule};

undraft_testing::conformance!(cpu_scalar, || CpuBackend::with_isa(Isa::Scalar).ok());
undraft_testing::conformance!(cpu_avx2, || CpuBackend::with_isa(Isa::Avx2).ok());
undraft_testing::conformance!(cpu_avx512, || CpuBackend::with_isa(Isa::Avx512).ok());
undraft_testing::conformance!(cpu_neon, || CpuBackend::with_isa(Isa::Neon).ok());
undraft_testing::conformance!(cpu_threads, || Some(CpuBackend::new().with_executor(Arc::new(ThreadPool::new(3)))));
#[cfg(feature = "rayon")]
undraft_testing::conformance!(cpu_rayon, || Some(
    CpuBackend::new().with_executor(Arc::new(undraft_cpu::RayonExecutor))
));

/// Every ISA runs the same lanes in the same order.
#[test]
fn every_isa_gives_the_same_bits() {
    let scalar = CpuBackend::with_isa(Isa::Scalar).expect("every machine has it");
    for isa in [Isa::Avx2, Isa::Avx512, Isa::Neon] {
        let Ok(backend) = CpuBackend::with_isa(isa) else { continue };
        for index in 0..NUM_CASES {
            for io in [DType::F32, DType::Bf16, DType::F16] {
                let case = DeltaRuleCase::nth(io, index);
                let results = [&scalar, &backend].map(|backend| {
                    let outcome =
                        fused_recurrent_gated_delta_rule::run(backend, &case, Capture::Final, Memory::nth(index));
                    outcome.expect("it runs").expect("it is supported")
                });
                for (arg, got, expected) in
                    [("out", &results[1].out, &results[0].out), ("state", &results[1].state, &results[0].state)]
                {
                    let same = compare::bits(arg, got, expected, &[("element", got.len())]);
                    assert_eq!(same, Ok(()), "{isa:?}, {}", case.label());
                }
            }
        }
    }
}
