//! What a drafter is told: every true token but the first, with the trunk's state at the position before it.

use undraft_model::drafters::{Choose, DraftLimits, Drafter, Drafts};
use undraft_model::error::Result;
use undraft_testing::Rng;

use super::scripts::drafts;
use super::trace::{Bench, Reference, options};
use super::{load, sampled};
use crate::runner::{Mode, NEXT, ODD, bits, cache, random_tokens, run};

/// Keeps what it is told; drafts any number of right tokens.
struct Listener<'r> {
    reference: &'r Reference,
    vocab_size: usize,
    rng: Rng,
    tokens: Vec<u32>,
    hidden: Vec<f32>,
}

impl Drafter for Listener<'_> {
    fn begin(&mut self, first_token: u32) -> Result<()> {
        self.tokens = vec![first_token];
        self.hidden.clear();
        Ok(())
    }
    fn observe(&mut self, hidden: &[f32], next_tokens: &[u32]) -> Result<()> {
        self.tokens.extend_from_slice(next_tokens);
        self.hidden.extend_from_slice(hidden);
        Ok(())
    }
    fn propose(&mut self, limits: DraftLimits, _choose: &mut dyn Choose, out: &mut Drafts) -> Result<()> {
        let max_drafts = limits.max_depth;
        let num_generated = self.tokens.len() - self.reference.prompt.len();
        let truth = &self.reference.tokens[num_generated..];
        // More than asked for: those are cut off.
        let num_right = self.rng.below(max_drafts + 1);
        *out = drafts(truth, max_drafts + 2, num_right, self.vocab_size, &mut self.rng).into();
        Ok(())
    }
}

#[test]
fn drafters_are_told_every_true_pair() {
    for path in [NEXT, ODD] {
        let model = load(path);
        let (vocab_size, hidden_size) = (model.config().vocab_size, model.config().hidden_size);
        let mut bench = Bench::new(&model);
        let all = random_tokens(&model, 12, 513);
        // Around the chunks of the prefill, and a prompt without any pair.
        for prompt_len in [1, 2, 255, 256, 257, 513] {
            let prompt = &all[..prompt_len];
            let reference = bench.plain(prompt, &options(&sampled(3), 0, 40));
            let sequence = [prompt, &reference.tokens].concat();
            let mut cache = cache(&model);
            let mut hidden = run(&model, &mut cache, prompt, Mode::Prefill).hidden;
            hidden.extend(run(&model, &mut cache, &reference.tokens, Mode::Decode).hidden);
            for window in [0, 3, 8] {
                let rng = Rng::new(window as u64);
                let mut listener =
                    Listener { reference: &reference, vocab_size, rng, tokens: Vec::new(), hidden: Vec::new() };
                let what = format!("{path}, prompt of {prompt_len}");
                let last = bench.check(&reference, &options(&sampled(3), window, 40), &mut listener, &what);
                let last = last.rounds.last().unwrap().tokens.len();
                // The last round ends the text, and nothing is drafted behind it.
                assert_eq!(listener.tokens, sequence[..sequence.len() - last], "{what}");
                let told = (listener.tokens.len() - 1) * hidden_size;
                assert!(bits(&listener.hidden) == bits(&hidden[..told]), "{what}, {window} drafts: other states");
            }
        }
    }
}
