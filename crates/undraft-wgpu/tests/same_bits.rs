//! What must be the same bits: however lanes exchange numbers, however many rows they take, and, for the replay of a log, on the
//! CPU as well. On the first adapter of this machine; skipped, and said so, without one.

mod common;

use undraft_core::{Backend, Capture, DType};
use undraft_cpu::CpuBackend;
use undraft_testing::cases::fused_recurrent_gated_delta_rule::DeltaRuleCase;
use undraft_testing::harness::Memory;
use undraft_testing::harness::fused_recurrent_gated_delta_rule::{DeltaRuleOutcome, run};
use undraft_wgpu::DeviceOptions;

fn verify(backend: &dyn Backend, case: &DeltaRuleCase) -> DeltaRuleOutcome {
    run(backend, case, Capture::DeltaLog, Memory::PLAIN).unwrap().unwrap()
}

fn assert_same(what: &str, case: &DeltaRuleCase, got: &[f32], expected: &[f32]) {
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert!(bits(got) == bits(expected), "{what} of {}", case.label());
}

#[test]
fn no_bit_depends_on_who_computes_it() {
    let one = DeviceOptions { rows_at_once: Some(1), ..DeviceOptions::default() };
    let Some(reference) = common::first_device(&one) else { return };
    for rows in [1, 2, 4] {
        for without_subgroups in [false, true] {
            let options = DeviceOptions { rows_at_once: Some(rows), without_subgroups, ..DeviceOptions::default() };
            let Some(other) = common::first_device(&options) else { return };
            for index in [1, 7, 17, 18] {
                let case = DeltaRuleCase::nth(DType::Bf16, index);
                let (a, b) = (verify(&reference, &case), verify(&other, &case));
                assert_same("out", &case, &b.out, &a.out);
                assert_same("log.delta", &case, &b.log.delta, &a.log.delta);
                assert_same("log.k", &case, &b.log.k, &a.log.k);
            }
        }
    }
}

/// A window's log, written by the adapter, then replayed by both.
#[test]
fn a_log_replays_as_on_the_cpu() {
    let Some(wgpu) = common::first_device(&DeviceOptions::default()) else { return };
    let cpu = CpuBackend::new();
    for index in (0..30).step_by(3) {
        let case = DeltaRuleCase::nth(DType::F32, index);
        let logged = verify(&wgpu, &case);
        let mut replay = case.pick(&case.windows.within(0..0));
        replay.state = logged.state;
        replay.log = logged.log;
        replay.num_pending = case.windows.lens.iter().map(|&n| n as u32).collect();
        replay.pending_path.clear();
        let replayed = |backend: &dyn Backend| verify(backend, &replay).state;
        assert_same("state", &case, &replayed(&wgpu), &replayed(&cpu));
    }
}
