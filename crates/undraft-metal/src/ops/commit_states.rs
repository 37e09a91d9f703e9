//! `commit_states`.

use undraft_core::ops::CommitStatesArgs;
use undraft_core::{DecayShape, HeadMap};

use crate::backend::MetalBackend;
use crate::driver::DeviceBuffer;
use crate::error::Result;
use crate::host::Output;
use crate::raw::{Call, Elements, EncoderHandle, Launcher, Slice, Switch, check_sizes, present};
use crate::select::Kernel;

const OP: &str = "commit_states";
/// Threads of a threadgroup.
const THREADS: u32 = 256;

/// Parameters of the launch; shapes in [`undraft_core::ops::CommitStatesArgs`], with a layer axis in front.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct CommitParams {
    pub state: Slice,
    pub log_k: Slice,
    pub log_decay: Slice,
    pub log_delta: Slice,
    /// `[num_seqs]` i32, slots of the log; none: as `state_indices`.
    pub log_slots: Slice,
    pub state_indices: Slice,
    pub num_kept: Slice,
    /// Or none.
    pub path: Slice,
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
}

/// As in the kernel's source.
#[repr(C)]
struct Words {
    state_stride: i64,
    layer_state_stride: i64,
    layer_k_stride: i64,
    layer_decay_stride: i64,
    layer_delta_stride: i64,
    num_seqs: i32,
    num_k_heads: i32,
    num_v_heads: i32,
    head_k_dim: i32,
    head_v_dim: i32,
    log_max: i32,
    per_channel: Switch,
    tiled: Switch,
    blocks_per_head: i32,
    present: u32,
}

impl Launcher {
    /// Replays the kept entries of `num_layers` layers into their states.
    ///
    /// # Errors
    /// [`crate::MetalError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn commit_states(
        &self,
        encoder: EncoderHandle,
        params: &CommitParams,
        state: Elements,
        num_layers: u32,
    ) -> Result<()> {
        let &CommitParams { num_seqs, num_k_heads, num_v_heads, head_k_dim, head_v_dim, log_max, .. } = params;
        check_sizes(OP, 0, &[("num_seqs", num_seqs.into()), ("log_max", log_max.into())])?;
        let dims = [("num_k_heads", num_k_heads), ("num_v_heads", num_v_heads), ("head_k_dim", head_k_dim)];
        check_sizes(OP, 1, &dims.map(|(name, size)| (name, size.into())))?;
        check_sizes(OP, 1, &[("head_v_dim", head_v_dim.into())])?;
        let buffers = [
            params.state,
            params.log_k,
            params.log_decay,
            params.log_delta,
            params.log_slots,
            params.state_indices,
            params.num_kept,
            params.path,
        ];
        let lanes = if head_k_dim % 4 == 0 { 4 } else { 1 };
        let head = head_k_dim as u64 * head_v_dim as u64;
        let blocks_per_head = head.div_ceil(u64::from(THREADS) * lanes as u64);
        let call = Call {
            op: OP,
            kernel: Kernel::CommitStates { state: state.into(), lanes },
            buffers: &buffers,
            params_slot: 8,
            threadgroups: [blocks_per_head * num_v_heads as u64, num_seqs as u64, num_layers.into()],
            threads: [THREADS, 1, 1],
            threadgroup_bytes: 0,
        };
        let words = Words {
            state_stride: params.state_stride,
            layer_state_stride: params.layer_state_stride,
            layer_k_stride: params.layer_k_stride,
            layer_decay_stride: params.layer_decay_stride,
            layer_delta_stride: params.layer_delta_stride,
            num_seqs,
            num_k_heads,
            num_v_heads,
            head_k_dim,
            head_v_dim,
            log_max,
            per_channel: params.per_channel,
            tiled: params.tiled,
            blocks_per_head: blocks_per_head as i32,
            present: present(&buffers),
        };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch(encoder, call, &words) }
    }
}

pub(crate) fn run(backend: &MetalBackend, args: CommitStatesArgs<'_>) -> Result<()> {
    let driver = backend.driver();
    let state = Output::upload(driver, args.state)?;
    let log_k = DeviceBuffer::from_slice(driver, args.log.k)?;
    let log_decay = DeviceBuffer::from_slice(driver, args.log.decay)?;
    let log_delta = DeviceBuffer::from_slice(driver, args.log.delta)?;
    let state_indices = DeviceBuffer::from_slice(driver, args.state_indices)?;
    let num_kept = DeviceBuffer::from_slice(driver, args.num_kept)?;
    let path = DeviceBuffer::from_slice(driver, args.path)?;
    let params = CommitParams {
        state: state.slice(),
        log_k: log_k.slice(),
        log_decay: log_decay.slice(),
        log_delta: log_delta.slice(),
        state_indices: state_indices.slice(),
        num_kept: num_kept.slice(),
        path: path.slice(),
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
    let dtype = state.dtype().into();
    // SAFETY: the buffers were made from checked arguments and live until the work is done.
    backend.run(|launcher, encoder| unsafe { launcher.commit_states(encoder, &params, dtype, 1) })?;
    state.download()
}
