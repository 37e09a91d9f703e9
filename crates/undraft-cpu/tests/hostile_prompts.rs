//! The chunked form where a careless one overflows, divides by zero or loses all digits: against the f64 oracle.

use undraft_core::{DType, DecayShape, GdnDims, Op, QkNorm};
use undraft_cpu::{CpuBackend, Isa};
use undraft_testing::Rng;
use undraft_testing::cases::Windows;
use undraft_testing::cases::fused_recurrent_gated_delta_rule::{BetaForm, DecayForm, DeltaRuleCase};
use undraft_testing::compare;
use undraft_testing::harness::{Memory, chunk_gated_delta_rule};
use undraft_testing::tolerance::{Tensor, tolerance};

fn case(seed: u64, shape: DecayShape, decay_form: DecayForm, decay: f32, beta: f32, collinear: bool) -> DeltaRuleCase {
    let mut rng = Rng::new(seed);
    let dims = GdnDims::new(1, 2, 32, 17).unwrap().with_decay_shape(shape);
    let mut case = DeltaRuleCase::draw(&mut rng, DType::F32, 1, dims, Windows::chains(vec![200, 65], vec![1, 0], 2));
    // With keys as given both sides have the same ones: what f32 norms are off would be doubled by every reflection.
    assert_eq!(case.qk_norm, QkNorm::AsGiven);
    case.decay_form = decay_form;
    case.decay.fill(decay);
    case.beta_form = BetaForm::Value;
    case.beta.fill(beta);
    if collinear {
        let first = case.k[..dims.key_dim()].to_vec();
        case.k.chunks_exact_mut(dims.key_dim()).for_each(|k| k.copy_from_slice(&first));
    }
    case
}

#[test]
fn hostile_decays_and_keys_stay_finite_and_near() {
    let decays = [
        (DecayForm::Linear, 1e-38f32),
        (DecayForm::Linear, 1e-12),
        (DecayForm::Linear, 0.0),
        (DecayForm::Linear, 1.0),
        (DecayForm::Log, -20.0),
        (DecayForm::Log, -2661.0),
        (DecayForm::Log, 0.0),
        (DecayForm::NegLog, 80.0),
    ];
    let mut count = 0;
    for isa in Isa::ALL {
        let Ok(backend) = CpuBackend::with_isa(isa) else {
            println!("skipped: {isa} is not available on this machine");
            continue;
        };
        for (seed, (form, decay)) in decays.iter().enumerate() {
            for shape in [DecayShape::PerHead, DecayShape::PerChannel] {
                for (beta, collinear) in [(1.0, false), (2.0, false), (1.0, true), (2.0, true), (0.0, true)] {
                    let case = case(seed as u64, shape, form.clone(), *decay, beta, collinear);
                    let what = format!("{isa} {shape:?} {form:?} {decay:e} beta {beta} collinear {collinear}");
                    let outcome = chunk_gated_delta_rule::run(&backend, &case, None, Memory::PLAIN);
                    let outcome = outcome.expect("it runs").expect("it is supported");
                    assert!(outcome.out.iter().chain(&outcome.state).all(|x| x.is_finite()), "{what}");
                    let oracle = case.oracle().solve(false);
                    let bound = |tensor| {
                        let bound = tolerance(Op::ChunkGatedDeltaRule, tensor, DType::F32, false);
                        if collinear && beta == 2.0 { bound.with_reflections(200) } else { bound }
                    };
                    let axes = |len| [("element", len)];
                    let out =
                        compare::values("out", &outcome.out, &oracle.out, &axes(outcome.out.len()), bound(Tensor::Out));
                    let state = compare::values(
                        "state",
                        &outcome.state,
                        &oracle.state_after,
                        &axes(outcome.state.len()),
                        bound(Tensor::State),
                    );
                    assert_eq!((out.err(), state.err()), (None, None), "{what}");
                    count += 1;
                }
            }
        }
    }
    assert!(count >= 80, "{count} cases ran");
}
