//! Drawing a token from logits, with random numbers that belong to the position and not to the call.
//!
//! Every random number here is a function of (seed, position) and of what it is for, so a position draws the same
//! token whether its logits came from a single step or from a window, and in any order of calls. That is what makes
//! sampled text the same token for token with and without speculation.

mod candidates;
mod noise;
mod rejection;

pub use candidates::Candidate;
pub use rejection::{RejectionSampler, Verdict};

use crate::error::{LogitsProblem, ModelError, Result};
use noise::{GumbelNoise, MAX_GUMBEL};

/// How tokens are drawn. The default is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; finite, >= 0. At 0 the most likely token is taken, and nothing else here matters.
    pub temperature: f64,
    /// Keeps this many of the most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Then keeps the fewest most likely tokens whose probabilities reach this; in (0, 1], 1 keeps all.
    pub top_p: f64,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 }
    }
}

impl SamplingParams {
    /// Checks the ranges.
    ///
    /// # Errors
    /// [`ModelError::SamplingParam`].
    pub fn check(&self) -> Result<()> {
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            let (name, found, expected) = ("temperature", self.temperature, "a finite number, 0 (greedy) or above");
            return Err(ModelError::SamplingParam { name, found, expected });
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            let (name, found, expected) = ("top_p", self.top_p, "a number above 0 and up to 1");
            return Err(ModelError::SamplingParam { name, found, expected });
        }
        Ok(())
    }
}

/// Draws tokens from logits by the Gumbel-max rule.
///
/// The token drawn is the one of largest `logit / temperature + gumbel(seed, position, token)` among the tokens that
/// top-k and top-p keep. This has exactly the distribution of the filtered softmax, and the noise of a token does not
/// depend on the logits. So a drafter that adds the *same* noise to its own logits guesses the draw more often than one
/// that samples on its own: with target p and draft q of total variation distance d, the two draws agree with a
/// probability of at least (1 - d) / (1 + d), where independent draws agree with probability sum(p * q) alone.
///
/// Nothing is allocated once the scratch has grown to the vocabulary.
///
/// ```
/// use undraft_model::sampling::{Sampler, SamplingParams};
/// let params = SamplingParams { temperature: 0.8, seed: 7, ..SamplingParams::default() };
/// let mut sampler = Sampler::new(params)?;
/// let logits = [1.0, 3.0, 2.0];
/// let token = sampler.sample(&logits, 100)?;
/// assert_eq!(sampler.sample(&logits, 100)?, token); // the position decides, not the number of calls
/// # Ok::<(), undraft_model::ModelError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    /// Scratch: tokens as sortable keys.
    ranked: Vec<u64>,
    /// Scratch: kept tokens, rising.
    kept: Vec<u32>,
}

impl Sampler {
    /// A sampler with these parameters.
    ///
    /// # Errors
    /// [`ModelError::SamplingParam`].
    pub fn new(params: SamplingParams) -> Result<Self> {
        params.check()?;
        Ok(Self { params, ranked: Vec::new(), kept: Vec::new() })
    }

    /// The parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// The token of `position`, drawn from the `logits` (one per token id) of the position before it.
    ///
    /// Greedy (temperature 0) takes the largest logit; of equal ones always the lowest id wins. A logit of minus
    /// infinity is never drawn.
    ///
    /// # Errors
    /// [`ModelError::Logits`] if there are none, one is NaN or plus infinity, or all are minus infinity.
    pub fn sample(&mut self, logits: &[f32], position: u64) -> Result<u32> {
        let top = argmax(logits, position)?;
        if self.params.temperature == 0.0 {
            return Ok(top);
        }
        let scale = Scale { max: logits[top as usize], temperature: self.params.temperature };
        let noise = GumbelNoise::new(self.params.seed, position);
        if self.filters(logits.len()) {
            self.keep(logits, scale);
            let kept = self.kept.iter().map(|&id| (id, logits[id as usize]));
            return Ok(gumbel_max(kept, top, scale, noise));
        }
        Ok(gumbel_max((0..).zip(logits.iter().copied()), top, scale, noise))
    }

    /// The distribution that [`Sampler::sample`] draws from: tokens by rising id with their probabilities, after
    /// temperature, top-k and top-p. Greedy is one token of probability 1.
    ///
    /// `position` only names the logits in errors; `probabilities` is cleared first.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn probabilities(&mut self, logits: &[f32], position: u64, probabilities: &mut Vec<(u32, f64)>) -> Result<()> {
        probabilities.clear();
        let top = argmax(logits, position)?;
        if self.params.temperature == 0.0 {
            probabilities.push((top, 1.0));
            return Ok(());
        }
        let scale = Scale { max: logits[top as usize], temperature: self.params.temperature };
        if self.filters(logits.len()) {
            self.keep(logits, scale);
            probabilities.extend(self.kept.iter().map(|&id| (id, scale.weight(logits[id as usize]))));
        } else {
            probabilities.extend((0..).zip(logits.iter().map(|&logit| scale.weight(logit))));
        }
        let total: f64 = probabilities.iter().map(|&(_, weight)| weight).sum();
        probabilities.iter_mut().for_each(|(_, weight)| *weight /= total);
        Ok(())
    }

    /// Whether top-k or top-p may leave out any of `vocab_size` tokens.
    fn filters(&self, vocab_size: usize) -> bool {
        (1..vocab_size).contains(&self.params.top_k) || self.params.top_p < 1.0
    }

    /// Fills `kept` with the tokens that top-k and top-p leave, rising.
    fn keep(&mut self, logits: &[f32], scale: Scale) {
        let Self { params, ranked, kept } = self;
        ranked.clear();
        ranked.extend((0..).zip(logits).filter(|&(_, &logit)| logit > f32::NEG_INFINITY).map(rank_key));
        if (1..ranked.len()).contains(&params.top_k) {
            ranked.select_nth_unstable_by(params.top_k - 1, |a, b| b.cmp(a));
            ranked.truncate(params.top_k);
        }
        kept.clear();
        kept.reserve(ranked.len());
        if params.top_p < 1.0 {
            let nucleus = nucleus_len(ranked, params.top_p, |id| scale.weight(logits[id as usize]));
            ranked.truncate(nucleus);
        }
        kept.extend(ranked.iter().map(|&key| rank_id(key)));
        kept.sort_unstable();
    }
}

/// Logits relative to the largest, over the temperature; at most 0, so nothing overflows at any temperature.
#[derive(Clone, Copy)]
struct Scale {
    max: f32,
    temperature: f64,
}

impl Scale {
    fn score(self, logit: f32) -> f64 {
        (f64::from(logit) - f64::from(self.max)) / self.temperature
    }

    /// Probability over the probability of the likeliest token.
    fn weight(self, logit: f32) -> f64 {
        self.score(logit).exp()
    }
}

/// The first token of largest logit.
fn argmax(logits: &[f32], position: u64) -> Result<u32> {
    // Independent lanes, so that the maximum and the test run on vectors.
    const LANES: usize = 16;
    let refuse = |problem| ModelError::Logits { position, problem };
    if logits.is_empty() || u32::try_from(logits.len()).is_err() {
        return Err(refuse(LogitsProblem::Count { len: logits.len() }));
    }
    let (blocks, rest) = logits.as_chunks::<LANES>();
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut bad = [false; LANES];
    for block in blocks {
        for lane in 0..LANES {
            max[lane] = if block[lane] > max[lane] { block[lane] } else { max[lane] };
            bad[lane] |= is_bad(block[lane]);
        }
    }
    if bad.contains(&true) || rest.iter().copied().any(is_bad) {
        let id = logits.iter().position(|&logit| is_bad(logit)).unwrap_or(0);
        return Err(refuse(LogitsProblem::NotANumber { id, value: logits[id] }));
    }
    let max = max.iter().chain(rest).fold(f32::NEG_INFINITY, |max, &logit| max.max(logit));
    if max == f32::NEG_INFINITY {
        return Err(refuse(LogitsProblem::AllMasked));
    }
    Ok(logits.iter().position(|&logit| logit == max).unwrap_or(0) as u32)
}

/// NaN or plus infinity.
fn is_bad(logit: f32) -> bool {
    logit.is_nan() || logit == f32::INFINITY
}

/// The candidate of largest score plus noise, of equal ones the lowest id; `top` is the candidate of largest logit.
fn gumbel_max(candidates: impl Iterator<Item = (u32, f32)>, top: u32, scale: Scale, mut noise: GumbelNoise) -> u32 {
    // Covers the rounding of scores, bounds and noise, all below 2^6 where it matters.
    const MARGIN: f64 = 1e-9;
    let mut best = (GumbelNoise::gumbel(noise.clone().bits(top)), top);
    for (id, logit) in candidates {
        let score = scale.score(logit);
        if score + MAX_GUMBEL + MARGIN < best.0 {
            continue;
        }
        let bits = noise.bits(id);
        // The logarithms are taken of the few candidates whose noise could suffice.
        if score + GumbelNoise::upper_bound(bits) + MARGIN < best.0 {
            continue;
        }
        let total = score + GumbelNoise::gumbel(bits);
        if total > best.0 || (total == best.0 && id < best.1) {
            best = (total, id);
        }
    }
    best.1
}

/// A key whose order is by logit, then by falling id.
fn rank_key((id, &logit): (u32, &f32)) -> u64 {
    // Adding 0 makes -0 equal to 0. Flipping all bits of negative floats and the sign of others sorts them as integers.
    let bits = (logit + 0.0).to_bits();
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(!id)
}

fn rank_id(key: u64) -> u32 {
    !(key as u32)
}

/// Sorts as much of `ranked` as needed, likeliest first, and returns how many tokens reach `top_p` of the whole weight.
fn nucleus_len(ranked: &mut [u64], top_p: f64, weight: impl Fn(u32) -> f64) -> usize {
    let needed = top_p * ranked.iter().map(|&key| weight(rank_id(key))).sum::<f64>();
    let (mut sorted, mut reached, mut block) = (0, 0.0, 64);
    while sorted < ranked.len() {
        let rest = &mut ranked[sorted..];
        let len = block.min(rest.len());
        if len < rest.len() {
            rest.select_nth_unstable_by(len - 1, |a, b| b.cmp(a));
        }
        rest[..len].sort_unstable_by(|a, b| b.cmp(a));
        for &key in &rest[..len] {
            sorted += 1;
            reached += weight(rank_id(key));
            if reached >= needed {
                return sorted;
            }
        }
        block *= 8;
    }
    sorted
}

#[cfg(test)]
mod tests;
