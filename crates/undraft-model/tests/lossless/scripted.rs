//! Drafts that a script dictates: none right, all, each prefix, any number, fewer than asked.

use undraft::cpu::Isa;
use undraft_model::Model;
use undraft_model::sampling::SamplingParams;
use undraft_testing::Rng;

use super::scripts::{drafts, script};
use super::trace::{Bench, Look, Reference, options};
use super::{SCRIPTED_ISAS, SCRIPTED_NEXT, SCRIPTED_ODD, SCRIPTED_TRAINED, count, greedy, load, prompt, sampled};
use crate::runner::{NEXT, ODD, TRAINED, device, load_on};

/// Tokens of plain decoding that the scripts know.
const NUM_TOKENS: usize = 100;
const MAX_DRAFTS: usize = 8;

/// Every window: first K right drafts down to none, then up again, so that each number follows a larger and a smaller.
fn each_prefix(bench: &mut Bench<'_>, reference: &Reference, sampling: &SamplingParams) -> usize {
    let vocab_size = bench.model.config().vocab_size;
    let mut rounds = 0;
    for window in 1..=MAX_DRAFTS {
        let plan: Vec<usize> = (0..=window).rev().chain(0..=window).collect();
        let max_tokens = 1 + plan.iter().map(|right| right + 1).sum::<usize>();
        let (mut next, mut rng) = (plan.iter(), Rng::new(window as u64));
        let mut drafter = script(reference, |truth, k| {
            assert_eq!(k, window);
            drafts(truth, k, *next.next().unwrap(), vocab_size, &mut rng)
        });
        let run = bench.check(reference, &options(sampling, window, max_tokens), &mut drafter, "each prefix");
        assert_eq!(run.accepted(), plan);
        rounds += plan.len();
    }
    rounds
}

/// The same number of right drafts in every round: `of(window)`.
fn constant(bench: &mut Bench<'_>, reference: &Reference, sampling: &SamplingParams, of: fn(usize) -> usize) -> usize {
    const ROUNDS: usize = 5;
    let vocab_size = bench.model.config().vocab_size;
    for window in 1..=MAX_DRAFTS {
        let (right, mut rng) = (of(window), Rng::new(window as u64));
        let mut drafter = script(reference, |truth, k| drafts(truth, k, right, vocab_size, &mut rng));
        let max_tokens = 1 + ROUNDS * (right + 1);
        let run = bench.check(reference, &options(sampling, window, max_tokens), &mut drafter, "constant");
        assert_eq!(run.accepted(), [right; ROUNDS]);
    }
    MAX_DRAFTS * ROUNDS
}

/// Any number of drafts (often none, sometimes more than asked), any number of them right.
fn random(bench: &mut Bench<'_>, reference: &Reference, sampling: &SamplingParams, seed: u64) -> usize {
    let vocab_size = bench.model.config().vocab_size;
    let mut rng = Rng::new(seed);
    let mut drafter = script(reference, move |truth, k| {
        let num_drafts = if rng.one_in(4) { 0 } else { rng.below(k + 3) };
        let num_right = rng.below(num_drafts + 1);
        drafts(truth, num_drafts, num_right, vocab_size, &mut rng)
    });
    let window = 1 + seed as usize % MAX_DRAFTS;
    let run = bench.check(reference, &options(sampling, window, NUM_TOKENS), &mut drafter, "random");
    let has = |num_drafts: usize| run.rounds.iter().any(|round| round.drafts.len() == num_drafts);
    assert!(has(0) && has(1) && has(window));
    run.rounds.len()
}

fn all(path: &str, model: &Model) -> usize {
    let (mut bench, prompt) = (Bench::new(model), prompt(path, model, "short"));
    let mut rounds = 0;
    for sampling in [greedy(), sampled(1), sampled(2), sampled(3)] {
        let reference = bench.plain(&prompt, &options(&sampling, 0, NUM_TOKENS));
        // The trained model is slow enough for one way of looking at each text.
        let looks = [Look::Always, Look::Seldom];
        let looks = if path == TRAINED { &looks[sampling.seed as usize % 2..][..1] } else { &looks[..] };
        for &look in looks {
            bench.look = look;
            rounds += each_prefix(&mut bench, &reference, &sampling);
            rounds += constant(&mut bench, &reference, &sampling, |_| 0);
            rounds += constant(&mut bench, &reference, &sampling, |window| window);
            for seed in 0..4 {
                rounds += random(&mut bench, &reference, &sampling, 2 * seed + u64::from(look == Look::Seldom));
            }
        }
    }
    rounds
}

#[test]
fn scripted_trained() {
    count("scripted drafts, trained model", all(TRAINED, &load(TRAINED)), SCRIPTED_TRAINED);
}

#[test]
fn scripted_next() {
    count("scripted drafts, Qwen3-Next layout", all(NEXT, &load(NEXT)), SCRIPTED_NEXT);
}

#[test]
fn scripted_odd() {
    count("scripted drafts, odd shapes", all(ODD, &load(ODD)), SCRIPTED_ODD);
}

/// Every instruction set of the machine, and numbers of threads, on a part of it.
#[test]
fn scripted_isas() {
    let mut rounds = 0;
    for (path, isas, seeds) in [
        (TRAINED, &[Isa::Avx2, Isa::Avx512, Isa::Neon][..], 1..3),
        (NEXT, &[Isa::Avx2, Isa::Avx512, Isa::Neon], 0..4),
        (ODD, &[Isa::Avx2, Isa::Avx512, Isa::Neon], 0..4),
        (NEXT, &[Isa::Scalar], 7..8),
        (ODD, &[Isa::Scalar], 7..8),
    ] {
        for &isa in isas {
            let Some(device) = device(isa, 2) else { continue };
            let (model, sampling) = (load_on(path, &device), sampled(4));
            let mut bench = Bench::new(&model);
            let prompt = prompt(path, &model, "short");
            let reference = bench.plain(&prompt, &options(&sampling, 0, NUM_TOKENS));
            for seed in seeds.clone() {
                bench.look = if seed % 2 == 0 { Look::Always } else { Look::Seldom };
                rounds += random(&mut bench, &reference, &sampling, seed);
            }
        }
    }
    count("scripted drafts, instruction sets", rounds, SCRIPTED_ISAS);
}
