//! Every head size, ratio of heads and number of channels; batches beyond 65,535 heads.

use undraft_core::{Capture, ConvDims, DType, DecayShape, GdnDims, Op, QkNorm, Rounding};
use undraft_cpu::{CpuBackend, Isa};
use undraft_testing::cases::causal_conv1d_update::ConvCase;
use undraft_testing::cases::commit_states::CommitCase;
use undraft_testing::cases::fused_recurrent_gated_delta_rule::DeltaRuleCase;
use undraft_testing::cases::{Topology, Windows};
use undraft_testing::harness::{self, Memory};
use undraft_testing::tolerance::{Tensor, tolerance};
use undraft_testing::{Rng, compare};

fn isas() -> Vec<CpuBackend> {
    Isa::ALL.into_iter().filter_map(|isa| CpuBackend::with_isa(isa).ok()).collect()
}

/// A case of these sizes whose options follow from `index`: state dtypes, decay shapes, trees, all forms of the inputs.
fn delta_rule(h: usize, hv: usize, k: usize, v: usize, index: usize) -> DeltaRuleCase {
    let mut rng = Rng::new((k * 1000 + v) as u64);
    let shape = if index % 2 == 1 { DecayShape::PerChannel } else { DecayShape::PerHead };
    let dims = GdnDims::new(h, hv, k, v).expect("allowed sizes").with_decay_shape(shape);
    let mut windows = Windows::chains(vec![3, 1, 2], vec![2, -1, 0], 3);
    if index % 4 > 1 {
        windows.parents = Topology::Star.parents(&mut rng, 3);
        windows.parents.extend([-1, -1, 0]);
    }
    let io = [DType::F32, DType::Bf16, DType::F16][index % 3];
    let state = [DType::F32, DType::Bf16, DType::F32, DType::F16, DType::F32][index % 5];
    let mut case = DeltaRuleCase::draw(&mut rng, io, index, dims, windows).with_state_dtype(state);
    if let QkNorm::L2Norm { eps } = &mut case.qk_norm {
        // A larger one makes outputs so small that f16 has few bits left for them.
        *eps = 1e-6;
    }
    case
}

/// Outputs, log and the state after a commit of all but the last token, against the oracle.
fn check(backend: &CpuBackend, case: &DeltaRuleCase, index: usize) -> [Vec<f32>; 3] {
    let outcome = harness::fused_recurrent_gated_delta_rule::run(backend, case, Capture::DeltaLog, Memory::nth(index));
    let outcome = outcome.unwrap_or_else(|e| panic!("{}: {e}", case.label())).expect("it is supported");
    let oracle = case.oracle().solve(true);
    let near = |arg: &str, tensor, got: &[f32], expected: &[f64]| {
        let bound = tolerance(Op::FusedRecurrentGatedDeltaRule, tensor, case.io, case.rounding == Rounding::Io)
            .with_state(case.state_dtype, got.len());
        if let Err(e) = compare::values(arg, got, expected, &[("element", got.len())], bound) {
            panic!("{}: {e}", case.label());
        }
    };
    near("out", Tensor::Out, &outcome.out, &oracle.out);
    let windows = &case.windows;
    let mut path = vec![u32::MAX; windows.num_seqs() * case.log.max_tokens];
    let mut num_kept = vec![u32::MAX; windows.num_seqs()];
    let mut expected = oracle.state_before.clone();
    let len = case.dims.state_len();
    for (seq, slot, tokens) in windows.live() {
        let node = tokens.len() - 1;
        let entries = windows.path(seq, node);
        num_kept[seq] = entries.len() as u32;
        for (to, &entry) in path[seq * case.log.max_tokens..].iter_mut().zip(&entries) {
            *to = entry as u32;
        }
        expected[slot * len..][..len].copy_from_slice(&oracle.states[tokens.start + node]);
    }
    let commit = CommitCase {
        dims: case.dims,
        head_map: case.head_map,
        state: outcome.state,
        state_dtype: case.state_dtype,
        log: outcome.log.clone(),
        windows: windows.clone(),
        num_kept,
        path,
    };
    let state = harness::commit_states::run(backend, &commit, Memory::nth(index + 1));
    let state = state.unwrap_or_else(|e| panic!("{}: {e}", case.label())).expect("it is supported");
    near("state", Tensor::State, &state, &expected);
    [outcome.out, outcome.log.delta, state]
}

fn check_isas(case: &DeltaRuleCase, index: usize, all: bool) {
    let backends = if all { isas() } else { vec![CpuBackend::new()] };
    let results: Vec<[Vec<f32>; 3]> = backends.iter().map(|backend| check(backend, case, index)).collect();
    for (backend, result) in backends.iter().zip(&results) {
        for (got, expected) in result.iter().zip(&results[0]) {
            let same = compare::bits("a result", got, expected, &[("element", got.len())]);
            assert_eq!(same, Ok(()), "{}, {}", backend.isa(), case.label());
        }
    }
}

/// On either side of a whole number of vectors, and a few others.
fn on_all_isas(size: usize) -> bool {
    matches!(size % 16, 0 | 1 | 15) || size.is_multiple_of(13)
}

#[test]
fn every_key_size() {
    for k in 1..=256 {
        check_isas(&delta_rule(1, 2, k, 1 + k % 6, k), k, on_all_isas(k));
    }
}

#[test]
fn every_value_size() {
    for v in 1..=256 {
        check_isas(&delta_rule(1, 1, [3, 16, 33, 5][v % 4], v, v), v, on_all_isas(v));
    }
}

#[test]
fn every_ratio_of_heads() {
    for h in 1..=4 {
        for ratio in 1..=8 {
            let index = h * 8 + ratio;
            check_isas(&delta_rule(h, h * ratio, 17, 6, index), index, true);
        }
    }
}

#[test]
fn every_number_of_channels() {
    let backends = isas();
    for channels in (1..=260).chain([1023, 1024, 1025, 2048, 2051]) {
        let mut rng = Rng::new(channels as u64);
        let dims = ConvDims::new(channels, 2 + channels % 7).expect("allowed sizes");
        let mut case = ConvCase::nth([DType::F32, DType::Bf16, DType::F16][channels % 3], 2);
        let mut normals = |n: usize| (0..n).map(|_| case.io.round(rng.normal() as f32)).collect::<Vec<f32>>();
        let windows = Windows { parents: vec![-1, 0, 0, 1, -1, -1], ..Windows::chains(vec![4, 2], vec![0, 2], 3) };
        case.x = normals(6 * channels);
        case.state = normals(3 * dims.state_len());
        case.log = vec![0.0; 3 * 5 * channels];
        case.weight = normals(dims.width() * channels);
        case.bias = (channels % 2 == 0).then(|| normals(channels));
        (case.dims, case.windows, case.max_tokens) = (dims, windows, 5);
        let oracle = case.oracle().solve();
        let picked = if on_all_isas(channels) { &backends[..] } else { &backends[backends.len() - 1..] };
        for backend in picked {
            let outcome = harness::causal_conv1d_update::run(backend, &case, Capture::DeltaLog, Memory::nth(channels));
            let outcome = outcome.unwrap_or_else(|e| panic!("{}: {e}", case.label())).expect("it is supported");
            let bound = tolerance(Op::CausalConv1dUpdate, Tensor::Out, case.io, false);
            let near = compare::values("out", &outcome.out, &oracle.out, &[("token", 6), ("channel", channels)], bound);
            assert!(near.is_ok(), "{}, {}: {near:?}", backend.isa(), case.label());
        }
    }
}

/// 8,200 sequences of 8 heads: more heads than 16 bits count, and than a grid of 65,535 holds. Bit for bit what the same
/// sequences give in batches of 100.
#[test]
fn more_than_65_535_heads() {
    const SEQS: usize = 8_200;
    let dims = GdnDims::new(4, 8, 4, 4).expect("allowed sizes");
    let lens: Vec<usize> = (0..SEQS).map(|seq| [1, 2, 0, 1][seq % 4]).collect();
    let slots: Vec<i32> = (0..SEQS as i32).rev().map(|slot| if slot == 77 { -1 } else { slot }).collect();
    let mut rng = Rng::new(8);
    let case = DeltaRuleCase::draw(&mut rng, DType::F32, 1, dims, Windows::chains(lens, slots, SEQS));
    let threads = CpuBackend::new().with_executor(std::sync::Arc::new(undraft_cpu::ThreadPool::new(2)));
    let run = |backend: &CpuBackend, case: &DeltaRuleCase, capture| {
        harness::fused_recurrent_gated_delta_rule::run(backend, case, capture, Memory::PLAIN)
            .expect("it runs")
            .expect("it is supported")
    };
    for capture in [Capture::Final, Capture::DeltaLog] {
        let whole = run(&threads, &case, capture);
        let ranges = case.windows.ranges();
        for first in (0..SEQS).step_by(100) {
            let seqs = first..SEQS.min(first + 100);
            let picked: Vec<_> = seqs.clone().map(|seq| (seq, 0..case.windows.lens[seq])).collect();
            // Slots of their own, so that the small call is small in every way.
            let small_slots: Vec<usize> = (0..picked.len()).collect();
            let part = case.pick(&picked).relocated(&small_slots, picked.len());
            let small = run(&CpuBackend::new(), &part, capture);
            let tokens = ranges[seqs.start].start..ranges[seqs.end - 1].end;
            let row = dims.value_dim();
            let expected = &whole.out[tokens.start * row..tokens.end * row];
            assert_eq!(compare::bits("out", &small.out, expected, &[("element", expected.len())]), Ok(()));
            let len = dims.state_len();
            for (position, seq) in seqs.enumerate() {
                let Ok(slot) = usize::try_from(case.windows.slots[seq]) else { continue };
                let (got, expected) = (&small.state[position * len..][..len], &whole.state[slot * len..][..len]);
                assert_eq!(compare::bits("state", got, expected, &[("element", len)]), Ok(()), "sequence {seq}");
            }
        }
    }
}
