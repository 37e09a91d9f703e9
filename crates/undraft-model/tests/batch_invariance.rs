//! A token's bits do not depend on the tokens beside it, on how it came in, on the instruction set or on threads.

mod runner;

use runner::{Mode, NEXT, ODD, Rows, TRAINED, cache, cache_bits, device, load, load_on, random_tokens, run};
use undraft::cpu::Isa;
use undraft_model::Model;
use undraft_model::model::{DraftStep, Forward, Logits};
use undraft_testing::Rng;

const MODELS: [&str; 3] = [TRAINED, NEXT, ODD];

/// What single steps leave: logits and hidden states of every token, then the cache.
type Left = ((Vec<u32>, Vec<u32>), Vec<Vec<u32>>);

fn left(model: &Model, tokens: &[u32], mode: Mode) -> Left {
    let mut cache = cache(model);
    let rows = run(model, &mut cache, tokens, mode);
    (rows.bits(), cache_bits(model, &mut cache))
}

fn check_windows(path: &str, isas: &[Isa], num_tokens: usize) {
    let tokens = random_tokens(&load(path), 1, num_tokens);
    let want = left(&load(path), &tokens, Mode::Decode);
    let prefilled = left(&load(path), &tokens, Mode::Prefill);
    for &isa in isas {
        for num_threads in [1, 2] {
            let Some(device) = device(isa, num_threads) else { continue };
            let model = load_on(path, &device);
            for mode in [Mode::Decode].into_iter().chain((1..=8).map(Mode::Verify)) {
                assert!(left(&model, &tokens, mode) == want, "{path}, {isa}, {num_threads} threads, {mode:?}");
            }
            // Prefill is another arithmetic, the same everywhere.
            assert!(left(&model, &tokens, Mode::Prefill) == prefilled, "{path}, {isa}, {num_threads} threads, prefill");
        }
    }
}

#[test]
fn windows_are_single_steps_trained() {
    check_windows(TRAINED, &[Isa::Avx2, Isa::Avx512, Isa::Neon], 40);
}

#[test]
fn windows_are_single_steps_next() {
    check_windows(NEXT, &[Isa::Avx2, Isa::Avx512, Isa::Neon], 80);
    check_windows(NEXT, &[Isa::Scalar], 9);
}

#[test]
fn windows_are_single_steps_odd() {
    check_windows(ODD, &[Isa::Avx2, Isa::Avx512, Isa::Neon], 80);
    check_windows(ODD, &[Isa::Scalar], 9);
}

#[test]
fn prefill_may_be_cut_at_multiples_of_64() {
    for path in MODELS {
        let model = load(path);
        // Two whole chunks and a part.
        let tokens = random_tokens(&model, 2, 600);
        let want = left(&model, &tokens, Mode::Prefill);
        for cuts in [&[64, 600][..], &[320, 384, 448, 600], &[256, 576, 600]] {
            let (mut cache, mut rows, mut start) = (cache(&model), Rows::default(), 0);
            for &end in cuts {
                let part = run(&model, &mut cache, &tokens[start..end], Mode::Prefill);
                rows.logits.extend(part.logits);
                rows.hidden.extend(part.hidden);
                start = end;
            }
            assert!((rows.bits(), cache_bits(&model, &mut cache)) == want, "{path}, {cuts:?}");
        }
        // What is behind a token does not reach it.
        for end in [1, 63, 65, 300] {
            let part = run(&model, &mut cache(&model), &tokens[..end], Mode::Prefill).bits();
            assert!(part.0 == want.0.0[..part.0.len()], "{path}, {end} tokens: logits");
            assert!(part.1 == want.0.1[..part.1.len()], "{path}, {end} tokens: hidden states");
        }
    }
}

#[test]
fn prefill_is_close_to_single_steps() {
    for path in MODELS {
        let model = load(path);
        let tokens = random_tokens(&model, 8, 300);
        let [prefill, decode] =
            [Mode::Prefill, Mode::Decode].map(|mode| run(&model, &mut cache(&model), &tokens, mode));
        let error = (prefill.logits.iter().zip(&decode.logits)).fold(0.0, |max: f32, (a, b)| max.max((a - b).abs()));
        println!("{path}: largest difference of logits {error:.1e}");
        assert!(error < 2e-4, "{path}: {error}");
    }
}

#[test]
fn what_is_taken_back_was_never_there() {
    for path in MODELS {
        let model = load(path);
        let vocab_size = model.config().vocab_size;
        let tokens = random_tokens(&model, 3, 120);
        let want = left(&model, &tokens, Mode::Decode);
        for seed in 0..3 {
            let mut rng = Rng::new(seed);
            let (mut cache, mut out, mut rows) = (cache(&model), Forward::new(), Rows::default());
            while cache.len() < tokens.len() {
                let len = cache.len();
                let size = rng.below(9);
                let kept = rng.below(size + 1).min(tokens.len() - len);
                // Behind the tokens that stay, any others.
                let mut window = tokens[len..len + kept].to_vec();
                window.resize_with(size, || rng.below(vocab_size) as u32);
                let undecided = model.verify(&mut cache, &window, &mut out).unwrap();
                assert_eq!(undecided.num_tokens(), size);
                if kept == 0 && rng.one_in(2) {
                    drop(undecided);
                } else {
                    undecided.commit(kept).unwrap();
                }
                assert_eq!(cache.len(), len + kept);
                rows.logits.extend_from_slice(&out.logits()[..kept * vocab_size]);
                rows.hidden.extend_from_slice(&out.hidden()[..kept * model.config().hidden_size]);
            }
            assert!((rows.bits(), cache_bits(&model, &mut cache)) == want, "{path}, seed {seed}");
        }
    }
}

#[test]
fn logits_of_the_last_token_are_those_of_all() {
    let model = load(ODD);
    let tokens = random_tokens(&model, 4, 300);
    let mut out = Forward::new();
    let all = run(&model, &mut cache(&model), &tokens, Mode::Prefill);
    let mut num_logits = 0;
    let mut count = |chunk: undraft_model::model::Chunk<'_>| {
        num_logits += chunk.forward.logits().len() / model.config().vocab_size;
        assert!(chunk.forward.token_logits(0).is_none());
        Ok(())
    };
    model.prefill(&mut cache(&model), &tokens, Logits::Last, &mut out, &mut count).unwrap();
    assert_eq!(num_logits, 1);
    assert_eq!(out.logits(), &all.logits[299 * model.config().vocab_size..]);
    assert_eq!(out.token_logits(out.num_tokens() - 1), Some(out.logits()));
    assert!(out.token_logits(out.num_tokens()).is_none());
}

/// Hidden state, logits and drafts of every draft made while pairs are fed in some cut.
fn draft_bits(model: &Model, hidden: &[f32], tokens: &[u32], cuts: &mut dyn Iterator<Item = usize>) -> Vec<Vec<u32>> {
    let (mtp, hidden_size) = (model.mtp().unwrap(), model.config().hidden_size);
    let mut cache = mtp.new_cache(tokens.len() + 8).unwrap();
    let mut at_64 = Vec::new();
    let mut drafts = Vec::new();
    while cache.len() < tokens.len() {
        let start = cache.len();
        let end = cuts.next().map_or(tokens.len(), |n| start + n).min(if start < 64 { 64 } else { tokens.len() });
        mtp.feed(&mut cache, &hidden[start * hidden_size..end * hidden_size], &tokens[start..end]).unwrap();
        let mut seen = Vec::new();
        let mut choose = |step: DraftStep<'_>| {
            seen.extend(runner::bits(step.hidden));
            seen.extend(runner::bits(step.logits));
            Ok(runner::argmax(step.logits))
        };
        mtp.draft(&mut cache, 5, &mut choose, &mut drafts).unwrap();
        seen.extend_from_slice(&drafts);
        if end == 64 || end == tokens.len() {
            at_64.push(seen);
        }
    }
    at_64.push(runner::bits(&cache.kv().keys()));
    at_64.push(runner::bits(&cache.kv().values()));
    at_64
}

#[test]
fn drafts_depend_on_true_pairs_alone() {
    for path in MODELS {
        let model = load(path);
        let tokens = random_tokens(&model, 5, 301);
        let hidden = run(&model, &mut cache(&model), &tokens[..300], Mode::Prefill).hidden;
        let want = draft_bits(&model, &hidden, &tokens[1..], &mut std::iter::repeat(1));
        assert!(draft_bits(&model, &hidden, &tokens[1..], &mut std::iter::empty()) == want, "{path}, whole");
        let mut rng = Rng::new(6);
        assert!(
            draft_bits(&model, &hidden, &tokens[1..], &mut std::iter::repeat_with(|| 1 + rng.below(7))) == want,
            "{path}, cut"
        );
        for isa in [Isa::Avx2, Isa::Avx512] {
            let Some(device) = device(isa, 2) else { continue };
            let model = load_on(path, &device);
            assert!(draft_bits(&model, &hidden, &tokens[1..], &mut std::iter::repeat(5)) == want, "{path}, {isa}");
        }
    }
}

#[test]
fn a_draft_stops_where_the_cache_ends() {
    let model = load(NEXT);
    let mtp = model.mtp().unwrap();
    let tokens = random_tokens(&model, 7, 6);
    let hidden = run(&model, &mut cache(&model), &tokens[..5], Mode::Prefill).hidden;
    let mut pairs = mtp.new_cache(7).unwrap();
    let mut drafts = vec![9];
    let mut greedy = |step: DraftStep<'_>| Ok(runner::argmax(step.logits));
    assert_eq!(mtp.draft(&mut pairs, 8, &mut greedy, &mut drafts).unwrap(), 0);
    mtp.feed(&mut pairs, &hidden, &tokens[1..]).unwrap();
    // Five pairs held, two more fit, and the last token needs none.
    assert_eq!(mtp.draft(&mut pairs, 8, &mut greedy, &mut drafts).unwrap(), 3);
    assert_eq!((pairs.len(), drafts.len()), (5, 3));
}
