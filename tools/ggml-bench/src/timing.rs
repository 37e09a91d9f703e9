//! The measurements, by the method of `undraft bench`.

use std::fmt;
use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, ensure};
use undraft::cpu::{AlignedBuffer, CpuBackend};
use undraft::{GdnDims, HeadMap};

use crate::ggml::{Cache, GatedDeltaNet};
use crate::recurrence::{Log, Window};
use crate::tokens::{Random, Sizes, Tokens};

/// Calls that a median is taken over, after those that are not counted.
const CALLS: usize = 101;
const WARM_UP: usize = 8;

/// Microseconds of a call.
#[derive(Clone, Copy)]
struct Time {
    median: f64,
    /// Of the same calls; tells more than the median where other programs run.
    least: f64,
}

/// One line of the table; ratios are of medians.
pub struct Row {
    what: String,
    time: Time,
    to_copy: f64,
    /// Ratio to the first line of the same group.
    to_ggml: Option<f64>,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to_ggml = self.to_ggml.map_or(String::new(), |x| format!("{x:.2}x"));
        let to_copy = format!("{:.2}x", self.to_copy);
        let Time { median, least } = self.time;
        write!(f, "{:<62} {median:>9.2} us {least:>9.2} us {to_copy:>9} {to_ggml:>9}", self.what)
    }
}

/// Bytes of the last-level cache, 64 MB where the system does not say.
pub fn last_level_cache() -> usize {
    let read = |index: usize| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok().map(|k| k * 1024)
    };
    (0..8).filter_map(read).max().unwrap_or(64 << 20)
}

fn time(mut call: impl FnMut(usize) -> Result<()>) -> Result<Time> {
    for i in 0..WARM_UP {
        call(i)?;
    }
    let mut times = Vec::with_capacity(CALLS);
    for i in WARM_UP..WARM_UP + CALLS {
        let start = Instant::now();
        call(i)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(Time { median: times[CALLS / 2], least: times[0] })
}

/// States that together exceed the caches, which both sides run over.
pub struct Bench<'a> {
    backend: &'a CpuBackend,
    dims: GdnDims,
    num_slots: usize,
    /// `[num_slots, HV, V, K]`; with snapshots, `[snapshots, num_slots / snapshots, HV, V, K]`.
    state: AlignedBuffer,
    random: Random,
}

impl<'a> Bench<'a> {
    /// Most snapshots of a window.
    const SNAPSHOTS: usize = 4;

    /// States of at least `state_bytes` bytes.
    pub fn new(backend: &'a CpuBackend, dims: GdnDims, state_bytes: usize) -> Result<Self> {
        // Planes of snapshots share the states.
        let num_slots = state_bytes.div_ceil(4 * dims.state_len()).max(1).next_multiple_of(Self::SNAPSHOTS);
        let state = AlignedBuffer::zeroed(num_slots * dims.state_len())?;
        Ok(Self { backend, dims, num_slots, state, random: Random(2) })
    }

    /// Bytes of the states.
    pub fn state_bytes(&self) -> usize {
        4 * self.state.len()
    }

    /// All lines.
    pub fn rows(&mut self) -> Result<Vec<Row>> {
        let copy = self.copy()?;
        let what = "copy (read and write the states)".into();
        let mut rows = vec![Row { what, time: copy, to_copy: 1.0, to_ggml: None }];
        let mut group = |lines: &[(&str, Time)]| {
            rows.extend(lines.iter().map(|&(what, time)| Row {
                what: what.into(),
                time,
                to_copy: time.median / copy.median,
                to_ggml: Some(time.median / lines[0].1.median),
            }));
        };
        group(&[
            ("ggml T=1", self.ggml(1, 1)?),
            ("ggml T=1, then its copy of the state into the cache", self.ggml_and_store(1, 1)?),
            ("undraft decode T=1", self.undraft(1, Kind::Advance)?),
        ]);
        group(&[
            ("ggml T=4", self.ggml(4, 1)?),
            ("ggml T=4, then its copy of the state into the cache", self.ggml_and_store(4, 1)?),
            ("undraft recurrent T=4", self.undraft(4, Kind::Advance)?),
        ]);
        group(&[
            ("ggml T=4, 4 snapshots", self.ggml(4, 4)?),
            ("ggml T=4, 4 snapshots, then its copy of them into the cache", self.ggml_and_store(4, 4)?),
            ("undraft verify T=4, delta log, commit of 1..=4", self.undraft(4, Kind::VerifyAndCommit)?),
        ]);
        group(&[
            ("ggml T=64", self.ggml(64, 1)?),
            ("ggml T=64, then its copy of the state into the cache", self.ggml_and_store(64, 1)?),
            ("undraft recurrent T=64", self.undraft(64, Kind::Advance)?),
        ]);
        let [ggml, undraft] = overhead(self.backend)?;
        group(&[("ggml, a call with one head of size 1", ggml), ("undraft, a call with one head of size 1", undraft)]);
        Ok(rows)
    }

    /// Fresh values in all states, so that no line finds what another left, in values or in caches.
    fn reset(&mut self) {
        // One state of random numbers, repeated.
        let (first, rest) = self.state.split_at_mut(self.dims.state_len());
        self.random.fill(first, -0.5, 0.5);
        rest.chunks_exact_mut(first.len()).for_each(|state| state.copy_from_slice(first));
    }

    fn copy(&mut self) -> Result<Time> {
        self.reset();
        let (len, num_slots, state) = (self.dims.state_len(), self.num_slots, &self.state);
        let mut copy = AlignedBuffer::zeroed(state.len())?;
        let us = time(|i| {
            let at = (i % num_slots) * len;
            copy[at..at + len].copy_from_slice(&state[at..at + len]);
            Ok(())
        })?;
        black_box(&copy);
        Ok(us)
    }

    /// The operation alone, on states in turn.
    fn ggml(&mut self, num_tokens: usize, snapshots: usize) -> Result<Time> {
        self.reset();
        let (sizes, len) = (Sizes { dims: self.dims, num_tokens }, self.dims.state_len());
        let tokens = Tokens::new(sizes, &mut self.random)?;
        let mut graph = GatedDeltaNet::new(sizes, snapshots)?;
        let us = time(|i| graph.run(&tokens, &self.state[(i % self.num_slots) * len..][..len]))?;
        ensure_finite(graph.o())?;
        Ok(us)
    }

    /// The operation and a copy of its snapshots over the states that it read. What is read is the plane that a round
    /// before would have kept, in turn.
    fn ggml_and_store(&mut self, num_tokens: usize, snapshots: usize) -> Result<Time> {
        self.reset();
        let sizes = Sizes { dims: self.dims, num_tokens };
        let tokens = Tokens::new(sizes, &mut self.random)?;
        let num_slots = self.num_slots / snapshots;
        let mut graph = GatedDeltaNet::with_store(sizes, snapshots, num_slots)?;
        let us = time(|i| {
            let cache = Cache { planes: &mut self.state, slot: i % num_slots, read_plane: i % snapshots };
            graph.run_and_store(&tokens, cache)
        })?;
        ensure_finite(graph.o())?;
        Ok(us)
    }

    fn undraft(&mut self, num_tokens: usize, kind: Kind) -> Result<Time> {
        self.reset();
        let sizes = Sizes { dims: self.dims, num_tokens };
        let tokens = Tokens::new(sizes, &mut self.random)?;
        let mut log = match kind {
            Kind::Advance => None,
            Kind::VerifyAndCommit => Some(Log::new(&self.dims, self.num_slots, num_tokens)?),
        };
        let mut out = AlignedBuffer::zeroed(num_tokens * self.dims.value_dim())?;
        let us = time(|i| {
            let (slot, state, out) = (i % self.num_slots, &mut self.state, &mut out);
            let window = Window { sizes, tokens: &tokens, head_map: HeadMap::Tiled, state, slot, out };
            match &mut log {
                None => window.advance(self.backend),
                // Rounds keep 1 to all tokens in turn; what the round before kept is replayed by this one.
                Some(log) => window.verify(self.backend, log, (1 + i % num_tokens) as u32),
            }
        })?;
        ensure_finite(&out)?;
        Ok(us)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The state is overwritten.
    Advance,
    /// Replay of the kept tokens, then a window into the log.
    VerifyAndCommit,
}

/// A call that computes next to nothing: ggml's, then undraft's.
fn overhead(backend: &CpuBackend) -> Result<[Time; 2]> {
    let sizes = Sizes { dims: GdnDims::new(1, 1, 1, 1)?, num_tokens: 1 };
    let tokens = Tokens::new(sizes, &mut Random(3))?;
    let mut graph = GatedDeltaNet::new(sizes, 1)?;
    let (mut state, mut out) = ([0.5f32], [0.0f32]);
    let ggml = time(|_| graph.run(&tokens, &state))?;
    let undraft = time(|_| {
        let (state, out) = (&mut state, &mut out);
        Window { sizes, tokens: &tokens, head_map: HeadMap::Tiled, state, slot: 0, out }.advance(backend)
    })?;
    Ok([ggml, undraft])
}

/// A time over numbers that overflowed would be no time of the operation.
fn ensure_finite(o: &[f32]) -> Result<()> {
    ensure!(o.iter().all(|x| x.is_finite()), "outputs are not finite, expected finite numbers");
    black_box(o);
    Ok(())
}
