//! Where a generation ends: stop tokens, `max_tokens`, the end of the cache and the observer, at any place of a window.

use undraft_model::Model;
use undraft_model::drafters::{Drafter, MtpDrafter, ScriptedDrafter};
use undraft_model::generate::{Finish, GenerateOptions, generate};
use undraft_testing::Rng;

use super::scripts::{drafts, script, wrong};
use super::trace::{Bench, Checker, Look, Reference, options};
use super::{greedy, load, sampled};
use crate::runner::{NEXT, ODD, TRAINED, random_tokens};

/// Windows in which everything, half or nothing is right.
fn drafters<'r>(model: &Model, reference: &'r Reference) -> [(&'static str, Box<dyn Drafter + 'r>); 3] {
    let vocab_size = model.config().vocab_size;
    let right = |of: fn(usize) -> usize| {
        let mut rng = Rng::new(5);
        Box::new(script(reference, move |truth, k| drafts(truth, k, of(k), vocab_size, &mut rng)))
    };
    [("all right", right(|k| k)), ("half right", right(|k| k / 2)), ("none right", right(|_| 0))]
}

fn check_all(bench: &mut Bench<'_>, reference: &Reference, options: &GenerateOptions, what: &str) {
    for (name, mut drafter) in drafters(bench.model, reference) {
        bench.check(reference, options, &mut *drafter, &format!("{what}, {name}"));
    }
}

#[test]
fn a_stop_token_ends_the_text_anywhere_in_a_window() {
    for path in [NEXT, ODD] {
        let model = load(path);
        let mut bench = Bench::new(&model);
        let prompt = random_tokens(&model, 21, 6);
        for sampling in [greedy(), sampled(9)] {
            let endless = bench.plain(&prompt, &options(&sampling, 0, 30)).tokens;
            for (i, &stop) in endless[..20].iter().enumerate() {
                // Among others, which do not come.
                let unused = (0..).find(|id| !endless.contains(id)).unwrap();
                let stop_tokens = vec![unused, stop];
                let plain = GenerateOptions { stop_tokens: stop_tokens.clone(), ..options(&sampling, 0, 30) };
                let reference = bench.plain(&prompt, &plain);
                let end = endless.iter().position(|&token| token == stop).unwrap();
                assert_eq!(reference.tokens, endless[..=end]);
                assert_eq!(reference.finish, Finish::Stop);
                for window in [1, 3, 8] {
                    let speculative = GenerateOptions { window, ..plain.clone() };
                    check_all(&mut bench, &reference, &speculative, &format!("{path}, stop at {i}"));
                    // The rest of the text is drafted behind the stop token as well.
                    let mut drafter = ScriptedDrafter::new(|known: &[u32], k| {
                        endless[known.len() - prompt.len()..].iter().copied().take(k).collect::<Vec<_>>()
                    });
                    bench.check(&reference, &speculative, &mut drafter, "drafts beyond the end");
                }
            }
        }
    }
}

#[test]
fn a_stop_token_that_is_only_drafted_ends_nothing() {
    let model = load(ODD);
    let mut bench = Bench::new(&model);
    let prompt = random_tokens(&model, 22, 6);
    let plain = options(&sampled(2), 0, 30);
    let reference = bench.plain(&prompt, &plain);
    let stop = (0..).find(|id| !reference.tokens.contains(id)).unwrap();
    let options = GenerateOptions { stop_tokens: vec![stop], window: 4, ..plain };
    let mut drafter = script(&reference, |truth, k| {
        let mut drafts = truth[..k].to_vec();
        drafts.splice(1.min(k)..2.min(k), [stop]);
        drafts
    });
    let run = bench.check(&reference, &options, &mut drafter, "drafted stop token");
    assert!(run.accepted()[..10].iter().all(|&accepted| accepted == 1));
}

#[test]
fn max_tokens_ends_the_text_anywhere_in_a_window() {
    for path in [NEXT, ODD] {
        let model = load(path);
        let mut bench = Bench::new(&model);
        let prompt = random_tokens(&model, 23, 6);
        let reference = bench.plain(&prompt, &options(&sampled(4), 0, 21));
        for max_tokens in 1..=21 {
            for window in [1, 4, 8] {
                check_all(&mut bench, &reference, &options(&sampled(4), window, max_tokens), path);
            }
        }
    }
}

#[test]
fn the_cache_ends_anywhere_in_a_window() {
    for path in [NEXT, ODD] {
        let model = load(path);
        let prompt = random_tokens(&model, 24, 6);
        // From a prompt that fills the cache, over one that fills it but for one position, on.
        for room in 0..=14 {
            let mut bench = Bench::with_capacity(&model, prompt.len() + room);
            let reference = bench.plain(&prompt, &options(&sampled(4), 0, 100));
            assert_eq!((reference.tokens.len(), reference.finish), (room + 1, Finish::Context));
            for window in [1, 4, 8] {
                check_all(&mut bench, &reference, &options(&sampled(4), window, 100), path);
                let mut mtp = MtpDrafter::new(model.mtp().unwrap(), bench.cache.capacity()).unwrap();
                bench.check(&reference, &options(&sampled(4), window, usize::MAX), &mut mtp, path);
            }
            // The last token that fits, and both at once.
            let reference = bench.plain(&prompt, &options(&sampled(4), 0, room + 1));
            assert_eq!((reference.tokens.len(), reference.finish), (room + 1, Finish::Length));
            check_all(&mut bench, &reference, &options(&sampled(4), 8, room + 1), path);
        }
    }
}

#[test]
fn the_observer_ends_the_text() {
    let model = load(NEXT);
    let mut bench = Bench::new(&model);
    let prompt = random_tokens(&model, 25, 6);
    let reference = bench.plain(&prompt, &options(&sampled(1), 0, 40));
    let options = options(&sampled(1), 4, 40);
    for break_at in 0..8 {
        for (what, mut drafter) in drafters(&model, &reference) {
            let mut checker = Checker::new(&model, &reference, Look::Always, what);
            checker.break_at = Some(break_at);
            let run = generate(&model, &mut bench.cache, &prompt, &options, Some(&mut *drafter), &mut checker).unwrap();
            assert_eq!((run.finish, run.rounds), (Finish::Interrupted, break_at), "{what}");
            assert_eq!(run.tokens, reference.tokens[..run.tokens.len()], "{what}");
            assert_eq!(bench.cache.len(), prompt.len() + run.tokens.len() - 1, "{what}");
            // What is left behind does not matter to the next one.
            bench.check(&reference, &options, &mut *drafter, "behind an interruption");
        }
    }
}

#[test]
fn without_drafts_a_drafter_is_not_asked() {
    let model = load(ODD);
    let mut bench = Bench::new(&model);
    let prompt = random_tokens(&model, 26, 6);
    let reference = bench.plain(&prompt, &options(&greedy(), 0, 12));
    let mut drafter = ScriptedDrafter::new(|_: &[u32], _| -> Vec<u32> { panic!("asked for drafts") });
    let run = bench.check(&reference, &options(&greedy(), 0, 12), &mut drafter, "window of 0");
    assert_eq!((run.generation.drafted, run.rounds.len()), (0, 11));
    // Nor where no draft can stay.
    bench.check(&reference, &options(&greedy(), 8, 2), &mut drafter, "two tokens");
    bench.check(&reference, &options(&greedy(), 8, 1), &mut drafter, "one token");
}

#[test]
fn the_shortest_prompt() {
    for path in [TRAINED, NEXT, ODD] {
        let model = load(path);
        let mut bench = Bench::new(&model);
        let mut mtp = MtpDrafter::new(model.mtp().unwrap(), bench.cache.capacity()).unwrap();
        for sampling in [greedy(), sampled(6)] {
            let reference = bench.plain(&[7], &options(&sampling, 0, 30));
            for window in [3, 8] {
                let options = options(&sampling, window, 30);
                check_all(&mut bench, &reference, &options, path);
                bench.check(&reference, &options, &mut mtp, path);
            }
        }
    }
}

#[test]
fn a_cache_and_a_drafter_serve_one_text_after_another() {
    let model = load(ODD);
    let mut bench = Bench::new(&model);
    let mut mtp = MtpDrafter::new(model.mtp().unwrap(), bench.cache.capacity()).unwrap();
    let references: Vec<_> = [40, 3, 290, 17]
        .map(|len| random_tokens(&model, len, len as usize))
        .map(|prompt| (bench.plain(&prompt, &options(&sampled(8), 0, 25)), prompt))
        .into();
    for round in 0..3 {
        for (reference, prompt) in &references {
            assert!(bench.plain(prompt, &options(&sampled(8), 0, 25)) == *reference, "plain, time {round}");
            bench.check(reference, &options(&sampled(8), 3 + round, 25), &mut mtp, "one after another");
        }
    }
}

/// Windows as long as the cache can take back, and no longer.
#[test]
fn the_longest_window() {
    let model = load(NEXT);
    let mut bench = Bench::new(&model);
    let prompt = random_tokens(&model, 27, 6);
    let reference = bench.plain(&prompt, &options(&greedy(), 0, 60));
    let (vocab_size, max_window) = (model.config().vocab_size, 33);
    bench.cache = model.new_cache(undraft_model::model::CacheConfig { capacity: 100, max_window }).unwrap();
    let mut rng = Rng::new(1);
    let mut drafter = script(&reference, |truth, k| {
        let mut drafts: Vec<u32> = truth[..k].to_vec();
        let at = rng.below(k);
        drafts[at] = wrong(truth[at], vocab_size, &mut rng);
        drafts
    });
    bench.check(&reference, &options(&greedy(), max_window - 1, 60), &mut drafter, "long windows");
}
