//! Which tokens of a verified window stay.

use super::{Acceptance, GenerateOptions, Outputs};
use crate::drafters::{Candidate, Choose, Drafts};
use crate::error::{ModelError, Result};
use crate::sampling::{RejectionSampler, Sampler, Verdict};

/// What a round comes to; kept from round to round for its memory.
#[derive(Debug, Default)]
pub(super) struct Decided {
    /// Tokens that stay: drafts, then one of the model's own (unless a draft ended the text).
    pub(super) tokens: Vec<u32>,
    /// Rows of the window that stay: that of the last known token, then those of drafts. Each gave the token of the same
    /// index.
    pub(super) path: Vec<usize>,
    /// How many of the tokens are drafts.
    pub(super) accepted: usize,
}

/// A window that a call gave logits of.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowInfo<'a> {
    /// Row of the last known token; the drafts are behind it.
    pub(super) first_row: usize,
    /// Position of the token after it.
    pub(super) position: usize,
    pub(super) drafts: &'a Drafts,
    /// Most tokens that may come.
    pub(super) left: usize,
}

/// What decides.
#[derive(Debug)]
pub(super) struct Decider {
    sampler: Sampler,
    rejection: RejectionSampler,
    /// Distributions that the drafts of a chain were drawn from, for the rejection rule.
    draft_probabilities: Vec<Vec<(u32, f64)>>,
    probabilities: Vec<(u32, f64)>,
}

impl Decider {
    pub(super) fn new(options: &GenerateOptions, vocab_size: usize) -> Result<Self> {
        // The rejection rule alone needs distributions; they hold what top-k leaves.
        let (num_distributions, num_candidates) = match (options.acceptance, options.sampling.top_k) {
            (Acceptance::Match, _) => (0, 0),
            (Acceptance::Rejection, 0) => (options.window, vocab_size),
            (Acceptance::Rejection, top_k) => (options.window, top_k.min(vocab_size)),
        };
        Ok(Self {
            sampler: Sampler::new(options.sampling.clone())?,
            rejection: RejectionSampler::new(options.sampling.seed),
            draft_probabilities: (0..num_distributions).map(|_| Vec::with_capacity(num_candidates)).collect(),
            probabilities: Vec::with_capacity(num_candidates),
        })
    }

    /// What a drafter for the positions from `first` on takes its tokens with.
    pub(super) fn choose(&mut self, acceptance: Acceptance, first: usize, max_drafts: usize) -> Chooser<'_> {
        self.draft_probabilities.iter_mut().for_each(Vec::clear);
        Chooser { decider: self, acceptance, first, max_drafts }
    }

    /// Ends the drafting of a round: a draft of a chain that was not drawn was certain.
    pub(super) fn drafted(&mut self, acceptance: Acceptance, drafts: &Drafts) -> Result<()> {
        if acceptance == Acceptance::Rejection && !drafts.is_chain() {
            return Err(ModelError::TreeRejection);
        }
        for (q, &draft) in self.draft_probabilities.iter_mut().zip(drafts.tokens()).filter(|(q, _)| q.is_empty()) {
            q.push((draft, 1.0));
        }
        Ok(())
    }

    /// Walks from the last known token to the drafts that stay. Ends at a stop token and after as many tokens as are left.
    pub(super) fn decide(
        &mut self,
        options: &GenerateOptions,
        out: &impl Outputs,
        window: WindowInfo<'_>,
        decided: &mut Decided,
    ) -> Result<()> {
        let WindowInfo { first_row, position, drafts, left } = window;
        let Decided { tokens, path, accepted } = decided;
        tokens.clear();
        path.clear();
        *accepted = 0;
        // The draft whose row is looked at.
        let mut node = None;
        loop {
            let row = first_row + node.map_or(0, |node: usize| node + 1);
            let logits = out.token_logits(row).unwrap_or_default();
            let position = (position + tokens.len()) as u64;
            path.push(row);
            let token = match options.acceptance {
                Acceptance::Match => match out.largest(row) {
                    Some(token) => token,
                    None => self.sampler.sample(logits, position)?,
                },
                Acceptance::Rejection => {
                    self.sampler.probabilities(logits, position, &mut self.probabilities)?;
                    match drafts.tokens().get(tokens.len()) {
                        Some(&draft) => {
                            let q = &self.draft_probabilities[tokens.len()];
                            match self.rejection.verify(draft, &self.probabilities, q, position)? {
                                Verdict::Accept => draft,
                                Verdict::Replace(token) => {
                                    tokens.push(token);
                                    return Ok(());
                                }
                            }
                        }
                        None => self.rejection.bonus(&self.probabilities, position)?,
                    }
                }
            };
            tokens.push(token);
            node = drafts.child(node, token);
            *accepted += usize::from(node.is_some());
            if node.is_none() || tokens.len() == left || options.stop_tokens.contains(&token) {
                return Ok(());
            }
        }
    }
}

/// [`Choose`] for the drafts of one round.
pub(super) struct Chooser<'a> {
    decider: &'a mut Decider,
    acceptance: Acceptance,
    first: usize,
    max_drafts: usize,
}

impl Choose for Chooser<'_> {
    fn is_greedy(&self) -> bool {
        self.acceptance == Acceptance::Match && self.decider.sampler.params().temperature == 0.0
    }

    fn token(&mut self, position: u64, logits: &[f32]) -> Result<u32> {
        let Decider { sampler, rejection, draft_probabilities, .. } = &mut *self.decider;
        match self.acceptance {
            Acceptance::Match => sampler.sample(logits, position),
            Acceptance::Rejection => {
                let index = position.wrapping_sub(self.first as u64);
                let Some(q) = usize::try_from(index).ok().and_then(|index| draft_probabilities.get_mut(index)) else {
                    let (min, max) = (self.first, self.first + self.max_drafts - 1);
                    return Err(ModelError::Options { option: "draft position", found: position as usize, min, max });
                };
                sampler.probabilities(logits, position, q)?;
                rejection.draft(q, position)
            }
        }
    }

    fn candidates(
        &mut self,
        position: u64,
        logits: &[f32],
        width: usize,
        candidates: &mut Vec<Candidate>,
    ) -> Result<()> {
        match self.acceptance {
            Acceptance::Match => self.decider.sampler.candidates(logits, position, width, candidates),
            Acceptance::Rejection => Err(ModelError::TreeRejection),
        }
    }
}
