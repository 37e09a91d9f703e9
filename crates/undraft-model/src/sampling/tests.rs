use proptest::prelude::*;

use super::*;

fn sampler(temperature: f64, top_k: usize, top_p: f64, seed: u64) -> Sampler {
    Sampler::new(SamplingParams { temperature, top_k, top_p, seed }).unwrap()
}

fn probabilities(sampler: &mut Sampler, logits: &[f32]) -> Vec<(u32, f64)> {
    let mut probabilities = Vec::new();
    sampler.probabilities(logits, 0, &mut probabilities).unwrap();
    probabilities
}

/// Pearson's statistic of `counts` of tokens against `expected`, and its degrees of freedom.
fn chi_square(counts: &[u64], expected: &[(u32, f64)]) -> (f64, f64) {
    let n = counts.iter().sum::<u64>() as f64;
    let mut seen = 0;
    let terms = expected.iter().filter(|&&(_, p)| p > 0.0).map(|&(id, p)| {
        seen += counts[id as usize];
        (counts[id as usize] as f64 - n * p).powi(2) / (n * p)
    });
    let terms: Vec<f64> = terms.collect();
    assert_eq!(seen as f64, n, "a token of probability 0 was drawn");
    (terms.iter().sum(), terms.len() as f64 - 1.0)
}

/// Five standard deviations above the mean of a chi-square variable: about one false alarm in 10^5, and seeds are fixed.
fn assert_fits(counts: &[u64], expected: &[(u32, f64)]) {
    let (statistic, freedom) = chi_square(counts, expected);
    assert!(statistic < freedom + 5.0 * (2.0 * freedom).sqrt() + 5.0, "chi-square {statistic} of {freedom}");
}

#[test]
fn greedy_takes_the_first_of_the_largest() {
    let mut greedy = sampler(0.0, 3, 0.5, 1);
    assert_eq!(greedy.sample(&[1.0, 4.0, 4.0, -2.0], 0).unwrap(), 1);
    assert_eq!(greedy.sample(&[-0.0, 0.0], 0).unwrap(), 0);
    assert_eq!(probabilities(&mut greedy, &[1.0, 4.0, 4.0]), [(1, 1.0)]);
    let mut long = vec![0.0; 1000];
    long[999] = 1.0;
    assert_eq!(greedy.sample(&long, 0).unwrap(), 999);
}

#[test]
fn bad_logits_are_refused() {
    for temperature in [0.0, 1.0] {
        let mut sampler = sampler(temperature, 0, 1.0, 1);
        for (logits, words) in [
            (vec![], "0 of them"),
            (vec![0.0, f32::NAN], "token 1 is NaN"),
            (vec![f32::INFINITY, 0.0], "token 0 is inf"),
            (vec![f32::NEG_INFINITY; 40], "every logit"),
            ([vec![0.0; 33], vec![f32::NAN], vec![0.0; 33]].concat(), "token 33 is NaN"),
        ] {
            let message = sampler.sample(&logits, 12).unwrap_err().to_string();
            assert!(message.contains(words) && message.contains("position 12"), "{message}");
            assert!(sampler.probabilities(&logits, 12, &mut Vec::new()).is_err());
        }
    }
}

#[test]
fn bad_parameters_are_refused() {
    let good = SamplingParams::default();
    for (params, name) in [
        (SamplingParams { temperature: -0.1, ..good.clone() }, "temperature"),
        (SamplingParams { temperature: f64::NAN, ..good.clone() }, "temperature"),
        (SamplingParams { temperature: f64::INFINITY, ..good.clone() }, "temperature"),
        (SamplingParams { top_p: 0.0, ..good.clone() }, "top_p"),
        (SamplingParams { top_p: 1.1, ..good.clone() }, "top_p"),
        (SamplingParams { top_p: f64::NAN, ..good.clone() }, "top_p"),
    ] {
        let message = Sampler::new(params).unwrap_err().to_string();
        assert!(message.contains(name), "{message}");
    }
}

#[test]
fn filters_keep_what_they_say() {
    let logits = [0.0f32, 3.0, 1.0, 2.0, 2.0, f32::NEG_INFINITY];
    let ids = |sampler: &mut Sampler| probabilities(sampler, &logits).iter().map(|&(id, _)| id).collect::<Vec<_>>();
    assert_eq!(ids(&mut sampler(1.0, 2, 1.0, 0)), [1, 3]); // of the equal 3 and 4 the lower
    assert_eq!(ids(&mut sampler(1.0, 3, 1.0, 0)), [1, 3, 4]);
    // Weights relative to the largest: 1, 0.368, 0.368, 0.135, 0.050; the first is 0.52 of the whole, two are 0.71.
    assert_eq!(ids(&mut sampler(1.0, 0, 0.5, 0)), [1]);
    assert_eq!(ids(&mut sampler(1.0, 0, 0.6, 0)), [1, 3]);
    assert_eq!(ids(&mut sampler(1.0, 0, 1e-9, 0)), [1]);
    assert_eq!(ids(&mut sampler(1.0, 2, 0.9, 0)), [1, 3]);
    assert_eq!(ids(&mut sampler(1.0, 9, 0.999999, 0)), [0, 1, 2, 3, 4]);
    let all = probabilities(&mut sampler(0.5, 0, 1.0, 0), &logits);
    assert_eq!(all.len(), 6);
    assert_eq!(all[5].1, 0.0);
    assert!((all.iter().map(|&(_, p)| p).sum::<f64>() - 1.0).abs() < 1e-12);
    assert!((all[1].1 / all[3].1 - 2f64.exp()).abs() < 1e-12);
}

#[test]
fn a_tiny_temperature_is_greedy() {
    let logits = [0.5, 2.0, 1.9999];
    for temperature in [1e-9, 1e-300, f64::MIN_POSITIVE / 4.0] {
        for (top_k, top_p) in [(0, 1.0), (2, 1.0), (0, 0.9)] {
            assert_eq!(sampler(temperature, top_k, top_p, 3).sample(&logits, 5).unwrap(), 1);
        }
    }
}

#[test]
fn draws_have_the_distribution_of_the_softmax() {
    let logits: Vec<f32> = (0..12).map(|i| ((i * 7) % 5) as f32 * 0.9).collect();
    for (temperature, top_k, top_p) in [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.3, 5, 1.0), (1.0, 0, 0.8), (2.0, 9, 0.7)] {
        let mut sampler = sampler(temperature, top_k, top_p, 42);
        let mut counts = [0; 12];
        for position in 0..40_000 {
            counts[sampler.sample(&logits, position).unwrap() as usize] += 1;
        }
        assert_fits(&counts, &probabilities(&mut sampler, &logits));
    }
}

#[test]
fn seeds_and_positions_differ() {
    let logits = [0.0; 64];
    let draws = |seed, from: u64| {
        let mut sampler = sampler(1.0, 0, 1.0, seed);
        (from..from + 50).map(|position| sampler.sample(&logits, position).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(draws(1, 0), draws(1, 0));
    assert_ne!(draws(1, 0), draws(2, 0));
    assert_ne!(draws(1, 0), draws(1, 1 << 40));
    assert_eq!(draws(1, 0)[10..], draws(1, 10)[..40]);
}

#[test]
fn shared_noise_agrees_more_often_than_independent_draws() {
    let target: Vec<f32> = (0..30).map(|i| ((i * 11) % 7) as f32 * 0.8).collect();
    let draft: Vec<f32> = target.iter().enumerate().map(|(i, x)| x + ((i * 5) % 3) as f32 * 0.4).collect();
    let (mut first, mut second) = (sampler(1.0, 0, 1.0, 9), sampler(1.0, 0, 1.0, 9));
    let (p, q) = (probabilities(&mut first, &target), probabilities(&mut second, &draft));
    let independent: f64 = p.iter().zip(&q).map(|(p, q)| p.1 * q.1).sum();
    let distance = 0.5 * p.iter().zip(&q).map(|(p, q)| (p.1 - q.1).abs()).sum::<f64>();
    let n = 20_000;
    let same = |position: &u64| first.sample(&target, *position).unwrap() == second.sample(&draft, *position).unwrap();
    let agreed = (0..n).filter(same).count() as f64 / n as f64;
    assert!(agreed > (1.0 - distance) / (1.0 + distance) - 0.01, "{agreed} at distance {distance}");
    assert!(agreed > 3.0 * independent, "{agreed} against {independent}");
}

/// The Gumbel-max rule without any short cut.
fn naive_draw(logits: &[f32], kept: &[(u32, f64)], temperature: f64, seed: u64, position: u64) -> u32 {
    let mut noise = GumbelNoise::new(seed, position);
    let max = logits.iter().fold(f32::NEG_INFINITY, |max, &x| max.max(x));
    let mut best = (f64::NEG_INFINITY, u32::MAX);
    for &(id, _) in kept.iter().filter(|&&(_, p)| p > 0.0) {
        let score = Scale { max, temperature }.score(logits[id as usize]) + GumbelNoise::gumbel(noise.bits(id));
        if score > best.0 {
            best = (score, id);
        }
    }
    best.1
}

proptest! {
    #[test]
    fn candidates_are_the_best_of_a_full_ranking(
        logits in prop::collection::vec(-12i32..12, 1..300),
        temperature in 0.05f64..3.0, top_k in 0usize..50, top_p in 0.05f64..1.2,
        width in 0usize..12, seed: u64, position: u64,
    ) {
        // Halves, so that some are equal.
        let mut logits: Vec<f32> = logits.iter().map(|&x| x as f32 * 0.5).collect();
        if logits.len() > 2 {
            logits[1] = f32::NEG_INFINITY;
        }
        let max = logits.iter().fold(f32::NEG_INFINITY, |max, &x| max.max(x));
        for temperature in [0.0, temperature] {
            let mut sampler = sampler(temperature, top_k, top_p.min(1.0), seed);
            let mut got = Vec::new();
            sampler.candidates(&logits, position, width, &mut got).unwrap();
            let mut noise = GumbelNoise::new(seed, position);
            let mut all: Vec<(u32, f64)> = if temperature == 0.0 {
                (0..).zip(&logits).map(|(id, &x)| (id, f64::from(x - max))).filter(|(_, x)| x.is_finite()).collect()
            } else {
                let kept = probabilities(&mut sampler, &logits);
                let score = |id: u32| f64::from(logits[id as usize] - max) / temperature;
                // Without filters tokens that are never drawn are listed with probability 0.
                let kept = kept.iter().filter(|&&(id, _)| score(id) > f64::NEG_INFINITY);
                kept.map(|&(id, _)| (id, score(id) + GumbelNoise::gumbel(noise.bits(id)))).collect()
            };
            all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            if temperature > 0.0 {
                all.truncate(width.max(8));
            }
            let total: f64 = all.iter().map(|(_, x)| (x - all[0].1).exp()).sum();
            let want = all.iter().take(width);
            prop_assert_eq!(got.len(), want.len());
            for (got, (id, score)) in got.iter().zip(want) {
                prop_assert_eq!(got.token, *id);
                let weight = score - all[0].1 - total.ln();
                prop_assert!((got.log_weight - weight).abs() < 1e-5 && got.log_weight <= 0.0, "{:?} {}", got, weight);
            }
            if let Some(first) = got.first() {
                prop_assert_eq!(first.token, sampler.sample(&logits, position).unwrap());
            }
        }
    }

    #[test]
    fn short_cuts_change_no_draw(
        logits in prop::collection::vec(-12.0f32..12.0, 1..400),
        temperature in 0.05f64..3.0, top_k in 0usize..50, top_p in 0.05f64..1.2, seed: u64, position: u64,
    ) {
        let mut sampler = sampler(temperature, top_k, top_p.min(1.0), seed);
        let kept = probabilities(&mut sampler, &logits);
        let naive = naive_draw(&logits, &kept, temperature, seed, position);
        prop_assert_eq!(sampler.sample(&logits, position).unwrap(), naive);
    }

    #[test]
    fn top_p_agrees_with_a_full_sort(
        logits in prop::collection::vec(-3.0f32..3.0, 1..2000), top_p in 0.01f64..1.0,
    ) {
        let kept = probabilities(&mut sampler(1.0, 0, top_p, 0), &logits);
        let mut sorted: Vec<(u32, f64)> = probabilities(&mut sampler(1.0, 0, 1.0, 0), &logits);
        sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let mass = |n: usize| sorted[..n].iter().map(|&(_, p)| p).sum::<f64>();
        prop_assert!(mass(kept.len()) >= top_p - 1e-9);
        prop_assert!(kept.len() == 1 || mass(kept.len() - 1) < top_p + 1e-9);
        let mut ids: Vec<u32> = sorted[..kept.len()].iter().map(|&(id, _)| id).collect();
        ids.sort_unstable();
        prop_assert_eq!(ids, kept.iter().map(|&(id, _)| id).collect::<Vec<_>>());
    }
}

type Distribution = Vec<(u32, f64)>;

fn distributions() -> Vec<(Distribution, Distribution)> {
    let logits: Vec<f32> = (0..10).map(|i| ((i * 3) % 7) as f32 * 0.5).collect();
    let other: Vec<f32> = (0..10).map(|i| ((i * 5) % 6) as f32 * 0.6).collect();
    let full = probabilities(&mut sampler(1.0, 0, 1.0, 0), &logits);
    let shifted = probabilities(&mut sampler(0.8, 0, 1.0, 0), &other);
    let top_k = probabilities(&mut sampler(1.0, 3, 1.0, 0), &logits);
    let other_top_k = probabilities(&mut sampler(1.0, 2, 1.0, 0), &other);
    vec![
        (full.clone(), shifted.clone()),
        (shifted.clone(), full.clone()),
        (full.clone(), full.clone()),
        (full.clone(), other_top_k.clone()), // q without most of p's support
        (top_k.clone(), shifted),            // q with much that p never takes
        (top_k, other_top_k),
        (full, vec![(4, 1.0)]), // a drafter that always says the same
        (vec![(0, 0.25), (3, 0.75)], vec![(1, 0.5), (2, 0.5)]), // nothing in common
    ]
}

#[test]
fn rejection_gives_the_target_s_distribution() {
    for (case, (p, q)) in distributions().into_iter().enumerate() {
        let sampler = RejectionSampler::new(case as u64);
        let (mut counts, mut accepted) = ([0; 10], 0);
        let n = 40_000;
        for position in 0..n {
            let draft = sampler.draft(&q, position).unwrap();
            let token = match sampler.verify(draft, &p, &q, position).unwrap() {
                Verdict::Accept => {
                    accepted += 1;
                    draft
                }
                Verdict::Replace(token) => token,
            };
            counts[token as usize] += 1;
        }
        assert_fits(&counts, &p);
        // Drafts stay with the probability that the distributions have in common.
        let of = |distribution: &Distribution, id| distribution.iter().find(|d| d.0 == id).map_or(0.0, |d| d.1);
        let common: f64 = p.iter().map(|&(id, p)| p.min(of(&q, id))).sum();
        assert!((f64::from(accepted) / n as f64 - common).abs() < 0.015, "case {case}: {accepted} of {n}, {common}");
    }
}

#[test]
fn the_bonus_token_has_the_target_s_distribution() {
    let (p, _) = distributions().swap_remove(0);
    let sampler = RejectionSampler::new(11);
    let mut counts = [0; 10];
    (0..40_000).for_each(|position| counts[sampler.bonus(&p, position).unwrap() as usize] += 1);
    assert_fits(&counts, &p);
    assert_eq!(sampler.bonus(&p, 7).unwrap(), sampler.bonus(&p, 7).unwrap());
}

#[test]
fn equal_distributions_accept_everything() {
    let (p, _) = distributions().swap_remove(2);
    let sampler = RejectionSampler::new(5);
    for position in 0..2000 {
        let draft = sampler.draft(&p, position).unwrap();
        assert_eq!(sampler.verify(draft, &p, &p, position).unwrap(), Verdict::Accept);
    }
}

#[test]
fn what_is_no_distribution_is_refused() {
    let good = vec![(1, 0.5), (4, 0.5)];
    let sampler = RejectionSampler::new(0);
    for (bad, words) in [
        (vec![(4, 0.5), (1, 0.5)], "token 1 comes after token 4"),
        (vec![(1, 0.5), (1, 0.5)], "token 1 comes after token 1"),
        (vec![(1, -0.5), (4, 0.5)], "token 1 has probability -0.5"),
        (vec![(1, f64::NAN)], "NaN"),
        (vec![(1, 0.5)], "add up to 0.5"),
        (vec![], "add up to 0"),
    ] {
        for (name, result) in [
            ("`p`", sampler.verify(1, &bad, &good, 3).map(|_| ())),
            ("`q`", sampler.verify(1, &good, &bad, 3).map(|_| ())),
            ("`p`", sampler.bonus(&bad, 3).map(|_| ())),
            ("`q`", sampler.draft(&bad, 3).map(|_| ())),
        ] {
            let message = result.unwrap_err().to_string();
            assert!(message.contains(words) && message.contains(name), "{message}");
        }
    }
    let message = sampler.verify(2, &good, &good, 3).unwrap_err().to_string();
    assert!(message.contains("draft 2"), "{message}");
}
