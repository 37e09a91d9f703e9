//! Planted mistakes are found: kernels with one each (`build/mutants.rs`) run in the place of the right ones.

use std::panic::{AssertUnwindSafe, catch_unwind};

use undraft_core::{Capture, GdnDims, HeadMap};
use undraft_cpu::CpuBackend;
use undraft_emulator::Options;
use undraft_metal::MetalBackend;
use undraft_testing::cases::Windows;
use undraft_testing::cases::commit_states::CommitCase;
use undraft_testing::cases::fused_recurrent_gated_delta_rule::{BetaForm, DeltaRuleCase};
use undraft_testing::harness::{Memory, commit_states as commit, fused_recurrent_gated_delta_rule as recurrent};
use undraft_testing::{DType, Rng};

use crate::common::{decode, dense};

#[path = "../../build/mutants.rs"]
#[allow(dead_code)]
mod planted;

/// Fails where the numbers lie further apart than `most` of them, or one is NaN.
fn differ(what: &str, got: &[f32], expected: &[f32], most: f32) -> Result<(), String> {
    let near = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a - b).abs() <= most * (1.0 + b.abs());
    let all = got.len() == expected.len() && got.iter().zip(expected).all(|(&a, &b)| near(a, b));
    if all { Ok(()) } else { Err(format!("{what} differ")) }
}

/// Near the CPU's numbers; a window is its tokens one by one; a replay of its log gives their state; the state stays.
fn check(metal: &MetalBackend) -> Result<(), String> {
    let cpu = CpuBackend::new();
    let rng = &mut Rng::new(17);
    for index in 0..3 {
        let dims = GdnDims::new(2, 4, 64, 72).unwrap();
        let mut windows = Windows::chains(vec![3, 11], vec![2, 0], 3);
        if index == 1 {
            windows.grow_trees(rng);
        }
        let mut case = DeltaRuleCase::draw(rng, DType::F32, index, dims, windows);
        case.draw_pending(rng);
        case.head_map = [HeadMap::Grouped, HeadMap::Tiled][index % 2];
        case.beta_form = BetaForm::Logit;
        let run = |backend, case: &DeltaRuleCase, capture| {
            recurrent::run(backend, case, capture, Memory::PLAIN)?.ok_or_else(|| "was refused".to_owned())
        };
        let logged = run(metal, &case, Capture::DeltaLog)?;
        let expected = run(&cpu, &case, Capture::DeltaLog)?;
        differ("outputs", &logged.out, &expected.out, 1e-4)?;
        differ("states", &logged.state, &expected.state, 0.0)?;
        differ("deltas", &logged.log.delta, &expected.log.delta, 1e-4)?;
        differ("keys", &logged.log.k, &expected.log.k, 1e-4)?;
        if case.windows.has_tree() {
            continue;
        }
        case.state = logged.state.clone();
        case.num_pending.iter_mut().for_each(|n| *n = 0);
        let logged = run(metal, &case, Capture::DeltaLog)?;
        let last = run(metal, &case, Capture::Final)?;
        differ("outputs by capture", &logged.out, &last.out, 0.0)?;
        let replay = CommitCase {
            dims,
            head_map: case.head_map,
            state: case.state.clone(),
            state_dtype: DType::F32,
            log: logged.log,
            windows: case.windows.clone(),
            num_kept: case.windows.ranges().iter().map(|tokens| tokens.len() as u32).collect(),
            path: Vec::new(),
        };
        let committed = commit::run(&cpu, &replay, Memory::PLAIN)?.ok_or("was refused")?;
        differ("replayed states", &committed, &last.state, 0.0)?;
        let mut state = case.state.clone();
        for t in 0..case.windows.longest() {
            let mut single = case.pick(&case.windows.within(t..t + 1));
            single.state = state;
            let outcome = run(metal, &single, Capture::Final)?;
            for (from, to) in single.windows.ranges().into_iter().zip(case.windows.ranges()) {
                if !from.is_empty() {
                    let row = dims.value_dim();
                    let (one, window) = (&outcome.out[from.start * row..], &logged.out[(to.start + t) * row..]);
                    differ("outputs of single tokens", &one[..row], &window[..row], 0.0)?;
                }
            }
            state = outcome.state;
        }
        differ("states of single tokens", &state, &last.state, 0.0)?;
    }
    Ok(())
}

#[test]
fn mistakes_in_the_recurrence_are_found() {
    check(&crate::with(Options::every_schedule())).unwrap();
    for (name, _, _) in planted::OF_RECURRENCE {
        let substitutes = vec![("recurrent_f32_k64".to_owned(), format!("mutant_{name}"))];
        let why = check(&crate::with(Options { substitutes, ..Options::every_schedule() })).expect_err(name);
        eprintln!("{name}: {why}");
    }
}

#[test]
fn mistakes_in_the_compatible_family_are_found() {
    for (name, _, _) in planted::OF_DECODE {
        let substitute = |n| (format!("gated_delta_net_decode_capture_f32_{n}"), format!("mutant_{name}_{n}"));
        let substitutes = [1, 2, 4].map(substitute).to_vec();
        let why = decode::check(&crate::with(Options { substitutes, ..Options::default() })).expect_err(name);
        eprintln!("{name}: {why}");
    }
}

#[test]
fn mistakes_in_the_dense_parts_are_found() {
    dense::all(&crate::with(Options::every_schedule()));
    for (name, library, _, _) in planted::OF_DENSE {
        let kernels = dense::KERNELS.iter().filter(|kernel| kernel.starts_with(library));
        let substitutes = kernels.map(|kernel| (kernel.to_string(), format!("mutant_{name}_{kernel}"))).collect();
        let backend = crate::with(Options { substitutes, ..Options::every_schedule() });
        assert!(catch_unwind(AssertUnwindSafe(|| dense::all(&backend))).is_err(), "{name} was not found");
    }
}
