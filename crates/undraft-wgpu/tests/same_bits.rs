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
    let differs = |i: &usize| got[*i].to_bits() != expected[*i].to_bits();
    assert_eq!(got.len(), expected.len(), "{what} of {}", case.label());
    if let Some(i) = (0..got.len()).find(differs) {
        panic!("element {i} of {what} is {:e}, expected {:e}: {}", got[i], expected[i], case.label());
    }
}

#[test]
fn no_bit_depends_on_who_computes_it() {
    let one = DeviceOptions { rows_at_once: Some(1), ..DeviceOptions::default() };
    let Some(reference) = common::first_device(&one) else { return };
    for (rows, without_subgroups) in [(1, true), (2, false), (4, false), (4, true)] {
        let options = DeviceOptions { rows_at_once: Some(rows), without_subgroups, ..DeviceOptions::default() };
        let Some(other) = common::first_device(&options) else { return };
        for index in [7, 17] {
            let case = DeltaRuleCase::nth(DType::Bf16, index);
            let (a, b) = (verify(&reference, &case), verify(&other, &case));
            assert_same("out", &case, &b.out, &a.out);
            assert_same("log.delta", &case, &b.log.delta, &a.log.delta);
            assert_same("log.k", &case, &b.log.k, &a.log.k);
        }
    }
}

/// The kernels as devices with a fused fma get them.
#[test]
fn kernels_for_a_fused_fma_give_the_same_bits() {
    let Some(plain) = common::first_device(&DeviceOptions::default()) else { return };
    let fast = DeviceOptions { as_fused: true, rows_at_once: Some(4), ..DeviceOptions::default() };
    let Some(fast) = common::first_device(&fast) else { return };
    // Trees of 9 and 17 nodes and a chain of 16, of whole rows; a decay a channel and 16-bit states; rows of one element.
    let cases = [(DType::F16, 4), (DType::Bf16, 25), (DType::Bf16, 54), (DType::F32, 62), (DType::F16, 1)];
    for (dtype, index) in cases {
        let case = DeltaRuleCase::nth(dtype, index);
        let (a, b) = (verify(&plain, &case), verify(&fast, &case));
        assert_same("state", &case, &b.state, &a.state);
        assert_same("out", &case, &b.out, &a.out);
        assert_same("log.delta", &case, &b.log.delta, &a.log.delta);
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
        // An adapter that takes subnormal numbers for 0 has other zeros, and nothing else.
        let keeps = wgpu.device().facts().keeps_subnormals;
        let kept = |x: f32| if keeps || x.is_normal() || !x.is_finite() { x } else { 0.0 };
        let replayed = |backend: &dyn Backend| verify(backend, &replay).state.into_iter().map(kept).collect::<Vec<_>>();
        assert_same("state", &case, &replayed(&wgpu), &replayed(&cpu));
    }
}
