//! One log gives the same state on the CPU back end and on the Metal kernels, bit for bit.

use undraft_core::{Backend, Capture};
use undraft_cpu::CpuBackend;
use undraft_emulator::Options;
use undraft_testing::DType;
use undraft_testing::cases::commit_states::{self, CommitCase};
use undraft_testing::cases::fused_recurrent_gated_delta_rule::{DeltaRuleCase, NUM_CASES};
use undraft_testing::harness::{Memory, commit_states as commit, fused_recurrent_gated_delta_rule as recurrent};

use crate::with;

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_commit_gives_the_same_bits_on_both() {
    let (cpu, metal) = (CpuBackend::new(), with(Options::default()));
    for index in 0..commit_states::NUM_CASES {
        let case = CommitCase::nth(index);
        let on = |backend| commit::run(backend, &case, Memory::nth(index)).unwrap().unwrap();
        assert_eq!(bits(&on(&cpu)), bits(&on(&metal)), "{}", case.label());
    }
}

/// The lazy commit: entries that are pending before a window which itself leaves the state as it is.
#[test]
fn pending_entries_give_the_same_bits_on_both() {
    let (cpu, metal) = (CpuBackend::new(), with(Options::default()));
    let mut replayed = 0;
    for index in 0..NUM_CASES {
        let case = DeltaRuleCase::nth(DType::F32, index);
        let pending: usize = (0..case.windows.num_seqs()).map(|seq| case.pending(seq)).sum();
        if pending == 0 {
            continue;
        }
        let on = |backend| recurrent::run(backend, &case, Capture::DeltaLog, Memory::nth(index)).unwrap().unwrap();
        assert_eq!(bits(&on(&cpu).state), bits(&on(&metal).state), "{}", case.label());
        replayed += 1;
    }
    assert!(replayed > NUM_CASES / 4, "{replayed} cases with pending entries");
}

/// A log that one back end has written, replayed by the other.
#[test]
fn a_log_of_one_replays_on_the_other() {
    let (cpu, metal) = (CpuBackend::new(), with(Options::default()));
    for index in (0..NUM_CASES).step_by(5) {
        let case = DeltaRuleCase::nth(DType::F32, index);
        for writer in [&cpu as &dyn Backend, &metal] {
            let written = recurrent::run(writer, &case, Capture::DeltaLog, Memory::PLAIN).unwrap().unwrap();
            let replay = CommitCase {
                dims: case.dims,
                head_map: case.head_map,
                state: written.state,
                state_dtype: case.state_dtype,
                log: written.log,
                windows: case.windows.clone(),
                num_kept: case.windows.ranges().iter().map(|tokens| tokens.len() as u32).collect(),
                path: Vec::new(),
            };
            let on = |backend| commit::run(backend, &replay, Memory::PLAIN).unwrap().unwrap();
            assert_eq!(bits(&on(&cpu)), bits(&on(&metal)), "{}", case.label());
        }
    }
}
