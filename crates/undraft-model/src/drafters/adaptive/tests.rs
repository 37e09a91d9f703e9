use std::cell::Cell;
use std::rc::Rc;

use undraft_testing::Rng;

use super::*;
use crate::sampling::Candidate;

/// A drafter that says as much as it is asked, or a tree of that size.
struct Talker {
    trees: bool,
}

impl Drafter for Talker {
    fn begin(&mut self, _first_token: u32) -> Result<()> {
        Ok(())
    }
    fn observe(&mut self, _hidden: &[f32], _next_tokens: &[u32]) -> Result<()> {
        Ok(())
    }
    fn propose(&mut self, limits: DraftLimits, _choose: &mut dyn Choose, drafts: &mut Drafts) -> Result<()> {
        for i in 0..limits.max_drafts {
            // Pairs of siblings, or a chain.
            let parent = if self.trees { (i / 2 * 2).checked_sub(2) } else { i.checked_sub(1) };
            drafts.push_behind(parent, i as u32)?;
        }
        Ok(())
    }
}

struct NoChoice;

impl Choose for NoChoice {
    fn token(&mut self, _position: u64, _logits: &[f32]) -> Result<u32> {
        Ok(0)
    }
    fn candidates(&mut self, _: u64, _: &[f32], _: usize, candidates: &mut Vec<Candidate>) -> Result<()> {
        candidates.clear();
        Ok(())
    }
}

/// A world with a clock: each draft of a chain is right with `chance` if the one before it was, and a round with k drafts
/// takes `cost(k)` seconds, give or take.
struct World {
    adaptive: Adaptive<Talker>,
    now: Rc<Cell<Duration>>,
    rng: Rng,
}

impl World {
    fn new(max_drafts: usize, trees: bool) -> Self {
        let now = Rc::new(Cell::new(Duration::ZERO));
        let clock = now.clone();
        let adaptive = Adaptive::with_clock(Talker { trees }, max_drafts, Box::new(move || clock.get()));
        Self { adaptive, now, rng: Rng::new(3) }
    }

    /// Sizes asked for in some rounds, and tokens a second.
    fn run(&mut self, rounds: usize, chance: f64, cost: impl Fn(usize) -> f64) -> (Vec<usize>, f64) {
        let max = self.adaptive.max_drafts();
        let (mut sizes, mut tokens, start) = (Vec::new(), 0, self.now.get());
        let mut drafts = Drafts::new();
        for _ in 0..rounds {
            drafts.clear();
            let limits = DraftLimits { max_drafts: max, max_depth: max };
            self.adaptive.propose(limits, &mut NoChoice, &mut drafts).unwrap();
            let depth = if drafts.is_chain() { drafts.len() } else { drafts.len().div_ceil(2) };
            let mut accepted = 0;
            while accepted < depth && self.rng.uniform() < chance {
                accepted += 1;
            }
            let jitter = if self.rng.one_in(10) { 4.0 } else { 1.0 + 0.1 * self.rng.uniform() };
            self.now.set(self.now.get() + Duration::from_secs_f64(cost(drafts.len()) * jitter));
            self.adaptive.observe(&[], &vec![0; accepted + 1]).unwrap();
            sizes.push(drafts.len());
            tokens += accepted + 1;
        }
        (sizes, tokens as f64 / (self.now.get() - start).as_secs_f64())
    }
}

fn share(sizes: &[usize], of: impl Fn(usize) -> bool) -> f64 {
    sizes.iter().filter(|&&k| of(k)).count() as f64 / sizes.len() as f64
}

#[test]
fn nothing_is_drafted_where_it_does_not_pay() {
    for trees in [false, true] {
        // Every draft costs as much as a token, one in ten is right.
        let (sizes, _) = World::new(8, trees).run(2000, 0.1, |k| 1.0 + k as f64);
        assert!(share(&sizes[200..], |k| k == 0) > 0.97, "trees: {trees}: {:?}", &sizes[..300]);
        // But it is looked at again now and then.
        assert!(share(&sizes[200..], |k| k > 0) > 0.001, "trees: {trees}");
    }
}

#[test]
fn as_many_as_pay_are_drafted() {
    // Free and mostly right: all. Half right: tokens over time have their maximum at two of three places.
    let (sizes, _) = World::new(8, false).run(600, 0.95, |k| 1.0 + 0.01 * k as f64);
    assert!(share(&sizes[100..], |k| k >= 7) > 0.9, "{sizes:?}");
    for (chance, step) in [(0.5, 0.15), (0.7, 0.1), (0.8, 0.3), (0.3, 0.2)] {
        let cost = |k: usize| 1.0 + step * k as f64;
        let rate = |k: usize| (0..=k as i32).map(|i| f64::powi(chance, i)).sum::<f64>() / cost(k);
        let most = (0..=8).map(rate).fold(0.0, f64::max);
        let (sizes, _) = World::new(8, false).run(3000, chance, cost);
        let mean = sizes[300..].iter().map(|&k| rate(k)).sum::<f64>() / (sizes.len() - 300) as f64;
        assert!(mean > 0.93 * most, "chance {chance}, step {step}: {mean} of {most}");
    }
}

#[test]
fn a_change_of_the_text_is_noticed() {
    let mut world = World::new(4, false);
    let cost = |k: usize| 1.0 + 0.3 * k as f64;
    let (sizes, _) = world.run(500, 0.02, cost);
    assert!(share(&sizes[100..], |k| k == 0) > 0.95);
    let (sizes, _) = world.run(3000, 0.9, cost);
    assert!(share(&sizes[2000..], |k| k >= 3) > 0.9, "{:?}", &sizes[2000..]);
    let (sizes, _) = world.run(1000, 0.02, cost);
    assert!(share(&sizes[500..], |k| k == 0) > 0.9, "{:?}", &sizes[500..]);
}

#[test]
fn the_report_counts_what_was_asked() {
    let mut world = World::new(3, false);
    let (sizes, _) = world.run(100, 0.5, |k| 1.0 + 0.2 * k as f64);
    let report = world.adaptive.report().clone();
    assert_eq!(report.rounds.iter().sum::<usize>(), 100);
    for k in 0..4 {
        assert_eq!(report.rounds[k], sizes.iter().filter(|&&size| size == k).count());
    }
    assert_eq!(report.rounds[report.most_often()], *report.rounds.iter().max().unwrap());
    assert!((1..=100 / MIN_PAUSE).contains(&report.probes), "{}", report.probes);
    // A sequence is a beginning.
    world.adaptive.begin(0).unwrap();
    assert_eq!(world.adaptive.report(), &AdaptiveReport { rounds: vec![0; 4], probes: 0 });
}

#[test]
fn no_drafts_allowed_and_none_asked() {
    let (sizes, _) = World::new(0, false).run(50, 0.5, |_| 1.0);
    assert_eq!(sizes, [0; 50]);
}
