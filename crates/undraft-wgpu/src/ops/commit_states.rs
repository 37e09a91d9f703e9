//! `commit_states`.

use undraft_core::ops::CommitStatesArgs;
use undraft_core::{DType, DecayShape, GdnDims, HeadMap};

use super::states::{state_constants, state_file};
use crate::backend::WgpuBackend;
use crate::batch::Batch;
use crate::buffer::Binding;
use crate::error::Result;
use crate::host::{Elementwise, Packed, count};
use crate::kernel::{Access, KernelSource, Params};
use crate::raw::{Elements, NONE};
use crate::select::StateKind;

/// Invocations of a workgroup.
const THREADS: u32 = 128;
/// Entries that are asked for before any is used.
const AT_A_TIME: u32 = 4;
/// Rows of an invocation, where invocations of a workgroup are whole rows.
const ROWS: u32 = 4;

crate::params! {
    /// Parameters of the dispatch; shapes in [`undraft_core::ops::CommitStatesArgs`].
    #[allow(missing_docs)]
    pub struct CommitParams {
        pub state_first: u32,
        /// Elements from one slot's state to the next, at least `HV V K`.
        pub state_stride: u32,
        /// First elements of the log's parts.
        pub k_first: u32,
        pub decay_first: u32,
        pub delta_first: u32,
        /// Tokens of a slot of the log.
        pub log_max: u32,
        /// First elements of lists in `ints`.
        pub state_indices: u32,
        pub num_kept: u32,
        /// Or [`NONE`](crate::raw::NONE): as `state_indices`.
        pub log_slots: u32,
        /// Or [`NONE`](crate::raw::NONE): the first entries.
        pub path: u32,
        pub num_seqs: u32,
        pub num_k_heads: u32,
        pub num_v_heads: u32,
        pub head_k_dim: u32,
        pub head_v_dim: u32,
        /// 1 if the decay is `[HV, K]` a token.
        pub per_channel: u32,
        /// 1 if value head `hv` reads key head `hv % H`; else `hv / (HV / H)`.
        pub tiled: u32,
        /// Filled in by the dispatch.
        pub blocks_per_head: u32,
        /// Filled in by the dispatch.
        pub state_dtype: u32,
    }
}

/// Buffers of the dispatch.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct CommitBuffers<'a> {
    pub state: Binding<'a>,
    /// k, decay and delta.
    pub log: Binding<'a>,
    /// Slots, counts and paths.
    pub ints: Binding<'a>,
}

impl CommitParams {
    /// The sizes, and no lists but `state_indices` and `num_kept`, whose places are to be set.
    pub fn new(dims: &GdnDims, num_seqs: usize) -> Result<Self> {
        Ok(Self {
            state_stride: count("state_stride", dims.state_len() as u64)?,
            log_slots: NONE,
            path: NONE,
            num_seqs: count("num_seqs", num_seqs as u64)?,
            num_k_heads: dims.num_k_heads() as u32,
            num_v_heads: dims.num_v_heads() as u32,
            head_k_dim: dims.head_k_dim() as u32,
            head_v_dim: dims.head_v_dim() as u32,
            per_channel: (dims.decay_shape() == DecayShape::PerChannel).into(),
            ..Self::default()
        })
    }
}

impl Batch<'_> {
    /// Replays the kept entries of a layer into its states.
    ///
    /// # Errors
    /// [`crate::WgpuError`] of the kernel or the dispatch.
    pub fn commit_states(&mut self, buffers: &CommitBuffers<'_>, params: &CommitParams, state: DType) -> Result<()> {
        let CommitBuffers { state: states, log, ints } = *buffers;
        let kind = StateKind::new(state, params.head_k_dim, params.state_first, params.state_stride);
        let fours = params.head_k_dim.div_ceil(4);
        // Rows that lie a workgroup apart share a key.
        let rows = if THREADS.is_multiple_of(fours) { ROWS } else { 1 };
        let params = CommitParams {
            blocks_per_head: (fours * params.head_v_dim).div_ceil(THREADS * rows),
            state_dtype: Elements::from(state).word(),
            ..params.clone()
        };
        let source = KernelSource {
            name: "commit_states",
            files: &[
                include_str!("../../kernels/prelude.wgsl"),
                state_file(kind),
                include_str!("../../kernels/commit_states.wgsl"),
            ],
            params: CommitParams::WGSL,
            buffers: &[Access::ReadWrite, Access::ReadWrite, Access::Read, Access::Read],
            exchanges: false,
            is_large: true,
        };
        let [dtype, at_once] = state_constants(kind, self.device().is_fast());
        let kernel = self
            .device()
            .pipeline(&source, &[("THREADS", THREADS), ("NR", rows), ("AT_A_TIME", AT_A_TIME), dtype, at_once])?;
        let heads = u64::from(params.num_seqs) * u64::from(params.num_v_heads);
        let device = self.device().clone();
        let buffers = [states, device.absent(0), log, ints];
        self.dispatch(&kernel, &buffers, &params, heads * u64::from(params.blocks_per_head))
    }
}

pub(crate) fn run(backend: &WgpuBackend, args: CommitStatesArgs<'_>) -> Result<()> {
    let device = backend.device();
    let mut params = CommitParams::new(&args.dims, args.state_indices.len())?;
    params.tiled = (args.head_map == HeadMap::Tiled).into();
    params.log_max = count("log.max_tokens", args.log.max_tokens as u64)?;
    let mut log = Packed::default();
    params.k_first = log.push("log.k", args.log.k)?;
    params.decay_first = log.push("log.decay", args.log.decay)?;
    params.delta_first = log.push("log.delta", args.log.delta)?;
    let mut ints = Packed::default();
    params.state_indices = ints.push("state_indices", args.state_indices)?;
    params.num_kept = ints.push("num_kept", args.num_kept)?;
    params.path = ints.push_some("path", args.path)?;
    let state = Elementwise::upload(device, "state", args.state)?;
    let (log, ints) = (log.upload(device, "log")?, ints.upload(device, "ints")?);
    let mut batch = Batch::new(device);
    let buffers = CommitBuffers { state: (&state.buffer).into(), log: (&log).into(), ints: (&ints).into() };
    batch.commit_states(&buffers, &params, state.dtype())?;
    let read = batch.finish()?.run(&[state.part()])?;
    state.finish(&read[0]);
    Ok(())
}
