//! Results do not depend on the order of blocks, warps and lanes, on when asynchronous copies arrive, nor on what lies in
//! memory that nobody has written. Every launch runs in three ways, and the driver compares all of device memory.

use std::sync::Arc;

use undraft_core::{Backend, Capture, Op};
use undraft_cuda::CudaBackend;
use undraft_emulator::{EmulatedDriver, Options};
use undraft_testing::DType;
use undraft_testing::cases::causal_conv1d_update::ConvCase;
use undraft_testing::cases::commit_states::CommitCase;
use undraft_testing::cases::fused_gdn_gating::GatingCase;
use undraft_testing::cases::fused_recurrent_gated_delta_rule::{DeltaRuleCase, NUM_CASES};
use undraft_testing::cases::rms_norm_gated::NormCase;
use undraft_testing::harness::{self, Memory};

/// Few multiprocessors, where blocks have several units of work, and as many as a GPU has.
fn backends() -> [CudaBackend; 2] {
    [1, 132].map(|num_sms| {
        let options = Options { num_sms, max_shared: 232_448, ..Options::every_schedule() };
        CudaBackend::with_driver(Arc::new(EmulatedDriver::new(options).unwrap())).unwrap()
    })
}

fn each(count: usize, io: DType, run: impl Fn(&CudaBackend, usize) -> Result<bool, String>) {
    let mut ran = 0;
    for index in 0..count {
        for backend in &backends() {
            ran += usize::from(run(backend, index).unwrap_or_else(|e| panic!("{} case {index}: {e}", io.name())));
        }
    }
    assert!(ran > count, "{ran} calls");
}

#[test]
fn the_recurrence() {
    for (io, step) in [(DType::F32, 2), (DType::Bf16, 5), (DType::F16, 5)] {
        each(NUM_CASES / step, io, |backend, index| {
            let case = DeltaRuleCase::nth(io, index * step);
            let capture = [Capture::DeltaLog, Capture::PerToken, Capture::Final][index % 3];
            // A tree needs a capture that keeps the state.
            let capture =
                if case.windows.has_tree() { [Capture::DeltaLog, Capture::PerToken][index % 2] } else { capture };
            let outcome = harness::fused_recurrent_gated_delta_rule::run(backend, &case, capture, Memory::nth(index))?;
            Ok(outcome.is_some())
        });
    }
}

#[test]
fn the_convolution() {
    each(30, DType::Bf16, |backend, index| {
        let case = ConvCase::nth(DType::Bf16, index);
        let outcome = harness::causal_conv1d_update::run(backend, &case, Capture::DeltaLog, Memory::nth(index))?;
        Ok(outcome.is_some())
    });
}

#[test]
fn the_other_operations() {
    each(12, DType::F16, |backend, index| {
        let memory = Memory::nth(index);
        let commit = harness::commit_states::run(backend, &CommitCase::nth(index), memory)?;
        let gating = harness::fused_gdn_gating::run(backend, &GatingCase::nth(DType::F16, index), memory)?;
        let norm = harness::rms_norm_gated::run(backend, &NormCase::nth(DType::F16, index), memory)?;
        Ok(commit.is_some() && gating.is_some() && norm.is_some())
    });
}

/// Where the back end has it.
#[test]
fn the_chunked_form() {
    if !backends()[0].caps().ops.contains(&Op::ChunkGatedDeltaRule) {
        return;
    }
    for io in [DType::F32, DType::Bf16, DType::F16] {
        each(5, io, |backend, index| {
            let case = DeltaRuleCase::nth_prompt(io, index * 3 + 1);
            let every = [None, Some(64), Some(7)][index % 3];
            let outcome = harness::chunk_gated_delta_rule::run(backend, &case, every, Memory::nth(index))?;
            Ok(outcome.is_some())
        });
    }
}
