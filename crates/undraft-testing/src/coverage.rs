//! Which options the calls of a suite had, as data.

use std::collections::BTreeMap;

use undraft_core::Op;

/// Something that differs from call to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    /// Dtype of q, k, v and o, or of x, a and b.
    Io,
    /// Dtype of the recurrent states.
    State,
    /// How rows lie in memory.
    Memory,
    /// Which key head a value head reads.
    HeadMap,
    /// How the decay is given.
    Decay,
    /// Over what the state decays.
    DecayShape,
    /// What the window leaves.
    Capture,
    /// Chains, draft trees, or both in one call.
    Windows,
    /// Log entries that are replayed: none, the first ones, or a path.
    Replay,
}

const F32_ONLY: &[&str] = &["f32"];
const DTYPES: &[&str] = &["f32", "bf16", "f16"];
const MEMORIES: &[&str] = &["contiguous", "strided", "fused", "fused+strided"];

impl Axis {
    /// Every axis.
    pub const ALL: [Axis; 9] = [
        Axis::Io,
        Axis::State,
        Axis::Memory,
        Axis::HeadMap,
        Axis::Decay,
        Axis::DecayShape,
        Axis::Capture,
        Axis::Windows,
        Axis::Replay,
    ];

    /// What tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Io => "io",
            Axis::State => "state",
            Axis::Memory => "memory",
            Axis::HeadMap => "head map",
            Axis::Decay => "decay",
            Axis::DecayShape => "decay shape",
            Axis::Capture => "capture",
            Axis::Windows => "windows",
            Axis::Replay => "replay",
        }
    }

    /// What an operation can be asked for on this axis; nothing where the axis means nothing to it.
    pub fn values(self, op: Op) -> &'static [&'static str] {
        let recurrence = matches!(op, Op::FusedRecurrentGatedDeltaRule | Op::ChunkGatedDeltaRule);
        match self {
            Axis::Io if op == Op::CommitStates => F32_ONLY,
            Axis::Io => DTYPES,
            Axis::State if recurrence || op == Op::CommitStates => DTYPES,
            Axis::Memory if op != Op::CommitStates => MEMORIES,
            Axis::HeadMap if recurrence || op == Op::CommitStates => &["grouped", "tiled"],
            Axis::Decay if recurrence => &["log", "linear", "neglog", "gate"],
            Axis::DecayShape if recurrence || matches!(op, Op::CommitStates | Op::FusedGdnGating) => {
                &["per-head", "per-channel"]
            }
            Axis::Capture if op == Op::FusedRecurrentGatedDeltaRule => &["final", "per-token", "delta-log"],
            Axis::Capture if op == Op::CausalConv1dUpdate => &["final", "delta-log"],
            Axis::Windows if matches!(op, Op::FusedRecurrentGatedDeltaRule | Op::CausalConv1dUpdate) => {
                &["chain", "tree", "mixed"]
            }
            Axis::Replay if matches!(op, Op::FusedRecurrentGatedDeltaRule | Op::CausalConv1dUpdate) => {
                &["none", "first", "path"]
            }
            Axis::Replay if op == Op::CommitStates => &["first", "path"],
            _ => &[],
        }
    }

    /// Whether no call can have both values: `Final` overwrites the state that a draft tree needs.
    pub fn excludes(self, value: &str, other: Axis, other_value: &str) -> bool {
        let pair = |a: Axis, x: &str, b: Axis, y: &str| {
            a == Axis::Capture && x == "final" && b == Axis::Windows && y != "chain"
        };
        pair(self, value, other, other_value) || pair(other, other_value, self, value)
    }
}

/// The options of one call.
///
/// ```
/// use undraft_testing::coverage::{Axis, Coverage, Options};
/// let mut coverage = Coverage::default();
/// coverage.record(Options::new("bf16").with(Axis::Memory, "strided"), 0.25);
/// assert_eq!((coverage.calls(Axis::Io, "bf16"), coverage.calls(Axis::Io, "f32")), (1, 0));
/// assert_eq!(coverage.calls_with((Axis::Io, "bf16"), (Axis::Memory, "strided")), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Options(Vec<(Axis, &'static str)>);

impl Options {
    /// A call with this I/O dtype.
    pub fn new(io: &'static str) -> Self {
        Self(vec![(Axis::Io, io)])
    }
    /// The same with one more option.
    pub fn with(mut self, axis: Axis, value: &'static str) -> Self {
        self.0.push((axis, value));
        self
    }
    /// Each axis with its value.
    pub fn iter(&self) -> impl Iterator<Item = (Axis, &'static str)> + '_ {
        self.0.iter().copied()
    }
    fn has(&self, axis: Axis, value: &str) -> bool {
        self.0.contains(&(axis, value))
    }
}

/// Calls with the same options.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Count {
    /// How many passed.
    pub calls: usize,
    /// The largest deviation among them, as a fraction of its bound; 0 where bits were compared.
    pub worst: f64,
}

/// Calls that passed, by their options.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Coverage(BTreeMap<Options, Count>);

impl Coverage {
    /// Adds one call.
    pub fn record(&mut self, options: Options, worst: f64) {
        self.add(options, Count { calls: 1, worst });
    }
    /// Adds what another suite covered.
    pub fn merge(&mut self, other: &Self) {
        for (options, &count) in &other.0 {
            self.add(options.clone(), count);
        }
    }
    fn add(&mut self, options: Options, count: Count) {
        let cell = self.0.entry(options).or_default();
        *cell = Count { calls: cell.calls + count.calls, worst: cell.worst.max(count.worst) };
    }
    /// Every combination that came up.
    pub fn iter(&self) -> impl Iterator<Item = (&Options, Count)> + '_ {
        self.0.iter().map(|(options, &count)| (options, count))
    }
    /// All calls.
    pub fn total(&self) -> Count {
        self.0.values().fold(Count::default(), |sum, count| Count {
            calls: sum.calls + count.calls,
            worst: sum.worst.max(count.worst),
        })
    }
    /// Calls with this value on this axis.
    pub fn calls(&self, axis: Axis, value: &str) -> usize {
        self.iter().filter(|(options, _)| options.has(axis, value)).map(|(_, count)| count.calls).sum()
    }
    /// Calls with both values.
    pub fn calls_with(&self, a: (Axis, &str), b: (Axis, &str)) -> usize {
        let both = self.iter().filter(|(options, _)| options.has(a.0, a.1) && options.has(b.0, b.1));
        both.map(|(_, count)| count.calls).sum()
    }
    /// Pairs of options that an operation can be asked for and no call had, such as `io f16, windows tree`.
    pub fn missing_pairs(&self, op: Op) -> Vec<String> {
        let options: Vec<(Axis, &str)> =
            Axis::ALL.iter().flat_map(|&axis| axis.values(op).iter().map(move |&value| (axis, value))).collect();
        let mut missing = Vec::new();
        for (i, &(a, x)) in options.iter().enumerate() {
            for &(b, y) in &options[i + 1..] {
                if a != b && !a.excludes(x, b, y) && self.calls_with((a, x), (b, y)) == 0 {
                    missing.push(format!("{} {x}, {} {y}", a.name(), b.name()));
                }
            }
        }
        missing
    }
}
