//! `commit_states`.

use undraft_core::ops::CommitStatesArgs;
use undraft_core::{DecayShape, HeadMap};

use crate::backend::CudaBackend;
use crate::device::Output;
use crate::driver::DeviceBuffer;
use crate::error::Result;
use crate::raw::{CUstream, DevicePtr, Elements, Grid, Launcher, Switch};
use crate::select::{Kernel, commit_lanes};

/// Threads of a block.
const THREADS: u64 = 256;
/// Pieces of a thread, as in the kernel.
const PIECES: u64 = 4;

/// Parameters of the launch; shapes in [`undraft_core::ops::CommitStatesArgs`], with a layer axis in front.
#[derive(Clone, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct CommitParams {
    pub state: DevicePtr,
    pub log_k: DevicePtr,
    pub log_decay: DevicePtr,
    pub log_delta: DevicePtr,
    /// `[num_seqs]` i32, slots of the log; 0: as `state_indices`.
    pub log_slots: DevicePtr,
    pub state_indices: DevicePtr,
    pub num_kept: DevicePtr,
    /// Or 0.
    pub path: DevicePtr,
    /// Elements from one slot's state to the next, at least `HV V K`; a multiple of 4 where K is one.
    pub state_stride: i64,
    /// Elements from one layer to the next; a multiple of 4 where K is one.
    pub layer_state_stride: i64,
    pub layer_k_stride: i64,
    pub layer_decay_stride: i64,
    pub layer_delta_stride: i64,
    pub num_seqs: i32,
    pub num_k_heads: i32,
    pub num_v_heads: i32,
    pub head_k_dim: i32,
    pub head_v_dim: i32,
    /// Tokens of a slot of the log.
    pub log_max: i32,
    /// Whether the decay is `[HV, K]` a token.
    pub per_channel: Switch,
    /// Whether value head `hv` reads key head `hv % H`; else `hv / (HV / H)`.
    pub tiled: Switch,
    /// Filled in by the launch.
    pub blocks_per_head: i32,
}

impl Launcher {
    /// Replays the kept entries of `num_layers` layers into their states.
    ///
    /// # Errors
    /// [`crate::CudaError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn commit_states(
        &self,
        stream: CUstream,
        params: &CommitParams,
        state: Elements,
        num_layers: u16,
    ) -> Result<()> {
        let lanes = commit_lanes(params.head_k_dim.max(0) as usize);
        let head = params.head_k_dim.max(0) as u64 * params.head_v_dim.max(0) as u64;
        let blocks_per_head = head.div_ceil(THREADS * PIECES * lanes as u64);
        let params = CommitParams { blocks_per_head: blocks_per_head as i32, ..params.clone() };
        let heads = params.num_seqs.max(0) as u64 * params.num_v_heads.max(0) as u64;
        let grid =
            Grid { blocks: (heads * blocks_per_head, u32::from(num_layers)), threads: THREADS as u32, shared: 0 };
        let kernel = Kernel::CommitStates { state: state.into(), lanes };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch("commit_states", kernel, grid, stream, &params) }
    }
}

pub(crate) fn run(backend: &CudaBackend, args: CommitStatesArgs<'_>) -> Result<()> {
    let stream = backend.stream();
    let state = Output::upload(stream, args.state)?;
    let log_k = DeviceBuffer::from_slice(stream, args.log.k)?;
    let log_decay = DeviceBuffer::from_slice(stream, args.log.decay)?;
    let log_delta = DeviceBuffer::from_slice(stream, args.log.delta)?;
    let state_indices = DeviceBuffer::from_slice(stream, args.state_indices)?;
    let num_kept = DeviceBuffer::from_slice(stream, args.num_kept)?;
    let path = DeviceBuffer::from_slice(stream, args.path)?;
    let params = CommitParams {
        state: state.address(),
        log_k: log_k.address(),
        log_decay: log_decay.address(),
        log_delta: log_delta.address(),
        log_slots: 0,
        state_indices: state_indices.address(),
        num_kept: num_kept.address(),
        path: path.address(),
        state_stride: args.dims.state_len() as i64,
        num_seqs: args.state_indices.len() as i32,
        num_k_heads: args.dims.num_k_heads() as i32,
        num_v_heads: args.dims.num_v_heads() as i32,
        head_k_dim: args.dims.head_k_dim() as i32,
        head_v_dim: args.dims.head_v_dim() as i32,
        log_max: args.log.max_tokens as i32,
        per_channel: (args.dims.decay_shape() == DecayShape::PerChannel).into(),
        tiled: (args.head_map == HeadMap::Tiled).into(),
        ..CommitParams::default()
    };
    // SAFETY: the buffers were made from checked arguments and live until the results are back.
    unsafe { backend.launcher().commit_states(stream.handle(), &params, state.dtype().into(), 1)? };
    state.download(stream)?;
    Ok(())
}
