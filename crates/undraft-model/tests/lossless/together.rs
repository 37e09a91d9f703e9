//! Drafters together, and windows that adapt.

use std::time::Duration;

use undraft_model::drafters::{Adaptive, Drafter, LookupFirst, MtpDrafter, MtpTreeDrafter};
use undraft_model::model::TreeShape;
use undraft_testing::Rng;

use super::trace::{Bench, Look, options};
use super::{ADAPTIVE, TOGETHER, count, greedy, load, prompt, sampled};
use crate::runner::{NEXT, ODD, TRAINED};

#[test]
fn lookup_and_head() {
    let mut rounds = 0;
    let mut by = [0; 2];
    for path in [TRAINED, NEXT, ODD] {
        let model = load(path);
        let mut bench = Bench::new(&model);
        // Repeated, so that lookup has something to say, with an end of its own.
        let mut text = prompt(path, &model, "short").repeat(3);
        text.truncate(text.len() - 2);
        for sampling in [greedy(), sampled(2)] {
            let reference = bench.plain(&text, &options(&sampling, 0, 50));
            for window in [1, 3, 8] {
                for min_match in [1, 4] {
                    bench.look = if window == 3 { Look::Always } else { Look::Seldom };
                    let head = MtpDrafter::new(model.mtp().unwrap(), 700).unwrap();
                    let mut drafter = LookupFirst::new(min_match, head).unwrap();
                    let options = options(&sampling, window, 50);
                    rounds += bench.check(&reference, &options, &mut drafter, "lookup, then MTP").rounds.len();
                    by[0] += drafter.rounds().0;
                    by[1] += drafter.rounds().1;
                }
            }
        }
    }
    assert!(by[0] > 30 && by[1] > 30, "both drafters were asked: {by:?}");
    count("lookup and MTP", rounds, TOGETHER);
}

/// What the head drafts does not depend on how often lookup was asked instead: its cache holds every true pair.
#[test]
fn the_head_drafts_as_it_would_alone() {
    let model = load(TRAINED);
    let mut bench = Bench::new(&model);
    let text = prompt(TRAINED, &model, "short").repeat(2);
    let reference = bench.plain(&text, &options(&greedy(), 0, 60));
    let options = options(&greedy(), 3, 60);
    let mut alone = MtpDrafter::new(model.mtp().unwrap(), 700).unwrap();
    let alone = bench.check(&reference, &options, &mut alone, "MTP alone");
    // Drafts by the number of tokens known.
    let by_place = |rounds: &[super::trace::Observed]| {
        let mut known = 0;
        let place = |round: &super::trace::Observed| {
            known += round.tokens.len();
            (known - round.tokens.len(), round.drafts.clone())
        };
        rounds.iter().map(place).collect::<std::collections::BTreeMap<_, _>>()
    };
    let mut both = LookupFirst::new(4, MtpDrafter::new(model.mtp().unwrap(), 700).unwrap()).unwrap();
    let both_run = bench.check(&reference, &options, &mut both, "together");
    let (alone, both) = (by_place(&alone.rounds), by_place(&both_run.rounds));
    let shared: Vec<_> = alone.iter().filter_map(|(place, drafts)| Some((drafts, both.get(place)?))).collect();
    let same = shared.iter().filter(|(a, b)| a == b).count();
    assert!(shared.len() > 5 && same > 3, "{same} of {}", shared.len());
}

/// A clock that says anything: windows of every size, in any order.
#[test]
fn adaptive_windows_change_no_token() {
    let mut rounds = 0;
    let mut sizes = vec![0; 9];
    for path in [TRAINED, NEXT, ODD] {
        let model = load(path);
        let mut bench = Bench::new(&model);
        let prompt = prompt(path, &model, "chat");
        for sampling in [greedy(), sampled(1), sampled(2)] {
            let reference = bench.plain(&prompt, &options(&sampling, 0, 90));
            for seed in 0..4 {
                bench.look = if seed % 2 == 0 { Look::Always } else { Look::Seldom };
                let head = model.mtp().unwrap();
                let inner: Box<dyn Drafter> = match seed {
                    0 => Box::new(MtpDrafter::new(head, 700).unwrap()),
                    1 => Box::new(MtpTreeDrafter::new(head, 700, TreeShape::default()).unwrap()),
                    _ => Box::new(LookupFirst::new(2, MtpDrafter::new(head, 700).unwrap()).unwrap()),
                };
                let (mut rng, mut now) = (Rng::new(seed), 0);
                let clock = move || {
                    now += rng.below(1000) as u64;
                    Duration::from_micros(now)
                };
                let mut drafter = Adaptive::with_clock(inner, 8, Box::new(clock));
                let what = format!("{path}, adaptive, {seed}");
                rounds += bench.check(&reference, &options(&sampling, 8, 90), &mut drafter, &what).rounds.len();
                sizes.iter_mut().zip(&drafter.report().rounds).for_each(|(sum, n)| *sum += n);
            }
        }
    }
    assert!(sizes.iter().all(|&n| n > 0), "rounds by drafts asked for: {sizes:?}");
    count("adaptive windows", rounds, ADAPTIVE);
}
