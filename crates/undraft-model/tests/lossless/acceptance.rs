//! A drafter that is wrong is harmless, so its guesses are compared too: rounds of the MTP head over the golden prompts.

use serde_json::Value;
use undraft_model::drafters::{Drafts, MtpDrafter};

use super::trace::{Bench, Observed, Run, options};
use super::{GOLDEN_MTP, count, golden, greedy, ids, load};
use crate::runner::TRAINED;

/// Tokens of the golden continuations; rounds that go on beyond them are not in the files.
const NUM_TOKENS: usize = 64;

#[test]
fn mtp_rounds_are_those_of_the_golden_files() {
    let (model, prompts, file) = (load(TRAINED), golden("prompts.json"), golden("mtp.json"));
    let mut drafter = MtpDrafter::new(model.mtp().unwrap(), 700).unwrap();
    let mut bench = Bench::new(&model);
    let mut rounds = 0;
    for (name, prompt) in prompts.as_object().unwrap() {
        let num_tokens = |window: usize| NUM_TOKENS + window + 1;
        let reference = bench.plain(&ids(&prompt["input_ids"]), &options(&greedy(), 0, num_tokens(4)));
        assert_eq!(reference.tokens[..NUM_TOKENS], ids(&prompt["greedy_f32"]), "{name}");
        for window in 1..=4 {
            let what = format!("{name}, MTP, {window} drafts");
            let options = options(&greedy(), window, num_tokens(window));
            let run = bench.check(&reference, &options, &mut drafter, &what);
            rounds += run.rounds.len();
            let key = window.to_string();
            check_counts(&run, &file["teacher_forced"][name]["greedy_verification"][&key], &what);
            if let Some(trace) = file["speculative_traces_f64"].get(name) {
                check_trace(&run.rounds, reference.prompt.len(), trace[&key].as_array().unwrap(), &what);
            }
        }
    }
    count("MTP, golden prompts", rounds, GOLDEN_MTP);
}

/// Accepted drafts round by round, and their mean.
fn check_counts(run: &Run, want: &Value, what: &str) {
    let accepted = ids(&want["accepted_per_round"]);
    assert!(accepted.len() > 10, "{what}");
    let got: Vec<u32> = run.accepted().iter().map(|&n| n as u32).take(accepted.len()).collect();
    assert_eq!(got, accepted, "{what}");
    let mean = 1.0 + f64::from(got.iter().sum::<u32>()) / got.len() as f64;
    let want = want["tokens_per_round"].as_f64().unwrap();
    assert!((mean - want).abs() < 6e-4, "{what}: {mean} tokens a round, expected {want}");
}

/// Place, drafts, accepted drafts and next token of every round.
fn check_trace(rounds: &[Observed], prompt_len: usize, want: &[Value], what: &str) {
    let mut last = prompt_len;
    for (number, want) in want.iter().enumerate() {
        let round = &rounds[number];
        let what = format!("{what}, round {number}");
        assert_eq!(want["at"].as_u64(), Some(last as u64), "{what}");
        assert_eq!(round.drafts, Drafts::from(ids(&want["drafts"])), "{what}");
        assert_eq!(want["accepted"].as_u64(), Some(round.accepted as u64), "{what}");
        assert_eq!(want["next"].as_u64(), round.tokens.last().map(|&token| u64::from(token)), "{what}");
        last += round.tokens.len();
    }
    assert!(last >= prompt_len + NUM_TOKENS - 1, "{what}");
}
