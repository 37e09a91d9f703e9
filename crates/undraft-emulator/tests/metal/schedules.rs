//! Results do not depend on the order of threadgroups, simdgroups and lanes, nor on what lies in memory that nobody has written.
//! Every launch runs in three ways, and the driver compares all of device memory.

use undraft_core::Capture;
use undraft_emulator::Options;
use undraft_metal::MetalBackend;
use undraft_testing::DType;
use undraft_testing::cases::causal_conv1d_update::ConvCase;
use undraft_testing::cases::commit_states::CommitCase;
use undraft_testing::cases::fused_gdn_gating::GatingCase;
use undraft_testing::cases::fused_recurrent_gated_delta_rule::{DeltaRuleCase, NUM_CASES};
use undraft_testing::cases::rms_norm_gated::NormCase;
use undraft_testing::harness::{self, Memory};

fn each(count: usize, io: DType, run: impl Fn(&MetalBackend, usize) -> Result<bool, String>) {
    let backend = crate::with(Options::every_schedule());
    for index in 0..count {
        let ran = run(&backend, index).unwrap_or_else(|e| panic!("{} case {index}: {e}", io.name()));
        assert!(ran, "{} case {index} was refused", io.name());
    }
}

#[test]
fn the_recurrence() {
    for (io, step) in [(DType::F32, 3), (DType::Bf16, 9), (DType::F16, 9)] {
        each(NUM_CASES / step, io, |backend, index| {
            let case = DeltaRuleCase::nth(io, index * step);
            // A tree needs a capture that keeps the state.
            let captures = [Capture::DeltaLog, Capture::PerToken, Capture::Final];
            let capture = captures[index % if case.windows.has_tree() { 2 } else { 3 }];
            let outcome = harness::fused_recurrent_gated_delta_rule::run(backend, &case, capture, Memory::nth(index))?;
            Ok(outcome.is_some())
        });
    }
}

#[test]
fn the_other_operations() {
    each(12, DType::F16, |backend, index| {
        let memory = Memory::nth(index);
        let conv = ConvCase::nth(DType::F16, index);
        let conv = harness::causal_conv1d_update::run(backend, &conv, Capture::DeltaLog, memory)?;
        let commit = harness::commit_states::run(backend, &CommitCase::nth(index), memory)?;
        let gating = harness::fused_gdn_gating::run(backend, &GatingCase::nth(DType::F16, index), memory)?;
        let norm = harness::rms_norm_gated::run(backend, &NormCase::nth(DType::F16, index), memory)?;
        Ok(conv.is_some() && commit.is_some() && gating.is_some() && norm.is_some())
    });
}
