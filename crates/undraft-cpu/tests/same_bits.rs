//! Every ISA runs the same lanes in the same order: all options, all tensors, the same bits.

use undraft_core::{Backend, Capture, DType};
use undraft_cpu::{CpuBackend, Isa};
use undraft_testing::cases::causal_conv1d_update::{self, ConvCase};
use undraft_testing::cases::commit_states::{self, CommitCase};
use undraft_testing::cases::fused_gdn_gating::{self, GatingCase};
use undraft_testing::cases::fused_recurrent_gated_delta_rule::{self, DeltaRuleCase};
use undraft_testing::compare;
use undraft_testing::coverage::{Axis, Coverage};
use undraft_testing::harness::{self, Memory};

/// Named tensors that a call left.
type Results = Vec<(&'static str, Vec<f32>)>;

/// Runs on the scalar back end and on every other one of this machine.
fn compare_all(label: &str, run: impl Fn(&dyn Backend) -> Results) {
    let scalar = CpuBackend::with_isa(Isa::Scalar).expect("every machine has it");
    let expected = run(&scalar);
    for isa in [Isa::Avx2, Isa::Avx512, Isa::Neon] {
        let Ok(backend) = CpuBackend::with_isa(isa) else { continue };
        for ((arg, got), (_, expected)) in run(&backend).iter().zip(&expected) {
            let same = compare::bits(arg, got, expected, &[("element", got.len())]);
            assert_eq!(same, Ok(()), "{isa}, {label}");
        }
    }
}

const DTYPES: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

#[test]
fn the_recurrence_has_the_same_bits_on_every_isa() {
    let mut coverage = Coverage::default();
    for index in 0..fused_recurrent_gated_delta_rule::NUM_CASES {
        for (n, io) in DTYPES.into_iter().enumerate() {
            let case = DeltaRuleCase::nth(io, index);
            let captures = [Capture::DeltaLog, Capture::PerToken, Capture::Final];
            let capture = match captures[(index + n) % 3] {
                Capture::Final if case.windows.has_tree() => Capture::DeltaLog,
                capture => capture,
            };
            let memory = Memory::nth(index);
            coverage.record(case.options(capture, memory), 0.0);
            compare_all(&case.label(), |backend| {
                let run = harness::fused_recurrent_gated_delta_rule::run;
                let outcome = run(backend, &case, capture, memory).expect("it runs").expect("it is supported");
                vec![
                    ("out", outcome.out),
                    ("state", outcome.state),
                    ("log.k", outcome.log.k),
                    ("log.decay", outcome.log.decay),
                    ("log.delta", outcome.log.delta),
                    ("capture.states", outcome.captured),
                ]
            });
        }
    }
    for (axis, value) in [
        (Axis::State, "bf16"),
        (Axis::State, "f16"),
        (Axis::DecayShape, "per-channel"),
        (Axis::Windows, "tree"),
        (Axis::Windows, "mixed"),
        (Axis::Replay, "path"),
    ] {
        assert!(coverage.calls(axis, value) > 3, "{} {value}", axis.name());
    }
}

#[test]
fn the_replay_has_the_same_bits_on_every_isa() {
    for index in 0..commit_states::NUM_CASES {
        let case = CommitCase::nth(index);
        compare_all(&case.label(), |backend| {
            let state = harness::commit_states::run(backend, &case, Memory::nth(index));
            vec![("state", state.expect("it runs").expect("it is supported"))]
        });
    }
}

#[test]
fn convolutions_and_gates_have_the_same_bits_on_every_isa() {
    for io in DTYPES {
        for index in 0..causal_conv1d_update::NUM_CASES {
            let case = ConvCase::nth(io, index);
            compare_all(&case.label(), |backend| {
                let run = harness::causal_conv1d_update::run;
                let outcome = run(backend, &case, Capture::DeltaLog, Memory::nth(index));
                let outcome = outcome.expect("it runs").expect("it is supported");
                vec![("out", outcome.out), ("state", outcome.state), ("log.x", outcome.log)]
            });
            let mut prompt = case.clone();
            prompt.windows.parents.clear();
            compare_all(&prompt.label(), |backend| {
                let run = harness::causal_conv1d_fn::run;
                let [out, state] =
                    run(backend, &prompt, Memory::nth(index)).expect("it runs").expect("it is supported");
                vec![("out", out), ("state", state)]
            });
        }
        for index in 0..fused_gdn_gating::NUM_CASES {
            let case = GatingCase::nth(io, index);
            compare_all(&case.label(), |backend| {
                let run = harness::fused_gdn_gating::run;
                let [g, beta] = run(backend, &case, Memory::nth(index)).expect("it runs").expect("it is supported");
                vec![("g", g), ("beta", beta)]
            });
        }
    }
}
