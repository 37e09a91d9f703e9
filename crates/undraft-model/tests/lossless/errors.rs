//! Drafters, options and observers that are wrong: an error, and a cache that the next generation can use.

use std::ops::ControlFlow;

use undraft_model::drafters::{Choose, DraftLimits, Drafter, Drafts, MtpDrafter, ScriptedDrafter};
use undraft_model::error::{ModelError, Result};
use undraft_model::generate::{Acceptance, GenerateOptions, Observer, Quiet, RoundInfo, generate};
use undraft_model::model::{CacheConfig, HybridCache};
use undraft_model::sampling::SamplingParams;
use undraft_testing::Rng;

use super::scripts::script;
use super::trace::{Bench, Look, options};
use super::{greedy, load, sampled};
use crate::runner::{NEXT, ODD, TRAINED, random_tokens};

/// Fails at the n-th call of one of its methods; until then its drafts are right.
struct Failing<'r> {
    tokens: &'r [u32],
    known: usize,
    fail_in: &'static str,
    calls_left: usize,
}

impl Failing<'_> {
    fn call(&mut self, name: &str) -> Result<()> {
        if name == self.fail_in {
            if self.calls_left == 0 {
                return Err(ModelError::EmptyPrompt);
            }
            self.calls_left -= 1;
        }
        Ok(())
    }
}

impl Drafter for Failing<'_> {
    fn begin(&mut self, _first_token: u32) -> Result<()> {
        self.known = 1;
        self.call("begin")
    }
    fn observe(&mut self, _hidden: &[f32], next_tokens: &[u32]) -> Result<()> {
        self.known += next_tokens.len();
        self.call("observe")
    }
    fn propose(&mut self, limits: DraftLimits, _choose: &mut dyn Choose, drafts: &mut Drafts) -> Result<()> {
        self.tokens[self.known..].iter().take(limits.max_depth).for_each(|&token| drafts.push(token));
        self.call("propose")
    }
}

#[test]
fn an_error_of_the_drafter_is_passed_on_and_leaves_a_cache_to_use_again() {
    for path in [NEXT, ODD] {
        let model = load(path);
        let mut bench = Bench::new(&model);
        bench.look = Look::Seldom;
        // Two chunks of prefill, so that the drafter can fail between them.
        let prompt = random_tokens(&model, 41, 260);
        let reference = bench.plain(&prompt, &options(&sampled(1), 0, 30));
        let sequence = [&prompt[..], &reference.tokens].concat();
        let options = options(&sampled(1), 4, 30);
        let mut drafter = script(&reference, |truth, k| truth.iter().copied().take(k).collect());
        for (fail_in, calls) in [("begin", 1), ("observe", 8), ("propose", 6)] {
            for calls_left in 0..calls {
                let mut failing = Failing { tokens: &sequence, known: 0, fail_in, calls_left };
                let error =
                    generate(&model, &mut bench.cache, &prompt, &options, Some(&mut failing), &mut Quiet).unwrap_err();
                assert!(matches!(error, ModelError::EmptyPrompt), "{fail_in}, {calls_left}: {error}");
                bench.check(&reference, &options, &mut drafter, "behind an error");
            }
        }
    }
}

#[test]
fn drafts_outside_the_vocabulary_are_refused() {
    for path in [TRAINED, NEXT, ODD] {
        let model = load(path);
        let vocab_size = model.config().vocab_size;
        let mut bench = Bench::new(&model);
        let prompt = random_tokens(&model, 42, 9);
        let reference = bench.plain(&prompt, &options(&sampled(1), 0, 20));
        for acceptance in [Acceptance::Match, Acceptance::Rejection] {
            for (garbage, rounds_before) in [(vocab_size as u32, 0), (u32::MAX, 0), (u32::MAX, 2), (1 << 31, 3)] {
                for at in 0..4 {
                    let mut rounds = 0;
                    let mut drafter = ScriptedDrafter::new(|_: &[u32], k| {
                        let mut drafts = vec![3; k];
                        if rounds == rounds_before {
                            drafts[at] = garbage;
                        }
                        rounds += 1;
                        drafts
                    });
                    let options = GenerateOptions { acceptance, ..options(&sampled(1), 4, 20) };
                    let result = generate(&model, &mut bench.cache, &prompt, &options, Some(&mut drafter), &mut Quiet);
                    let error = result.unwrap_err();
                    assert!(matches!(error, ModelError::TokenId { id, .. } if id == garbage), "{path}: {error}");
                }
            }
        }
        // The window that was refused has left no trace.
        let mut drafter = script(&reference, |truth, k| truth.iter().copied().take(k).collect());
        bench.check(&reference, &options(&sampled(1), 4, 20), &mut drafter, "behind garbage");
    }
}

/// Calls `choose` with these logits, so often, and drafts what it gives or something else.
#[derive(Clone, Default)]
struct Chooser {
    num_known: usize,
    logits: Vec<f32>,
    calls: usize,
    draft: Option<u32>,
    /// Added to the positions.
    shift: usize,
}

impl Drafter for Chooser {
    fn begin(&mut self, _first_token: u32) -> Result<()> {
        self.num_known = 1;
        Ok(())
    }
    fn observe(&mut self, _hidden: &[f32], next_tokens: &[u32]) -> Result<()> {
        self.num_known += next_tokens.len();
        Ok(())
    }
    fn propose(&mut self, _limits: DraftLimits, choose: &mut dyn Choose, drafts: &mut Drafts) -> Result<()> {
        for i in 0..self.calls {
            let token = choose.token((self.num_known + i).wrapping_add(self.shift) as u64, &self.logits)?;
            drafts.push(self.draft.unwrap_or(token));
        }
        Ok(())
    }
}

#[test]
fn what_a_drafter_chooses_from_is_checked() {
    let model = load(ODD);
    let vocab_size = model.config().vocab_size;
    let mut bench = Bench::new(&model);
    let prompt = random_tokens(&model, 43, 9);
    let mut run = |acceptance, sampling: SamplingParams, mut drafter: Chooser| {
        let options = GenerateOptions { acceptance, ..options(&sampling, 3, 20) };
        generate(&model, &mut bench.cache, &prompt, &options, Some(&mut drafter), &mut Quiet)
    };
    let good: Vec<f32> = (0..vocab_size).map(|i| (i % 7) as f32).collect();
    for acceptance in [Acceptance::Match, Acceptance::Rejection] {
        for sampling in [greedy(), sampled(2)] {
            for logits in [vec![], vec![f32::NAN; vocab_size], vec![f32::NEG_INFINITY; vocab_size]] {
                let error =
                    run(acceptance, sampling.clone(), Chooser { logits, calls: 1, ..Chooser::default() }).unwrap_err();
                assert!(matches!(error, ModelError::Logits { .. }), "{error}");
            }
            // Logits of another vocabulary: what they choose may be no token here.
            let mut logits = vec![0.0; 2 * vocab_size];
            logits[2 * vocab_size - 1] = 50.0;
            let error =
                run(acceptance, sampling.clone(), Chooser { logits, calls: 1, ..Chooser::default() }).unwrap_err();
            assert!(matches!(error, ModelError::TokenId { .. }), "{error}");
            let logits = good.clone();
            assert!(run(acceptance, sampling.clone(), Chooser { logits, calls: 3, ..Chooser::default() }).is_ok());
        }
    }
    let logits = good;
    let good = Chooser { logits, calls: 3, ..Chooser::default() };
    // More drafts than asked for are cut off; their distributions have no place, nor have those of other positions.
    for bad in [
        Chooser { calls: 9, ..good.clone() },
        Chooser { shift: 4, ..good.clone() },
        Chooser { shift: usize::MAX, ..good.clone() },
    ] {
        assert!(run(Acceptance::Match, sampled(2), bad.clone()).is_ok());
        let error = run(Acceptance::Rejection, sampled(2), bad).unwrap_err();
        assert!(matches!(error, ModelError::Options { option: "draft position", .. }), "{error}");
    }
    // A draft that its own distribution excludes cannot be decided about.
    let error = run(Acceptance::Rejection, sampled(2), Chooser { draft: Some(0), ..good }).unwrap_err();
    assert!(matches!(error, ModelError::Distribution { name: "q", .. }), "{error}");
}

#[test]
fn prompts_and_options_are_checked() {
    let model = load(NEXT);
    let mut bench = Bench::with_capacity(&model, 20);
    let prompt = random_tokens(&model, 44, 21);
    let mut run = |prompt: &[u32], options: &GenerateOptions| {
        let mut drafter = ScriptedDrafter::new(|_: &[u32], _| Drafts::new());
        generate(&model, &mut bench.cache, prompt, options, Some(&mut drafter), &mut Quiet)
    };
    let good = options(&greedy(), 4, 3);
    assert!(matches!(run(&[], &good), Err(ModelError::EmptyPrompt)));
    assert!(matches!(run(&prompt, &good), Err(ModelError::CacheFull { len: 0, more: 21, capacity: 20 })));
    assert!(matches!(run(&[3, 512], &good), Err(ModelError::TokenId { index: 1, id: 512, vocab_size: 512 })));
    let bad = options(&greedy(), 4, 0);
    assert!(matches!(run(&prompt[..9], &bad), Err(ModelError::Options { option: "max_tokens", min: 1, .. })));
    for window in [9, 10, usize::MAX] {
        let bad = options(&greedy(), window, 3);
        assert!(matches!(run(&prompt[..9], &bad), Err(ModelError::Options { option: "window", max: 8, .. })));
    }
    let bad = options(&SamplingParams { temperature: -1.0, ..greedy() }, 4, 3);
    assert!(matches!(run(&prompt[..9], &bad), Err(ModelError::SamplingParam { name: "temperature", .. })));
    assert_eq!(run(&prompt[..20], &good).unwrap().tokens.len(), 1);
    // Options that would ask for more memory than there is, if they were taken at their word.
    let endless = options(&greedy(), 4, usize::MAX);
    assert_eq!(run(&prompt[..9], &endless).unwrap().tokens.len(), 12);
}

#[test]
fn caches_and_drafters_of_another_model_or_too_small() {
    let (model, other) = (load(NEXT), load(NEXT));
    let mut bench = Bench::new(&model);
    let prompt = random_tokens(&model, 45, 12);
    let options = options(&sampled(3), 4, 40);
    let reference = bench.plain(&prompt, &options);
    let error = generate(&other, &mut bench.cache, &prompt, &options, None, &mut Quiet).unwrap_err();
    assert!(matches!(error, ModelError::ForeignCache), "{error}");

    // A drafter that ends before the text does.
    for capacity in [5, 11, 20] {
        let mut mtp = MtpDrafter::new(model.mtp().unwrap(), capacity).unwrap();
        let error = generate(&model, &mut bench.cache, &prompt, &options, Some(&mut mtp), &mut Quiet).unwrap_err();
        assert!(matches!(error, ModelError::CacheFull { .. }), "{error}");
    }
    // The head of another model may guess anything.
    let mut mtp = MtpDrafter::new(other.mtp().unwrap(), 100).unwrap();
    bench.check(&reference, &options, &mut mtp, "head of another copy");
    let odd = load(ODD);
    let mut mtp = MtpDrafter::new(odd.mtp().unwrap(), 100).unwrap();
    let error = generate(&model, &mut bench.cache, &prompt, &options, Some(&mut mtp), &mut Quiet).unwrap_err();
    assert!(matches!(error, ModelError::HiddenRows { .. }), "{error}");
    bench.check(&reference, &options, &mut MtpDrafter::new(model.mtp().unwrap(), 100).unwrap(), "behind errors");
}

/// Does something to the cache in every round.
struct Meddler<F>(F);

impl<F: FnMut(&mut HybridCache)> Observer for Meddler<F> {
    fn round(&mut self, _round: &RoundInfo<'_>, cache: &mut HybridCache) -> ControlFlow<()> {
        (self.0)(cache);
        ControlFlow::Continue(())
    }
}

#[test]
fn an_observer_that_changes_the_cache_does_no_harm_to_the_next() {
    let model = load(NEXT);
    let mut bench = Bench::with_capacity(&model, 60);
    let prompt = random_tokens(&model, 46, 12);
    let reference = bench.plain(&prompt, &options(&sampled(3), 0, 40));
    let mut rng = Rng::new(4);
    let mut drafter = ScriptedDrafter::new(|_: &[u32], k| (0..k).map(|_| rng.below(512) as u32).collect::<Vec<_>>());
    let mut out = undraft_model::model::Forward::new();
    let mut fill = Meddler(|cache: &mut HybridCache| {
        while cache.len() < cache.capacity() {
            model.decode(cache, 1, &mut out).unwrap();
        }
    });
    let mut reset = Meddler(|cache: &mut HybridCache| cache.reset().unwrap());
    let mut swap = Meddler(|cache: &mut HybridCache| {
        *cache = model.new_cache(CacheConfig { capacity: 2, max_window: 1 }).unwrap();
    });
    let options = options(&sampled(3), 4, 40);
    let mut run = |observer: &mut dyn Observer, cache: &mut HybridCache| {
        generate(&model, cache, &prompt, &options, Some(&mut drafter), observer)
    };
    let error = run(&mut fill, &mut bench.cache).unwrap_err();
    assert!(matches!(error, ModelError::CacheFull { len: 60, more: 1, capacity: 60 }), "{error}");
    assert!(run(&mut reset, &mut bench.cache).is_ok());
    let mut other = model.new_cache(CacheConfig { capacity: 60, max_window: 9 }).unwrap();
    assert!(matches!(run(&mut swap, &mut other).unwrap_err(), ModelError::Pool(_)));
    let mut drafter = script(&reference, |truth, k| truth.iter().copied().take(k).collect());
    bench.check(&reference, &options, &mut drafter, "behind a meddler");
}
