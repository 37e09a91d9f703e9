//! The rejection rule: other tokens, the same distribution, and a cache that is exactly that of its tokens.

use std::collections::BTreeMap;

use undraft_model::Model;
use undraft_model::drafters::{
    Choose, DraftLimits, Drafter, Drafts, LookupDrafter, LookupOptions, MtpDrafter, ScriptedDrafter,
};
use undraft_model::error::Result;
use undraft_model::generate::{Acceptance, GenerateOptions, Generation, Quiet, generate};
use undraft_model::model::{CacheConfig, Forward, HybridCache, Logits};
use undraft_model::sampling::{Sampler, SamplingParams};

use super::trace::{Bench, options};
use super::{REJECTION, count, greedy, load, prompt, sampled};
use crate::runner::{NEXT, ODD, TRAINED, argmax, random_tokens};

fn rejection(sampling: &SamplingParams, window: usize, max_tokens: usize) -> GenerateOptions {
    GenerateOptions { acceptance: Acceptance::Rejection, ..options(sampling, window, max_tokens) }
}

#[test]
fn the_same_seed_gives_the_same_tokens_and_the_cache_is_theirs() {
    let mut rounds = 0;
    for path in [TRAINED, NEXT, ODD] {
        let model = load(path);
        let mut bench = Bench::new(&model);
        let prompt = prompt(path, &model, "chat");
        let mut mtp = MtpDrafter::new(model.mtp().unwrap(), 700).unwrap();
        let mut tokens = Vec::new();
        for (seed, window) in [(1, 3), (2, 3), (3, 8)] {
            let options = rejection(&sampled(seed), window, 40);
            let first = generate(&model, &mut bench.cache, &prompt, &options, Some(&mut mtp), &mut Quiet).unwrap();
            let mut steps = bench.follow(&prompt, first.tokens.len(), &mut |i, _| first.tokens[i]);
            steps.finish = first.finish;
            let second = bench.check(&steps, &options, &mut mtp, &format!("{path}, rejection"));
            assert_eq!((second.generation.rounds, second.generation.accepted), (first.rounds, first.accepted));
            rounds += second.rounds.len();
            tokens.push(first.tokens);
        }
        assert_ne!(tokens[0], tokens[1], "{path}");
    }
    count("rejection", rounds, REJECTION);
}

/// Of one possible token a draft stays only if it is that one.
#[test]
fn greedy_rejection_is_greedy() {
    for path in [NEXT, ODD] {
        let model = load(path);
        let mut bench = Bench::new(&model);
        let prompt = random_tokens(&model, 52, 9).repeat(3);
        let reference = bench.plain(&prompt, &options(&greedy(), 0, 40));
        assert!(bench.plain(&prompt, &rejection(&greedy(), 0, 40)) == reference);
        let mut mtp = MtpDrafter::new(model.mtp().unwrap(), 700).unwrap();
        let mut lookup = LookupDrafter::new(LookupOptions::default());
        for window in [1, 4, 8] {
            bench.check(&reference, &rejection(&greedy(), window, 40), &mut mtp, "MTP");
            bench.check(&reference, &rejection(&greedy(), window, 40), &mut lookup, "lookup");
        }
    }
}

/// Drafts with the trunk itself, its logits made wrong: close enough that drafts stay, far enough that many do not.
struct Perturbed<'m> {
    model: &'m Model,
    cache: HybridCache,
    out: Forward,
    tokens: Vec<u32>,
    /// Whether every other draft is the likeliest token instead of a drawn one.
    mixed: bool,
}

impl Perturbed<'_> {
    fn new(model: &Model, mixed: bool) -> Perturbed<'_> {
        let cache = model.new_cache(CacheConfig { capacity: 32, max_window: 1 }).unwrap();
        Perturbed { model, cache, out: Forward::new(), tokens: Vec::new(), mixed }
    }
}

impl Drafter for Perturbed<'_> {
    fn begin(&mut self, first_token: u32) -> Result<()> {
        self.tokens = vec![first_token];
        Ok(())
    }
    fn observe(&mut self, _hidden: &[f32], next_tokens: &[u32]) -> Result<()> {
        self.tokens.extend_from_slice(next_tokens);
        Ok(())
    }
    fn propose(&mut self, limits: DraftLimits, choose: &mut dyn Choose, drafts: &mut Drafts) -> Result<()> {
        self.cache.reset()?;
        self.model.prefill(&mut self.cache, &self.tokens, Logits::Last, &mut self.out, &mut |_| Ok(()))?;
        while drafts.len() < limits.max_depth {
            let bend = |(id, logit): (usize, &f32)| 0.5 * logit + 0.3 * (id % 3) as f32;
            let logits: Vec<f32> = self.out.logits().iter().enumerate().map(bend).collect();
            let position = (self.tokens.len() + drafts.len()) as u64;
            let certain = self.mixed && position.is_multiple_of(2);
            let draft = if certain { argmax(&logits) } else { choose.token(position, &logits)? };
            drafts.push(draft);
            self.model.decode(&mut self.cache, draft, &mut self.out)?;
        }
        Ok(())
    }
}

type Distribution = BTreeMap<Vec<u32>, f64>;

/// Probabilities of all continuations of a prompt, from the logits.
fn exact(model: &Model, prompt: &[u32], sampling: &SamplingParams, num_tokens: usize) -> Distribution {
    let mut cache = model.new_cache(CacheConfig { capacity: 32, max_window: 1 }).unwrap();
    let (mut out, mut sampler) = (Forward::new(), Sampler::new(sampling.clone()).unwrap());
    let mut all = Distribution::from([(Vec::new(), 1.0)]);
    for _ in 0..num_tokens {
        let mut longer = Distribution::new();
        for (tokens, probability) in all {
            cache.reset().unwrap();
            let sequence = [prompt, &tokens].concat();
            model.prefill(&mut cache, &sequence, Logits::Last, &mut out, &mut |_| Ok(())).unwrap();
            let mut next = Vec::new();
            sampler.probabilities(out.logits(), 0, &mut next).unwrap();
            longer.extend(next.iter().map(|&(token, p)| ([&tokens[..], &[token]].concat(), probability * p)));
        }
        all = longer;
    }
    all
}

/// Probabilities of the last of the tokens alone.
fn last_token(all: &Distribution) -> Distribution {
    let mut last = Distribution::new();
    for (tokens, p) in all {
        *last.entry(tokens[tokens.len() - 1..].to_vec()).or_default() += p;
    }
    last
}

fn distance(a: &Distribution, b: &Distribution) -> f64 {
    let of = |distribution: &Distribution, key| distribution.get(key).copied().unwrap_or(0.0);
    let only_b: f64 = b.iter().filter(|(key, _)| !a.contains_key(*key)).map(|(_, p)| p).sum();
    0.5 * (a.iter().map(|(key, p)| (p - of(b, key)).abs()).sum::<f64>() + only_b)
}

/// Total variation distance that `n` independent draws of `k` outcomes stay below but for one time in a million.
///
/// The mean is at most half the sum of the frequencies' standard deviations, which is at most `sqrt((k - 1) / n) / 2`.
/// One draw changes the distance by at most 1 / n, so by McDiarmid it exceeds its mean by e with probability
/// `exp(-2 n e^2)` at most.
fn bound(n: usize, k: usize) -> f64 {
    let (n, k) = (n as f64, k as f64);
    0.5 * ((k - 1.0) / n).sqrt() + (1e6f64.ln() / (2.0 * n)).sqrt()
}

/// Distribution of the first tokens over seeds, and the share of drafts that stay.
fn observed(
    model: &Model,
    prompt: &[u32],
    options: &GenerateOptions,
    seeds: usize,
    num_tokens: usize,
    drafter: &mut dyn Drafter,
) -> (Distribution, f64) {
    let mut cache = model.new_cache(CacheConfig { capacity: 32, max_window: 9 }).unwrap();
    let (mut counts, mut drafted, mut accepted) = (Distribution::new(), 0, 0);
    for seed in 0..seeds as u64 {
        let sampling = SamplingParams { seed, ..options.sampling.clone() };
        let options = GenerateOptions { sampling, ..options.clone() };
        let run: Generation = generate(model, &mut cache, prompt, &options, Some(&mut *drafter), &mut Quiet).unwrap();
        *counts.entry(run.tokens[..num_tokens].to_vec()).or_default() += 1.0 / seeds as f64;
        drafted += run.drafted;
        accepted += run.accepted;
    }
    (counts, accepted as f64 / drafted as f64)
}

#[test]
fn the_distribution_is_that_of_plain_sampling() {
    let model = load(NEXT);
    let prompt = random_tokens(&model, 53, 5);
    let sampling = SamplingParams { temperature: 1.5, top_k: 4, top_p: 1.0, seed: 0 };
    let seeds = 1500;
    // The first token comes without drafts; the next two from one window, whose drafts all may stay.
    let want = exact(&model, &prompt, &sampling, 2);
    assert_eq!(want.len(), 16);
    let options = rejection(&sampling, 2, 4);
    let likeliest = |known: &[u32], k: usize| {
        let behind = want.iter().filter(|(tokens, _)| tokens[..1] == known[prompt.len()..]);
        let best = behind.max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(tokens, _)| tokens[1]);
        vec![best; k]
    };
    let drafters: [(&str, Box<dyn Drafter>); 5] = [
        ("perturbed trunk", Box::new(Perturbed::new(&model, false))),
        ("drawn and certain drafts", Box::new(Perturbed::new(&model, true))),
        ("MTP", Box::new(MtpDrafter::new(model.mtp().unwrap(), 32).unwrap())),
        ("likeliest token", Box::new(ScriptedDrafter::new(likeliest))),
        ("never possible", Box::new(ScriptedDrafter::new(|known: &[u32], k| vec![known[0]; k]))),
    ];
    for (name, mut drafter) in drafters {
        let (got, share) = observed(&model, &prompt, &options, seeds, 2, &mut *drafter);
        let pairs = distance(&got, &want);
        let second = distance(&last_token(&got), &last_token(&want));
        println!("{name}: distance {pairs:.3} of pairs, {second:.3} of second tokens, {share:.2} of the drafts stay");
        assert!(pairs < bound(seeds, 16), "{name}: {pairs}");
        assert!(second < bound(seeds, last_token(&want).len()), "{name}: {second}");
        if name == "perturbed trunk" {
            assert!((0.3..0.95).contains(&share), "{share}");
        }
    }
}

/// Windows in a row: what one round leaves undrawn does not colour the next.
#[test]
fn longer_texts_have_the_distribution_too() {
    let model = load(NEXT);
    let prompt = random_tokens(&model, 54, 4);
    let sampling = SamplingParams { temperature: 1.5, top_k: 2, top_p: 1.0, seed: 0 };
    let (seeds, num_tokens) = (2000, 4);
    let want = exact(&model, &prompt, &sampling, num_tokens);
    assert_eq!(want.len(), 16);
    for mixed in [false, true] {
        let mut drafter = Perturbed::new(&model, mixed);
        let (got, share) = observed(&model, &prompt, &rejection(&sampling, 3, 6), seeds, num_tokens, &mut drafter);
        let distance = distance(&got, &want);
        println!("mixed drafts: {mixed}: distance {distance:.3}, {share:.2} of the drafts stay");
        assert!(distance < bound(seeds, want.len()), "{mixed}: {distance}");
    }
}

#[test]
fn more_drafts_stay_than_by_matching() {
    let model = load(TRAINED);
    let mut bench = Bench::new(&model);
    let mut mtp = MtpDrafter::new(model.mtp().unwrap(), 700).unwrap();
    let mut accepted = [0; 2];
    let mut rounds = [0; 2];
    for name in ["code", "chat", "english"] {
        let prompt = prompt(TRAINED, &model, name);
        for seed in 0..4 {
            let sampling = SamplingParams { temperature: 0.8, seed, ..greedy() };
            let by = [options(&sampling, 3, 64), rejection(&sampling, 3, 64)];
            for (i, options) in by.iter().enumerate() {
                let run = generate(&model, &mut bench.cache, &prompt, options, Some(&mut mtp), &mut Quiet).unwrap();
                accepted[i] += run.accepted;
                rounds[i] += run.rounds;
            }
        }
    }
    let mean = |i: usize| accepted[i] as f64 / rounds[i] as f64;
    println!("accepted drafts a round: {:.3} by matching, {:.3} by rejection", mean(0), mean(1));
    assert!(mean(1) >= mean(0) && mean(0) > 0.5, "{} {}", mean(0), mean(1));
}
