//! Which kernel runs a call: a pure function of the call's sizes.

use undraft_core::DType;

use crate::raw::Elements;

/// As in the kernels' prelude.
const ANY: u32 = 4;
/// Lanes that hold a row.
const GROUP: u32 = 8;
/// How the rows of a state lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateAccess {
    /// In whole vectors of four.
    Fours,
    /// In single elements.
    Ones,
}

/// A state's element type and its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateKind {
    pub(crate) dtype: DType,
    pub(crate) access: StateAccess,
}

impl StateKind {
    /// `first` and `stride`: first element of the states, and elements from one slot to the next.
    pub(crate) fn new(dtype: DType, head_k_dim: u32, first: u32, stride: u32) -> Self {
        let fours = (head_k_dim | first | stride).is_multiple_of(4);
        Self { dtype, access: if fours { StateAccess::Fours } else { StateAccess::Ones } }
    }
}

/// What the choice of a kernel of the recurrence depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecurrentCall {
    pub(crate) state: StateKind,
    pub(crate) num_seqs: u32,
    pub(crate) num_v_heads: u32,
    pub(crate) head_k_dim: u32,
    pub(crate) head_v_dim: u32,
    pub(crate) per_channel: bool,
    /// Whether windows may be trees.
    pub(crate) trees: bool,
    /// Whether rows of q, k and o begin with a word.
    pub(crate) aligned: bool,
    /// Element type of q, k and v, if it is one.
    pub(crate) tokens: Option<DType>,
    /// Bytes of workgroup memory.
    pub(crate) memory: u32,
    /// Invocations of a workgroup, at most.
    pub(crate) max_threads: u32,
    /// Whether lanes exchange numbers through workgroup memory.
    pub(crate) without_subgroups: bool,
    /// No window has more tokens, and no sequence more entries pending.
    pub(crate) max_window: u32,
    pub(crate) max_pending: u32,
    /// Whether the device's fma is fused; where it is not, kernels are few rather than fast.
    pub(crate) fused: bool,
    /// Rows of a lane group, if the caller wants so many.
    pub(crate) rows: Option<u32>,
}

/// A kernel of the recurrence and its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecurrentPlan {
    pub(crate) state: StateKind,
    /// Whether a decay for each channel lies in workgroup memory.
    pub(crate) channels: bool,
    /// Whether windows may be trees.
    pub(crate) trees: bool,
    /// Whether no row or share of rows ends early, so that no lane has to look.
    pub(crate) whole: bool,
    /// Whether outputs and deltas go to memory token by token, rather than through workgroup memory.
    pub(crate) direct: bool,
    /// Element type of q, k and v; any, if it is none.
    pub(crate) token_type: Option<DType>,
    /// Whether the state is asked for before tokens are prepared: sooner there, in more registers.
    pub(crate) early: bool,
    /// Vectors of four that a lane holds of a row: K padded, by 32.
    pub(crate) vectors: u32,
    /// Rows of a lane group.
    pub(crate) rows: u32,
    /// Invocations of a workgroup.
    pub(crate) threads: u32,
    /// Tokens, and pending entries, in workgroup memory at a time.
    pub(crate) tokens: u32,
    pub(crate) entries: u32,
    /// Shares of a head's rows.
    pub(crate) splits: u32,
    /// Workgroups with work.
    pub(crate) units: u64,
}

/// Tokens in workgroup memory at a time, at most.
const MAX_AT_ONCE: u32 = 4;
/// Nodes of a tree there, at most 32, a bit each.
const MAX_TREE: u32 = 16;
/// Tokens and entries, where kernels are few.
const AT_ONCE_OF_FEW: u32 = 8;
/// Rows of all heads up to which a group takes one row, so that the rows spread over the whole device.
const FEW_ROWS: u64 = 16_384;

/// The padded size depends on `K` alone, and with it the order of sums; the rest decides who computes which rows.
pub(crate) fn recurrent(call: &RecurrentCall) -> RecurrentPlan {
    let vectors = match call.head_k_dim.div_ceil(32) {
        n if !call.fused => n.next_power_of_two().max(4),
        n if call.head_k_dim.is_multiple_of(32) => n,
        n => n.next_power_of_two(),
    };
    let all_rows = u64::from(call.num_seqs) * u64::from(call.num_v_heads) * u64::from(call.head_v_dim);
    let rows = match vectors {
        _ if call.rows.is_some() => call.rows.filter(|rows| [1, 2, 4].contains(rows)).unwrap_or(1),
        _ if all_rows <= FEW_ROWS => 1,
        _ => 2,
    };
    // The nodes of a tree are prepared for more rows at a time.
    let threads = if call.trees && rows > 1 && call.fused && call.max_threads >= 256 { 256 } else { 128 };
    let rows_per_workgroup = threads / GROUP * rows;
    let splits = call.head_v_dim.div_ceil(rows_per_workgroup);
    // Little workgroup memory lets many workgroups be at work at a time; few different numbers are few kernels to compile.
    let most_at_once = if call.trees { MAX_TREE } else { MAX_AT_ONCE };
    let at_once = |of: u32, most: u32| match of {
        _ if !call.fused => AT_ONCE_OF_FEW,
        0..=1 => 1,
        2..=MAX_AT_ONCE => MAX_AT_ONCE,
        _ => most,
    };
    let whole = call.fused
        && call.aligned
        && call.state.access == StateAccess::Fours
        && call.head_k_dim == 32 * vectors
        && call.head_v_dim.is_multiple_of(rows_per_workgroup);
    let mut plan = RecurrentPlan {
        state: call.state,
        channels: call.per_channel || !call.fused,
        trees: call.trees || !call.fused,
        whole,
        direct: whole && call.trees && rows > 1,
        early: rows == 1,
        token_type: call.tokens.filter(|_| call.fused),
        vectors,
        rows,
        threads,
        tokens: at_once(call.max_window, most_at_once),
        entries: at_once(call.max_pending, MAX_AT_ONCE),
        splits,
        units: u64::from(call.num_seqs) * u64::from(call.num_v_heads) * u64::from(splits),
    };
    while plan.tokens.max(plan.entries) > 1 && plan.memory(call.without_subgroups) > call.memory {
        plan.tokens = (plan.tokens / 2).max(1);
        plan.entries = (plan.entries / 2).max(1);
    }
    plan
}

impl RecurrentPlan {
    /// The constants that the kernel is compiled with, but for those of the state.
    pub(crate) fn constants(&self) -> [(&'static str, u32); 15] {
        let rows = self.threads / GROUP * self.rows;
        let each = |numbers: u32| numbers.div_ceil(self.threads);
        [
            ("THREADS", self.threads),
            ("NV", self.vectors),
            ("NR", self.rows),
            ("TM", self.tokens),
            ("PM", self.entries),
            ("CHANNELS", self.channels.into()),
            ("TREES", self.trees.into()),
            ("WHOLE", self.whole.into()),
            ("TOKENS", self.token_type.map_or(ANY, |dtype| Elements::from(dtype).word())),
            ("DIRECT", self.direct.into()),
            ("EARLY", self.early.into()),
            // Numbers that a lane prepares.
            ("TURNS", (2 * self.tokens).div_ceil(self.threads / GROUP)),
            ("VALUES", each(self.tokens * rows)),
            ("ENTRY_FOURS", each(self.entries * GROUP * self.vectors)),
            ("ENTRY_VALUES", each(self.entries * rows)),
        ]
    }

    /// Bytes of workgroup memory; the kernel's arrays are the same.
    pub(crate) fn memory(&self, without_subgroups: bool) -> u32 {
        let padded = 32 * self.vectors;
        let rows = self.threads / GROUP * self.rows;
        let decay = if self.channels { padded } else { 4 };
        let (outputs, of_the_tree) = (if self.direct { 0 } else { rows }, if self.trees { 2 } else { 0 });
        let of_a_token = 2 * padded + decay + 1 + rows + outputs + of_the_tree;
        let of_an_entry = padded + decay + rows;
        let exchanged = if without_subgroups { self.threads } else { 0 };
        4 * (self.tokens * of_a_token + self.entries * of_an_entry + exchanged + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of workgroup memory that WebGPU promises.
    const WEBGPU: u32 = 16_384;
    const F32: StateKind = StateKind { dtype: DType::F32, access: StateAccess::Fours };

    fn call(num_seqs: u32, head_k_dim: u32, head_v_dim: u32) -> RecurrentCall {
        RecurrentCall {
            state: F32,
            num_seqs,
            num_v_heads: 32,
            head_k_dim,
            head_v_dim,
            per_channel: false,
            trees: false,
            aligned: true,
            tokens: Some(DType::Bf16),
            memory: 32_768,
            max_threads: 256,
            without_subgroups: false,
            rows: None,
            max_window: 8,
            max_pending: 8,
            fused: true,
        }
    }

    #[test]
    fn states_move_in_fours_where_all_is_aligned() {
        let of = |k, first, stride| StateKind::new(DType::F32, k, first, stride).access;
        assert_eq!(of(128, 0, 16_384), StateAccess::Fours);
        assert_eq!(of(100, 4, 400), StateAccess::Fours);
        assert_eq!(of(99, 0, 400), StateAccess::Ones);
        assert_eq!(of(128, 1, 16_384), StateAccess::Ones);
        assert_eq!(of(128, 0, 16_386), StateAccess::Ones);
    }

    #[test]
    fn kernels_are_chosen_as_the_table_says() {
        // Call, vectors of a lane, rows of a group, tokens and entries at a time, shares of a head.
        let channels = RecurrentCall { per_channel: true, ..call(64, 128, 128) };
        let trees = |max_window| RecurrentCall { trees: true, max_window, ..call(64, 128, 128) };
        let table = [
            (call(1, 128, 128), 4, 1, (4, 4), 8),
            (call(64, 128, 128), 4, 2, (4, 4), 4),
            (RecurrentCall { max_window: 1, max_pending: 0, ..call(64, 128, 128) }, 4, 2, (1, 1), 4),
            (RecurrentCall { max_window: 3, max_pending: 2, ..call(64, 128, 128) }, 4, 2, (4, 4), 4),
            (trees(4), 4, 2, (4, 4), 2),
            (trees(5), 4, 2, (16, 4), 2),
            (RecurrentCall { max_threads: 128, ..trees(5) }, 4, 2, (16, 4), 4),
            (RecurrentCall { memory: 16_384, ..trees(16) }, 4, 2, (8, 2), 2),
            (RecurrentCall { max_window: 1, fused: false, ..call(64, 96, 128) }, 4, 2, (8, 8), 4),
            (RecurrentCall { fused: false, ..call(64, 5, 128) }, 4, 2, (8, 8), 4),
            (call(64, 96, 128), 3, 2, (4, 4), 4),
            (call(64, 97, 130), 4, 2, (4, 4), 5),
            (call(64, 65, 17), 4, 2, (4, 4), 1),
            (call(64, 256, 256), 8, 2, (4, 4), 8),
            (call(64, 1, 1), 1, 1, (4, 4), 1),
            (RecurrentCall { memory: 4096, ..call(64, 128, 128) }, 4, 2, (2, 2), 4),
            (RecurrentCall { memory: 16_384, head_k_dim: 256, ..channels }, 8, 2, (2, 2), 4),
            (RecurrentCall { rows: Some(2), ..call(1, 128, 128) }, 4, 2, (4, 4), 4),
        ];
        for (call, vectors, rows, at_once, splits) in table {
            let plan = recurrent(&call);
            let got = (plan.vectors, plan.rows, (plan.tokens, plan.entries), plan.splits);
            assert_eq!(
                got,
                (vectors, rows, at_once, splits),
                "{call:?}, {} bytes",
                plan.memory(call.without_subgroups)
            );
        }
    }

    #[test]
    fn a_plan_is_for_whole_rows_where_all_are() {
        let whole = call(64, 128, 128);
        let ones = StateKind { access: StateAccess::Ones, ..F32 };
        let table = [
            (whole, true),
            (RecurrentCall { aligned: false, ..whole }, false),
            (RecurrentCall { state: ones, ..whole }, false),
            (RecurrentCall { fused: false, ..whole }, false),
            (call(64, 96, 128), true),
            (call(64, 97, 128), false),
            (call(64, 160, 96), true),
            (call(64, 128, 48), false),
        ];
        for (call, expected) in table {
            let plan = recurrent(&call);
            assert_eq!((plan.whole, plan.direct), (expected, false), "{call:?}");
            let of_trees = recurrent(&RecurrentCall { trees: true, ..call });
            assert_eq!(of_trees.direct, of_trees.whole && of_trees.rows > 1, "{call:?}");
        }
    }

    #[test]
    fn a_plan_covers_all_rows_within_the_memory_that_webgpu_promises() {
        for k in 1..=256 {
            for (v, num_seqs) in [(1, 1), (17, 3), (128, 64), (256, 1), (255, 1000)] {
                for (per_channel, without_subgroups) in [(false, false), (true, false), (false, true), (true, true)] {
                    let call = RecurrentCall { per_channel, without_subgroups, memory: WEBGPU, ..call(num_seqs, k, v) };
                    let plan = recurrent(&call);
                    assert!(plan.memory(without_subgroups) <= WEBGPU, "{call:?}");
                    assert!(32 * plan.vectors >= k && plan.splits * plan.threads / 8 * plan.rows >= v, "{call:?}");
                    assert_eq!(plan.vectors, recurrent(&RecurrentCall { num_seqs: 1, ..call }).vectors);
                }
            }
        }
    }
}
