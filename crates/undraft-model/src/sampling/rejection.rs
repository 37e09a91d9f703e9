//! Speculative rejection sampling: drafts from any distribution, output exactly from the target's.

use super::noise::{Purpose, uniform};
use crate::error::{DistributionProblem, ModelError, Result};

/// What became of a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The draft stays.
    Accept,
    /// This token stands in its place, and all drafts behind it are void.
    Replace(u32),
}

/// The standard rejection rule: a draft x, drawn from q, stays with probability min(1, p(x) / q(x)); otherwise a token
/// is drawn from the normalised positive part of p - q. The token of a position is then distributed as p, whatever q.
///
/// Distributions are tokens by rising id with their probabilities, as [`super::Sampler::probabilities`] gives them;
/// tokens that are not listed have probability 0. A drafter that always makes the same draft has `[(draft, 1.0)]`.
///
/// Random numbers belong to (seed, position, purpose). A position that is drafted anew after a rejection draws with the
/// same numbers again; that is sound, for the void draft behind a rejection had no part in any token before it.
///
/// Unlike [`super::Sampler::sample`] on the target's logits, this gives the target's distribution but not the very
/// tokens of plain sampling.
#[derive(Clone, Copy, Debug)]
pub struct RejectionSampler {
    seed: u64,
}

impl RejectionSampler {
    /// A sampler with this seed.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// A drafter's draw from `q` for `position`, independent of what decides about it.
    ///
    /// # Errors
    /// [`ModelError::Distribution`].
    pub fn draft(&self, q: &[(u32, f64)], position: u64) -> Result<u32> {
        draw_from("q", q, position, uniform(self.seed, Purpose::Draft, position))
    }

    /// Decides about `draft` for `position`, drawn from `q`, under the target's `p`.
    ///
    /// # Errors
    /// [`ModelError::Distribution`] if `p` or `q` is none, or `q` gives `draft` no probability.
    pub fn verify(&self, draft: u32, p: &[(u32, f64)], q: &[(u32, f64)], position: u64) -> Result<Verdict> {
        check("p", p, position)?;
        check("q", q, position)?;
        let q_draft = probability(q, draft);
        if q_draft == 0.0 {
            let problem = DistributionProblem::ImpossibleDraft { id: draft };
            return Err(ModelError::Distribution { name: "q", position, problem });
        }
        if uniform(self.seed, Purpose::Accept, position) * q_draft < probability(p, draft) {
            return Ok(Verdict::Accept);
        }
        let u = uniform(self.seed, Purpose::Replace, position);
        match draw(residual(p, q), u) {
            Some(token) => Ok(Verdict::Replace(token)),
            // p and q that differ by rounding alone may leave nothing above q; p itself is then the limit.
            None => draw_from("p", p, position, u).map(Verdict::Replace),
        }
    }

    /// The token behind a window whose drafts all stay, or without drafts: a draw from `p`.
    ///
    /// # Errors
    /// [`ModelError::Distribution`].
    pub fn bonus(&self, p: &[(u32, f64)], position: u64) -> Result<u32> {
        draw_from("p", p, position, uniform(self.seed, Purpose::Replace, position))
    }
}

fn probability(distribution: &[(u32, f64)], token: u32) -> f64 {
    distribution.binary_search_by_key(&token, |&(id, _)| id).map_or(0.0, |i| distribution[i].1)
}

/// The positive part of `p - q`; both rise.
fn residual<'a>(p: &'a [(u32, f64)], q: &'a [(u32, f64)]) -> impl Iterator<Item = (u32, f64)> + Clone + 'a {
    let mut q = q.iter().copied().peekable();
    p.iter().map(move |&(id, p)| {
        while q.next_if(|&(other, _)| other < id).is_some() {}
        let q = q.next_if(|&(other, _)| other == id).map_or(0.0, |(_, q)| q);
        (id, (p - q).max(0.0))
    })
}

/// The token at `u` of the weights laid end to end; none if all are 0.
fn draw(weights: impl Iterator<Item = (u32, f64)> + Clone, u: f64) -> Option<u32> {
    let total: f64 = weights.clone().map(|(_, weight)| weight).sum();
    let mut rest = u * total;
    let mut last = None;
    for (id, weight) in weights.filter(|&(_, weight)| weight > 0.0) {
        last = Some(id);
        if rest < weight {
            break;
        }
        rest -= weight;
    }
    // Rounding may leave some rest behind the last token.
    last
}

/// The token at `u` of a distribution laid end to end.
fn draw_from(name: &'static str, distribution: &[(u32, f64)], position: u64, u: f64) -> Result<u32> {
    check(name, distribution, position)?;
    draw(distribution.iter().copied(), u).ok_or_else(|| {
        let problem = DistributionProblem::Sum { sum: 0.0 };
        ModelError::Distribution { name, position, problem }
    })
}

fn check(name: &'static str, distribution: &[(u32, f64)], position: u64) -> Result<()> {
    let refuse = |problem| Err(ModelError::Distribution { name, position, problem });
    let mut sum = 0.0;
    let mut previous = None;
    for &(id, value) in distribution {
        if let Some(previous) = previous.filter(|&previous| previous >= id) {
            return refuse(DistributionProblem::Order { id, previous });
        }
        if !(0.0..=1.0 + 1e-6).contains(&value) {
            return refuse(DistributionProblem::Value { id, value });
        }
        previous = Some(id);
        sum += value;
    }
    if (sum - 1.0).abs() > 1e-6 {
        return refuse(DistributionProblem::Sum { sum });
    }
    Ok(())
}
