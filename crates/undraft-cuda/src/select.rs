//! Which kernel runs a call, and with what grid: pure functions of sizes, without a GPU.

pub(crate) mod chunk;

use undraft_core::DType;

use self::chunk::ChunkKernel;
use crate::dense::select::DenseKernel;

/// A function of the fat binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    FusedGdnGating,
    CausalConv1dUpdate,
    CausalConv1dFn,
    RmsNormGated,
    /// `lanes`: neighbours of a thread, 1 or 4.
    CommitStates {
        state: DType,
        lanes: usize,
    },
    Recurrent(Recurrent),
    Dense(DenseKernel),
    Chunk(ChunkKernel),
}

/// A kernel of the recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recurrent {
    state: DType,
    /// `K` with padding.
    padded_k: usize,
    /// Rows of a lane group.
    rows: usize,
    kind: Kind,
}

impl Recurrent {
    /// `K` with padding.
    pub(crate) fn padded_k(&self) -> usize {
        self.padded_k
    }
    /// The kernels that [`crate::raw::Launcher::compile_for`] compiles for a head size, if it does.
    pub(crate) fn compiled(head_k_dim: usize) -> Option<[Recurrent; 5 * STATES.len()]> {
        if !head_k_dim.is_multiple_of(32) || !(32..=256).contains(&head_k_dim) || [64, 128, 256].contains(&head_k_dim) {
            return None;
        }
        let (many, any) = if head_k_dim <= 128 { (4, 2) } else { (2, 1) };
        let kinds = [(1, Kind::Chain), (1, Kind::Pending), (many, Kind::Chain), (many, Kind::Tree), (any, Kind::Any)];
        Some(std::array::from_fn(|i| {
            let (rows, kind) = kinds[i / STATES.len()];
            Recurrent { state: STATES[i % STATES.len()], padded_k: head_k_dim, rows, kind }
        }))
    }
    /// Position in [`Recurrent::compiled`].
    pub(crate) fn index_of_compiled(&self) -> Option<usize> {
        Self::compiled(self.padded_k)?.iter().position(|kernel| kernel == self)
    }
    /// Threads of a block.
    fn threads(&self) -> usize {
        if self.kind == Kind::Tree && self.padded_k <= 128 { 256 } else { 128 }
    }
    /// Rows that a block works on at a time.
    fn tile(&self) -> usize {
        self.threads() / GROUP * self.rows
    }
}

/// What a kernel of the recurrence is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Short chains with one decay a head; `K` is the padded size and rows are moved as vectors.
    Chain,
    /// The same where rows are few and entries pending.
    Pending,
    /// The same as `Chain` with a state captured after each token.
    Each,
    /// The same as `Chain` for short trees.
    Tree,
    /// Long windows and a decay per channel as well.
    Any,
    /// Any `K` up to the padded size.
    Odd,
}

const STATES: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];
/// Padded sizes, rows and kinds that are compiled.
const RECURRENT: [(usize, usize, Kind); 18] = [
    (64, 1, Kind::Chain),
    (64, 4, Kind::Chain),
    (128, 1, Kind::Chain),
    (128, 2, Kind::Chain),
    (128, 4, Kind::Chain),
    (256, 1, Kind::Chain),
    (256, 2, Kind::Chain),
    (64, 1, Kind::Pending),
    (128, 1, Kind::Pending),
    (256, 1, Kind::Pending),
    (128, 1, Kind::Each),
    (128, 4, Kind::Each),
    (128, 2, Kind::Tree),
    (128, 2, Kind::Any),
    (32, 2, Kind::Odd),
    (64, 2, Kind::Odd),
    (128, 2, Kind::Odd),
    (256, 1, Kind::Odd),
];
/// Lanes of a row.
const GROUP: usize = 8;
/// Tokens and log entries that a block prepares at a time.
const CHAIN_TOKENS: usize = 8;
const TREE_TOKENS: usize = 16;
const PENDING_CHUNK: usize = 8;
/// Rows of a multiprocessor up to which a lane group takes one.
const FEW_ROWS_OF_SM: usize = 64;
/// Heads of a multiprocessor from which on a lane group takes two rows of K = 128: more warps then hide more, and their blocks,
/// more of which are resident, are still several for each place.
const MANY_HEADS_OF_SM: usize = 12;
/// Heads of a multiprocessor that come last and are shared out a tile at a time, so that all multiprocessors end together.
/// Their q and k are prepared several times, which pays where memory is the limit: f32 states and windows up to this one.
const TAIL_HEADS_OF_SM: usize = 2;
const TAIL_WINDOW: usize = 4;
/// Bytes of what a block keeps of its unit.
const UNIT: usize = 16;
/// Most rows of a unit of work.
const MAX_ROWS: usize = 128;
/// Blocks of a multiprocessor for which the general kernels are compiled.
const MAX_RESIDENT: usize = 4;
/// Shared memory of a block that the driver takes.
const SHARED_OF_DRIVER: usize = 1024;

impl Kernel {
    pub(crate) fn all() -> Vec<Kernel> {
        let mut all =
            vec![Kernel::FusedGdnGating, Kernel::CausalConv1dUpdate, Kernel::CausalConv1dFn, Kernel::RmsNormGated];
        for lanes in [1, 4] {
            all.extend(STATES.iter().map(|&state| Kernel::CommitStates { state, lanes }));
        }
        for (padded_k, rows, kind) in RECURRENT {
            all.extend(STATES.iter().map(|&state| Kernel::Recurrent(Recurrent { state, padded_k, rows, kind })));
        }
        all.extend(ChunkKernel::ALL.map(Kernel::Chunk));
        all.extend(DenseKernel::all().map(Kernel::Dense));
        all
    }

    /// Position in [`Kernel::all`].
    pub(crate) fn index(self) -> usize {
        let of_state = |state| STATES.iter().position(|&s| s == state).unwrap_or(0);
        match self {
            Kernel::FusedGdnGating => 0,
            Kernel::CausalConv1dUpdate => 1,
            Kernel::CausalConv1dFn => 2,
            Kernel::RmsNormGated => 3,
            Kernel::CommitStates { state, lanes } => 4 + usize::from(lanes == 4) * STATES.len() + of_state(state),
            Kernel::Recurrent(Recurrent { state, padded_k, rows, kind }) => {
                let row = RECURRENT.iter().position(|&r| r == (padded_k, rows, kind)).unwrap_or(0);
                4 + (2 + row) * STATES.len() + of_state(state)
            }
            Kernel::Chunk(kernel) => 4 + (2 + RECURRENT.len()) * STATES.len() + kernel.index(),
            Kernel::Dense(kernel) => 4 + (2 + RECURRENT.len()) * STATES.len() + ChunkKernel::ALL.len() + kernel.index(),
        }
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Kernel::FusedGdnGating => "fused_gdn_gating".into(),
            Kernel::CausalConv1dUpdate => "causal_conv1d_update".into(),
            Kernel::CausalConv1dFn => "causal_conv1d_fn".into(),
            Kernel::RmsNormGated => "rms_norm_gated".into(),
            Kernel::CommitStates { state, lanes } => format!("commit_states_{}_x{lanes}", state.name()),
            Kernel::Recurrent(Recurrent { state, padded_k, rows, kind }) => {
                let kind = match kind {
                    Kind::Chain => "chain",
                    Kind::Pending => "pending",
                    Kind::Each => "each",
                    Kind::Tree => "tree",
                    Kind::Any => "any",
                    Kind::Odd => "odd",
                };
                format!("recurrent_{}_k{padded_k}_r{rows}_{kind}", state.name())
            }
            Kernel::Dense(kernel) => kernel.name(),
            Kernel::Chunk(kernel) => kernel.name(),
        }
    }
}

/// What the choice of a kernel of the recurrence depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecurrentCall {
    pub(crate) state: DType,
    pub(crate) num_seqs: usize,
    pub(crate) num_v_heads: usize,
    pub(crate) head_k_dim: usize,
    pub(crate) head_v_dim: usize,
    pub(crate) per_channel: bool,
    pub(crate) tree: bool,
    /// Whether a state is captured after each token.
    pub(crate) each: bool,
    /// Whether kernels were compiled for the head size.
    pub(crate) compiled: bool,
    /// Tokens of the longest window.
    pub(crate) max_window: usize,
    /// Entries that are pending, at most.
    pub(crate) max_pending: usize,
    /// Streaming multiprocessors of the device.
    pub(crate) num_sms: usize,
    /// Bytes of shared memory of a multiprocessor.
    pub(crate) shared_per_sm: usize,
}

/// A kernel of the recurrence and its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecurrentPlan {
    pub(crate) kernel: Recurrent,
    /// How the first `whole_heads` heads are shared out.
    pub(crate) rows_per_block: usize,
    pub(crate) blocks_per_head: usize,
    pub(crate) whole_heads: usize,
    /// How those behind them are.
    pub(crate) tail_rows: usize,
    pub(crate) tail_blocks: usize,
    /// Shares of heads.
    pub(crate) num_units: u64,
    pub(crate) num_blocks: u64,
    /// Threads of a block.
    pub(crate) threads: u32,
    /// Bytes of shared memory of a block.
    pub(crate) shared: usize,
}

/// The padded size depends on `K` alone, and with it the order of sums; the rest decides who computes which rows.
pub(crate) fn recurrent(call: &RecurrentCall) -> RecurrentPlan {
    let padded_k = match call.head_k_dim {
        k if call.compiled => k,
        k => [32, 64, 128, 256].into_iter().find(|&padded| padded >= k).unwrap_or(256),
    };
    let whole = padded_k == call.head_k_dim;
    let plain = !call.per_channel && call.max_pending <= PENDING_CHUNK;
    let own = whole && (padded_k >= 64 || call.compiled);
    let chain = plain && own && !call.tree && call.max_window <= CHAIN_TOKENS && (padded_k == 128 || !call.each);
    let kind_of_chain = if call.each { Kind::Each } else { Kind::Chain };
    let tree = plain && (padded_k == 128 || call.compiled) && whole && call.tree && !call.each;
    let tree = tree && call.max_window <= TREE_TOKENS;
    // Where the rows of all heads are few, a block takes one tile of one row a group, so that all multiprocessors work.
    let all_rows = call.num_seqs * call.num_v_heads * call.head_v_dim;
    let few = all_rows <= call.num_sms * FEW_ROWS_OF_SM;
    let heads = call.num_seqs * call.num_v_heads;
    let many = heads >= MANY_HEADS_OF_SM * call.num_sms;
    let (rows, kind) = match padded_k {
        _ if chain && few && !call.each && call.max_pending > 0 => (1, Kind::Pending),
        _ if chain && few => (1, kind_of_chain),
        128 if chain && many && !call.each => (2, kind_of_chain),
        k if chain => (if k > 128 { 2 } else { 4 }, kind_of_chain),
        k if tree => (if k >= 128 { 2 } else { 4 }, Kind::Tree),
        k if call.compiled => (if k > 128 { 1 } else { 2 }, Kind::Any),
        128 if whole => (2, Kind::Any),
        256 => (1, Kind::Odd),
        _ => (2, Kind::Odd),
    };
    let kernel = Recurrent { state: call.state, padded_k, rows, kind };
    // Whole heads once they fill the device several times over: then q and k are prepared once a head.
    let rows_per_block = if heads >= 4 * call.num_sms { MAX_ROWS } else { kernel.tile() }.min(call.head_v_dim);
    let blocks_per_head = call.head_v_dim.div_ceil(rows_per_block);
    let with_tail = (padded_k, rows, kind) == (128, 2, Kind::Chain) && call.state == DType::F32;
    let with_tail = with_tail && call.max_window <= TAIL_WINDOW;
    let whole_heads = heads - if with_tail { TAIL_HEADS_OF_SM * call.num_sms } else { 0 };
    let tail_rows = kernel.tile().min(rows_per_block);
    let tail_blocks = call.head_v_dim.div_ceil(tail_rows);
    let shared = shared_memory(&kernel, call.per_channel);
    let num_units = (whole_heads * blocks_per_head + (heads - whole_heads) * tail_blocks) as u64;
    let num_blocks = match kind {
        Kind::Chain | Kind::Pending | Kind::Each | Kind::Tree => num_units,
        // As many as multiprocessors hold at once; each works through its share of the units.
        Kind::Any | Kind::Odd => {
            let resident = (call.shared_per_sm / (shared + SHARED_OF_DRIVER)).clamp(1, MAX_RESIDENT);
            num_units.min((call.num_sms * resident) as u64)
        }
    };
    let threads = kernel.threads() as u32;
    RecurrentPlan {
        kernel,
        rows_per_block,
        blocks_per_head,
        whole_heads,
        tail_rows,
        tail_blocks,
        num_units,
        num_blocks,
        threads,
        shared,
    }
}

/// Bytes that a block lays out; the kernel's offsets are the same sums.
fn shared_memory(kernel: &Recurrent, per_channel: bool) -> usize {
    let tokens = match kernel.kind {
        Kind::Chain | Kind::Pending | Kind::Each => CHAIN_TOKENS,
        Kind::Tree | Kind::Any | Kind::Odd => TREE_TOKENS,
    };
    let stage = kernel.rows * (kernel.padded_k / 32) * kernel.threads() * 4 * kernel.state.size();
    let keys = 2 * tokens * kernel.padded_k;
    let pending_keys = PENDING_CHUNK * kernel.padded_k;
    let pending = pending_keys + PENDING_CHUNK * MAX_ROWS;
    // Outputs lie in the place of what is used up before, if there is room.
    let outputs_at = match () {
        () if tokens <= PENDING_CHUNK => pending_keys,
        () if kernel.tile() >= MAX_ROWS => 0,
        () => pending,
    };
    let pending_and_outputs = pending.max(outputs_at + tokens * MAX_ROWS);
    let values = tokens * MAX_ROWS;
    let decay = (tokens + PENDING_CHUNK) * if per_channel { kernel.padded_k } else { 1 };
    stage + 4 * (keys + pending_and_outputs + values + decay + 4 * tokens) + UNIT
}

/// Neighbours that a thread of `commit_states` takes.
pub(crate) fn commit_lanes(head_k_dim: usize) -> usize {
    if head_k_dim.is_multiple_of(4) { 4 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(num_seqs: usize, k: usize, v: usize) -> RecurrentCall {
        RecurrentCall {
            state: DType::F32,
            num_seqs,
            num_v_heads: 32,
            head_k_dim: k,
            head_v_dim: v,
            per_channel: false,
            tree: false,
            each: false,
            compiled: false,
            max_window: 4,
            max_pending: 8,
            num_sms: 132,
            shared_per_sm: 233_472,
        }
    }

    #[test]
    fn an_index_is_the_place_in_the_list_and_names_differ() {
        let all = Kernel::all();
        for (i, kernel) in all.iter().enumerate() {
            assert_eq!(kernel.index(), i, "{kernel:?}");
        }
        let names: std::collections::BTreeSet<String> = all.iter().map(Kernel::name).collect();
        assert_eq!(names.len(), all.len());
    }

    #[test]
    fn kernels_are_chosen_as_the_table_says() {
        let table = [
            (call(1, 128, 128), "recurrent_f32_k128_r1_pending", 16, 256),
            (RecurrentCall { max_pending: 0, ..call(1, 128, 128) }, "recurrent_f32_k128_r1_chain", 16, 256),
            (call(8, 128, 128), "recurrent_f32_k128_r4_chain", 64, 512),
            (call(32, 128, 128), "recurrent_f32_k128_r4_chain", 128, 1024),
            (call(64, 128, 128), "recurrent_f32_k128_r2_chain", 128, 1784 + 4 * 264),
            (call(64, 128, 17), "recurrent_f32_k128_r2_chain", 17, 2048),
            (RecurrentCall { max_window: 8, ..call(64, 128, 128) }, "recurrent_f32_k128_r2_chain", 128, 2048),
            (RecurrentCall { state: DType::Bf16, ..call(64, 128, 128) }, "recurrent_bf16_k128_r2_chain", 128, 2048),
            (call(64, 256, 64), "recurrent_f32_k256_r2_chain", 64, 2048),
            (call(64, 64, 96), "recurrent_f32_k64_r4_chain", 96, 2048),
            (RecurrentCall { max_window: 9, ..call(64, 128, 128) }, "recurrent_f32_k128_r2_any", 128, 396),
            (RecurrentCall { max_pending: 9, ..call(64, 64, 64) }, "recurrent_f32_k64_r2_odd", 64, 528),
            (RecurrentCall { tree: true, ..call(64, 128, 256) }, "recurrent_f32_k128_r2_tree", 128, 4096),
            (RecurrentCall { tree: true, max_window: 17, ..call(64, 128, 256) }, "recurrent_f32_k128_r2_any", 128, 396),
            (RecurrentCall { per_channel: true, ..call(1, 128, 128) }, "recurrent_f32_k128_r2_any", 32, 128),
            (RecurrentCall { tree: true, ..call(1, 64, 3) }, "recurrent_f32_k64_r2_odd", 3, 32),
            (RecurrentCall { state: DType::Bf16, ..call(1, 96, 17) }, "recurrent_bf16_k128_r2_odd", 17, 32),
            (RecurrentCall { compiled: true, ..call(64, 96, 128) }, "recurrent_f32_k96_r4_chain", 128, 2048),
            (RecurrentCall { compiled: true, each: true, ..call(64, 96, 128) }, "recurrent_f32_k96_r2_any", 128, 528),
            (
                RecurrentCall { compiled: true, tree: true, ..call(64, 224, 128) },
                "recurrent_f32_k224_r2_tree",
                128,
                2048,
            ),
            (
                RecurrentCall { compiled: true, max_window: 9, ..call(1, 192, 128) },
                "recurrent_f32_k192_r1_any",
                16,
                256,
            ),
            (RecurrentCall { each: true, ..call(64, 128, 128) }, "recurrent_f32_k128_r4_each", 128, 2048),
            (RecurrentCall { state: DType::F16, ..call(1, 1, 1) }, "recurrent_f16_k32_r2_odd", 1, 32),
        ];
        for (call, name, rows_per_block, num_blocks) in table {
            let plan = recurrent(&call);
            assert_eq!(Kernel::Recurrent(plan.kernel).name(), name, "{call:?}");
            assert_eq!((plan.rows_per_block, plan.num_blocks), (rows_per_block, num_blocks), "{call:?}");
        }
    }

    #[test]
    fn blocks_fit_the_smallest_devices() {
        // 99 KB a block, where compute capability is 8.6, 8.9 or 12.0.
        for k in [64, 96, 128, 192, 224, 256] {
            for tree in [false, true] {
                let plan = recurrent(&RecurrentCall { tree, compiled: true, max_window: 8, ..call(64, k, 128) });
                assert!(plan.shared <= 99 << 10, "{plan:?}");
            }
        }
    }

    #[test]
    fn a_plan_covers_all_rows_with_a_compiled_kernel() {
        let all = Kernel::all();
        for k in 1..=256 {
            for (v, num_seqs) in [(1, 1), (17, 3), (128, 64), (256, 1), (255, 1000)] {
                for (tree, per_channel) in [(false, false), (true, false), (false, true), (true, true)] {
                    let call = RecurrentCall { tree, per_channel, ..call(num_seqs, k, v) };
                    let plan = recurrent(&call);
                    let kernel = Kernel::Recurrent(plan.kernel);
                    assert_eq!(all[kernel.index()], kernel);
                    assert!(plan.kernel.padded_k >= k && plan.rows_per_block * plan.blocks_per_head >= v);
                    assert!(plan.rows_per_block <= MAX_ROWS);
                    assert!((plan.blocks_per_head - 1) * plan.rows_per_block < v);
                    assert!(plan.tail_rows * plan.tail_blocks >= v && (plan.tail_blocks - 1) * plan.tail_rows < v);
                    assert!(plan.tail_rows <= MAX_ROWS && plan.whole_heads <= num_seqs * call.num_v_heads);
                    assert!(plan.kernel.padded_k == recurrent(&RecurrentCall { num_seqs: 1, ..call }).kernel.padded_k);
                }
            }
        }
    }
}
