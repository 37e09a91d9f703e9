//! The likeliest draws of a position, for draft trees.

use super::noise::{GumbelNoise, MAX_GUMBEL};
use super::{Sampler, Scale, argmax};
use crate::error::Result;

/// A token that a position may get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The token.
    pub token: u32,
    /// Logarithm of how likely it is, at most 0.
    pub log_weight: f64,
}

/// Tokens that weights of sampled candidates are relative to, at the least.
const MIN_RANKED: usize = 8;

impl Sampler {
    /// Clears `candidates` and fills it with the up to `width` tokens that [`Sampler::sample`] would take first from
    /// logits like these, best first: the first one is what it takes.
    ///
    /// Greedy ranks by logit and weighs by the softmax of all logits. Otherwise the noise of the position counts, for it is
    /// the same for the logits that decide: tokens that the filters keep are ranked by `logit / temperature + gumbel`, and
    /// weighed by the softmax of these sums over the best `max(width, 8)`.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn candidates(
        &mut self,
        logits: &[f32],
        position: u64,
        width: usize,
        candidates: &mut Vec<Candidate>,
    ) -> Result<()> {
        candidates.clear();
        let top = argmax(logits, position)?;
        let max = logits[top as usize];
        if self.params.temperature == 0.0 {
            let total: f64 = logits.iter().map(|&logit| f64::from((logit - max).exp())).sum();
            let scores = (0..).zip(logits).map(|(id, &logit)| (id, f64::from(logit) - f64::from(max)));
            let mut best = Best { candidates, len: width };
            scores.for_each(|(id, score)| best.offer(id, score));
            candidates.iter_mut().for_each(|candidate| candidate.log_weight -= total.ln());
            return Ok(());
        }
        let scale = Scale { max, temperature: self.params.temperature };
        let mut noise = GumbelNoise::new(self.params.seed, position);
        let mut best = Best { candidates, len: width.max(MIN_RANKED) };
        let mut offer = |id: u32| {
            let score = scale.score(logits[id as usize]);
            if !best.could_take(score + MAX_GUMBEL) {
                return;
            }
            let bits = noise.bits(id);
            // The logarithms are taken of the few tokens whose noise could suffice.
            if best.could_take(score + GumbelNoise::upper_bound(bits)) {
                best.offer(id, score + GumbelNoise::gumbel(bits));
            }
        };
        if self.filters(logits.len()) {
            self.keep(logits, scale);
            self.kept.iter().for_each(|&id| offer(id));
        } else {
            (0..logits.len() as u32).for_each(offer);
        }
        let first = candidates.first().map_or(0.0, |best| best.log_weight);
        let total: f64 = candidates.iter().map(|candidate| (candidate.log_weight - first).exp()).sum();
        candidates.truncate(width);
        candidates.iter_mut().for_each(|candidate| candidate.log_weight -= first + total.ln());
        Ok(())
    }
}

/// The best tokens so far, best first; of equal ones the lowest id. Their scores stand for their weights.
struct Best<'a> {
    candidates: &'a mut Vec<Candidate>,
    len: usize,
}

impl Best<'_> {
    /// Whether a score of up to `bound` could have a place.
    fn could_take(&self, bound: f64) -> bool {
        // Covers the rounding of scores, bounds and noise, all below 2^6 where it matters.
        const MARGIN: f64 = 1e-9;
        let worst = self.candidates.last().filter(|_| self.candidates.len() == self.len);
        worst.is_none_or(|worst| bound + MARGIN >= worst.log_weight) && bound > f64::NEG_INFINITY
    }

    /// Ids come rising, so that of equal scores the first one stays ahead.
    fn offer(&mut self, token: u32, score: f64) {
        if score == f64::NEG_INFINITY {
            return;
        }
        let place = self.candidates.partition_point(|other| other.log_weight >= score);
        if place < self.len {
            self.candidates.truncate(self.len - 1);
            self.candidates.insert(place, Candidate { token, log_weight: score });
        }
    }
}
