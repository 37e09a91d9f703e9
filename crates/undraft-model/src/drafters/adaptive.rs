//! How many drafts to ask for, from what they bring and what they cost.

use std::fmt;
use std::time::{Duration, Instant};

use super::{Choose, DraftLimits, Drafter, Drafts};
use crate::error::Result;

/// Where the time comes from: a time that never goes back, from any beginning.
pub type Clock = Box<dyn FnMut() -> Duration>;

/// Rounds of each number of drafts that are tried at the beginning.
const TRIES: usize = 2;
/// Rounds between probes of another number of drafts; at the beginning, and at the most.
const MIN_PAUSE: usize = 16;
const MAX_PAUSE: usize = 256;
/// Rounds over which accepted drafts are averaged; of times the lower quartile of the newest few counts, for what
/// disturbs a round makes it longer.
const MEMORY: usize = 32;
const NUM_TIMES: usize = 7;

/// Asks another drafter for as many drafts as pay.
///
/// A round with `k` drafts brings `1 + a(k)` tokens in a time `t(k)`: both are measured, from one call of
/// [`Drafter::propose`] to the next, so that drafting, verification and everything else counts. The number of drafts with
/// the most tokens for the time is taken; it is 0 where speculation does not pay. From time to time a round is spent on
/// another number, to notice when that becomes better; the less often, the longer nothing pays.
///
/// A chain of `k` drafts shows what a shorter one would have brought; a tree shows it for its own size alone. Which
/// tokens are generated never depends on any of this.
pub struct Adaptive<D> {
    inner: D,
    clock: Clock,
    /// What is known of rounds by their number of drafts.
    sizes: Vec<Size>,
    /// The round that is under way.
    current: Option<Current>,
    /// Sizes still to be tried at the beginning, the next one last.
    to_try: Vec<usize>,
    /// Rounds until a probe, and from one to the next.
    until_probe: usize,
    pause: usize,
    /// Whether the next probe looks at fewer drafts.
    probe_below: bool,
    report: AdaptiveReport,
}

/// What an [`Adaptive`] drafter did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdaptiveReport {
    /// Rounds for which `i` drafts were asked, `[max_drafts + 1]`.
    pub rounds: Vec<usize>,
    /// Rounds of these that were probes.
    pub probes: usize,
}

impl AdaptiveReport {
    /// The number of drafts that was asked for most often.
    pub fn most_often(&self) -> usize {
        (0..self.rounds.len()).max_by_key(|&k| (self.rounds[k], std::cmp::Reverse(k))).unwrap_or(0)
    }
}

/// Rounds of one number of drafts.
#[derive(Clone, Debug, Default)]
struct Size {
    /// Mean of the drafts accepted, over `num_accepted` rounds at first and fading behind [`MEMORY`].
    accepted: f64,
    num_accepted: usize,
    /// Seconds of the newest rounds, `num_times` of them.
    times: [f64; NUM_TIMES],
    num_times: usize,
}

/// A round that began.
#[derive(Clone, Copy, Debug)]
struct Current {
    start: Duration,
    num_drafts: usize,
    is_chain: bool,
    /// Tokens seen since.
    num_tokens: usize,
}

impl<D> Adaptive<D> {
    /// Asks `inner` for up to `max_drafts` drafts, by the clock of the machine.
    pub fn new(inner: D, max_drafts: usize) -> Self {
        let start = Instant::now();
        Self::with_clock(inner, max_drafts, Box::new(move || start.elapsed()))
    }

    /// The same by another clock.
    pub fn with_clock(inner: D, max_drafts: usize, clock: Clock) -> Self {
        let mut adaptive = Self {
            inner,
            clock,
            sizes: vec![Size::default(); max_drafts + 1],
            current: None,
            to_try: Vec::new(),
            until_probe: MIN_PAUSE,
            pause: MIN_PAUSE,
            probe_below: false,
            report: AdaptiveReport { rounds: vec![0; max_drafts + 1], probes: 0 },
        };
        adaptive.forget();
        adaptive
    }

    /// The drafter that is asked.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// What was asked for in this sequence.
    pub fn report(&self) -> &AdaptiveReport {
        &self.report
    }

    fn max_drafts(&self) -> usize {
        self.sizes.len() - 1
    }

    /// Times and counts are those of a sequence: another one may have another length.
    fn forget(&mut self) {
        let max = self.max_drafts();
        self.sizes.fill(Size::default());
        self.current = None;
        self.to_try.clear();
        // A few sizes tell enough; the others lie between them.
        for _ in 0..TRIES {
            self.to_try.extend([max, max.div_ceil(2), max.min(1), 0]);
        }
        self.to_try.dedup();
        (self.until_probe, self.pause, self.probe_below) = (MIN_PAUSE, MIN_PAUSE, false);
        self.report.rounds.fill(0);
        self.report.probes = 0;
    }

    /// Takes what the last round brought and took.
    fn learn(&mut self, now: Duration) {
        let Some(Current { start, num_drafts, is_chain, num_tokens }) = self.current.take() else { return };
        let size = &mut self.sizes[num_drafts];
        size.times.rotate_right(1);
        size.times[0] = now.saturating_sub(start).as_secs_f64();
        size.num_times = (size.num_times + 1).min(NUM_TIMES);
        let accepted = num_tokens.saturating_sub(1);
        let smallest = if is_chain { 1 } else { num_drafts };
        for (k, size) in self.sizes.iter_mut().enumerate().take(num_drafts + 1).skip(smallest.max(1)) {
            let accepted = accepted.min(k) as f64;
            size.num_accepted = (size.num_accepted + 1).min(MEMORY);
            size.accepted += (accepted - size.accepted) / size.num_accepted as f64;
        }
    }

    /// Lower quartile of the newest times of a round, if there are any.
    fn measured_time(&self, k: usize) -> Option<f64> {
        let Size { mut times, num_times, .. } = self.sizes[k];
        let times = &mut times[..num_times];
        times.sort_unstable_by(f64::total_cmp);
        times.get(num_times.saturating_sub(1) / 4).copied()
    }

    /// Seconds of a round with `k` drafts: measured, or on the line between its measured neighbours.
    fn time(&self, k: usize) -> f64 {
        self.between(k, |k| self.measured_time(k)).unwrap_or(1.0)
    }

    /// Mean of the drafts accepted of `k`, in the same way.
    fn accepted(&self, k: usize) -> f64 {
        let known = |k: usize| (k == 0 || self.sizes[k].num_accepted > 0).then(|| self.sizes[k].accepted);
        self.between(k, known).unwrap_or(0.0).min(k as f64)
    }

    /// A value of `k` on the line between the known ones around it; that of the nearest where all lie on one side.
    fn between(&self, k: usize, known: impl Fn(usize) -> Option<f64>) -> Option<f64> {
        let below = (0..=k).rev().find_map(|i| known(i).map(|value| (i, value)));
        let above = (k..self.sizes.len()).find_map(|i| known(i).map(|value| (i, value)));
        match (below, above) {
            (Some((i, low)), Some((j, high))) if j > i => Some(low + (high - low) * (k - i) as f64 / (j - i) as f64),
            (Some((_, value)), _) | (_, Some((_, value))) => Some(value),
            (None, None) => None,
        }
    }

    /// The number of drafts with the most tokens for the time; of equal ones the smallest.
    fn best(&self, limit: usize) -> usize {
        let rate = |k: usize| (1.0 + self.accepted(k)) / self.time(k).max(1e-9);
        (0..=limit).fold(0, |best, k| if rate(k) > rate(best) { k } else { best })
    }

    /// Drafts to ask for in the next round.
    fn choose(&mut self, limit: usize) -> usize {
        if let Some(k) = self.to_try.pop() {
            return k.min(limit);
        }
        let best = self.best(limit);
        self.until_probe = self.until_probe.saturating_sub(1);
        if self.until_probe > 0 || limit == 0 {
            return best;
        }
        // Where nothing pays probes become rare; where something does they look to both sides.
        self.pause = if best == 0 { (2 * self.pause).min(MAX_PAUSE) } else { MIN_PAUSE };
        self.until_probe = self.pause;
        self.report.probes += 1;
        self.probe_below = !self.probe_below;
        match best {
            0 if self.probe_below => limit.div_ceil(2),
            0 => 1,
            best if self.probe_below || best == limit => best - 1,
            best => best + 1,
        }
    }
}

impl<H: ?Sized, D: Drafter<H>> Drafter<H> for Adaptive<D> {
    fn begin(&mut self, first_token: u32) -> Result<()> {
        self.forget();
        self.inner.begin(first_token)
    }
    fn reserve(&mut self, num_tokens: usize) {
        self.inner.reserve(num_tokens);
    }
    fn observe(&mut self, hidden: &H, next_tokens: &[u32]) -> Result<()> {
        if let Some(current) = &mut self.current {
            current.num_tokens += next_tokens.len();
        }
        self.inner.observe(hidden, next_tokens)
    }
    fn propose(&mut self, limits: DraftLimits, choose: &mut dyn Choose, drafts: &mut Drafts) -> Result<()> {
        let now = (self.clock)();
        self.learn(now);
        let k = self.choose(limits.max_drafts.min(self.max_drafts()));
        self.report.rounds[k] += 1;
        if k > 0 {
            let limits = DraftLimits { max_drafts: k, max_depth: limits.max_depth.min(k) };
            self.inner.propose(limits, choose, drafts)?;
            drafts.truncate(k);
        }
        // A drafter that had less to say made a round of that size.
        let (num_drafts, is_chain) = (drafts.len(), drafts.is_chain());
        self.current = Some(Current { start: now, num_drafts, is_chain, num_tokens: 0 });
        Ok(())
    }
}

impl<D: fmt::Debug> fmt::Debug for Adaptive<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adaptive").field("inner", &self.inner).field("report", &self.report).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
