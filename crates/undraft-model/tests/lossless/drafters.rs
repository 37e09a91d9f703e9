//! The real drafters.

use undraft_model::Model;
use undraft_model::drafters::{LookupDrafter, LookupOptions, MtpDrafter};

use super::trace::{Bench, Look, options};
use super::{LOOKUP, MTP_RANDOM, MTP_TRAINED, count, greedy, load, prompt, sampled};
use crate::runner::{NEXT, ODD, TRAINED, random_tokens};

/// Rounds, drafts and accepted drafts.
type Counts = [usize; 3];

fn add(counts: &mut Counts, run: &super::trace::Run) {
    counts[0] += run.rounds.len();
    counts[1] += run.generation.drafted;
    counts[2] += run.generation.accepted;
}

fn mtp(path: &str, model: &Model, prompts: &[&str], num_tokens: usize) -> Counts {
    let mut bench = Bench::new(model);
    // One drafter for all: it forgets.
    let mut drafter = MtpDrafter::new(model.mtp().unwrap(), 700).unwrap();
    let mut counts = [0; 3];
    for name in prompts {
        let prompt = prompt(path, model, name);
        for sampling in [greedy(), sampled(1), sampled(2)] {
            let reference = bench.plain(&prompt, &options(&sampling, 0, num_tokens));
            for window in 1..=8 {
                bench.look = if window % 2 == 0 { Look::Always } else { Look::Seldom };
                let options = options(&sampling, window, num_tokens);
                add(&mut counts, &bench.check(&reference, &options, &mut drafter, &format!("{path}, {name}, MTP")));
            }
        }
    }
    counts
}

#[test]
fn mtp_trained() {
    let counts = mtp(TRAINED, &load(TRAINED), &["chat", "non_ascii"], 40);
    let [rounds, drafted, accepted] = counts;
    count("MTP, trained model", rounds, MTP_TRAINED);
    // The head of the trained model is right often enough for its own windows to stay in part and whole.
    assert!(accepted > drafted / 5 && accepted < drafted, "{counts:?}");
}

#[test]
fn mtp_random() {
    let mut rounds = 0;
    for path in [NEXT, ODD] {
        rounds += mtp(path, &load(path), &["short"], 30)[0];
    }
    count("MTP, random models", rounds, MTP_RANDOM);
}

#[test]
fn lookup() {
    let mut rounds = 0;
    for path in [TRAINED, NEXT, ODD] {
        let model = load(path);
        let mut bench = Bench::new(&model);
        let repeated = prompt(path, &model, "short").repeat(6);
        let (mut drafted, mut accepted) = (0, 0);
        for (kind, prompt) in [("repeated", repeated), ("random", random_tokens(&model, 8, 40))] {
            for sampling in [greedy(), sampled(7)] {
                let reference = bench.plain(&prompt, &options(&sampling, 0, 50));
                for window in 1..=8 {
                    bench.look = if window % 2 == 0 { Look::Always } else { Look::Seldom };
                    let ngrams = LookupOptions::new(1 + window / 8, 3 + window % 3).unwrap();
                    let mut counts = [0; 3];
                    let what = format!("{path}, {kind} prompt, lookup");
                    let options = options(&sampling, window, 50);
                    let run = bench.check(&reference, &options, &mut LookupDrafter::new(ngrams), &what);
                    add(&mut counts, &run);
                    rounds += counts[0];
                    accepted += counts[2];
                    drafted += counts[1];
                }
            }
        }
        println!("{path}: {accepted} of {drafted} drafts stay");
        assert!(drafted > 200 && (accepted > 100 || path != TRAINED), "{accepted} of {drafted}");
    }
    count("lookup", rounds, LOOKUP);
}
