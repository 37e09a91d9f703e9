//! `fused_recurrent_gated_delta_rule`.

use undraft_core::ops::FusedRecurrentArgs;
use undraft_core::{Capture, CaptureMut, DType, DecayShape, GdnDims, PAD_SLOT};

use crate::backend::CudaBackend;
use crate::device::Output;
use crate::driver::DeviceBuffer;
use crate::error::{CudaError, Result};
use crate::ops::delta_inputs::{DeltaInputs, set_delta_inputs};
use crate::raw::{CUstream, Captured, DecayForm, DevicePtr, Elements, Grid, Launcher, Switch};
use crate::select::{self, Kernel, RecurrentCall};

/// Parameters of the launch; shapes in [`undraft_core::ops::FusedRecurrentArgs`].
///
/// Unlike there, the log that pending entries lie in and the log that the window fills are two, since blocks of one
/// launch read the one and write the other.
#[derive(Clone, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct RecurrentParams {
    pub q: DevicePtr,
    pub k: DevicePtr,
    pub v: DevicePtr,
    pub decay: DevicePtr,
    pub beta: DevicePtr,
    /// Or 0, unless the decay's form is `Gate`.
    pub a_log: DevicePtr,
    /// Or 0, unless the decay's form is `Gate`.
    pub dt_bias: DevicePtr,
    pub out: DevicePtr,
    pub state: DevicePtr,
    /// With capture `PerToken`.
    pub captured: DevicePtr,
    pub cu_seqlens: DevicePtr,
    pub state_indices: DevicePtr,
    /// Or 0: every window is a chain.
    pub parents: DevicePtr,
    /// `[num_log_slots, pending_max, H, K]`; or 0 where nothing is pending.
    pub pending_k: DevicePtr,
    pub pending_decay: DevicePtr,
    pub pending_delta: DevicePtr,
    /// `[num_seqs]` i32, slots of the pending log; 0: as `state_indices`.
    pub pending_slots: DevicePtr,
    /// `[num_seqs]` u32; 0: none.
    pub num_pending: DevicePtr,
    /// `[num_seqs, pending_max]` u32; 0: the first entries.
    pub pending_path: DevicePtr,
    /// `[num_log_slots, log_max, H, K]`, with capture `DeltaLog`.
    pub log_k: DevicePtr,
    pub log_decay: DevicePtr,
    pub log_delta: DevicePtr,
    /// `[num_seqs]` i32, slots of the window's log; 0: as `state_indices`.
    pub log_slots: DevicePtr,
    pub q_stride: i64,
    pub k_stride: i64,
    pub v_stride: i64,
    pub decay_stride: i64,
    pub beta_stride: i64,
    pub out_stride: i64,
    /// Elements from one slot's state to the next, at least `HV V K`; a multiple of 4 where K is 64, 128, 256 or a size
    /// that [`Launcher::compile_for`] was called with.
    pub state_stride: i64,
    pub num_seqs: i32,
    pub num_k_heads: i32,
    pub num_v_heads: i32,
    pub head_k_dim: i32,
    pub head_v_dim: i32,
    /// Tokens of a slot of the pending log.
    pub pending_max: i32,
    /// Tokens of a slot of the window's log.
    pub log_max: i32,
    /// Tokens of a sequence in `captured`.
    pub capture_max: i32,
    /// No window has more tokens; 0: unknown. Chains of up to 8 and trees of up to 16 tokens, after up to 8
    /// entries, have kernels of their own.
    pub max_window: i32,
    /// No sequence has more entries pending; 0: unknown, then `pending_max` counts.
    pub max_pending: i32,
    pub q_dtype: Elements,
    /// What `round_io` rounds to, as well.
    pub k_dtype: Elements,
    pub v_dtype: Elements,
    pub decay_dtype: Elements,
    pub beta_dtype: Elements,
    pub out_dtype: Elements,
    pub decay_form: DecayForm,
    /// Whether the decay is `[HV, K]` a token.
    pub per_channel: Switch,
    pub beta_is_logit: Switch,
    /// Whether value head `hv` reads key head `hv % H`; else `hv / (HV / H)`.
    pub tiled: Switch,
    /// Whether q and k are normalised, with `eps`.
    pub l2_norm: Switch,
    /// Whether beta and the normalised q and k are rounded to the element type of k.
    pub round_io: Switch,
    pub capture: Captured,
    /// Whether the launch may begin before the one before it on the stream has ended (compute capability 9.0 and up): the caller
    /// promises that the launch before does not write the states, pending entries and their paths, slots, lengths, counts,
    /// `a_log` and `dt_bias` that this one reads. What else it reads, such as q, k and v, it reads when that launch has ended.
    pub early: Switch,
    /// Filled in by the launch, as the ones below: how heads are shared out.
    pub whole_heads: i32,
    /// Filled in by the launch.
    pub rows_per_block: i32,
    /// Filled in by the launch.
    pub blocks_per_head: i32,
    /// Filled in by the launch.
    pub tail_rows: i32,
    /// Filled in by the launch.
    pub tail_blocks: i32,
    /// Filled in by the launch.
    pub num_units: i32,
    /// Filled in by the launch.
    pub v_heads_per_k_head: i32,
    /// Filled in by the launch: whether q, k and the logs may be moved in vectors of 4.
    pub in_vectors: Switch,
    pub eps: f32,
    pub scale: f32,
}

impl RecurrentParams {
    /// The sizes, contiguous rows, and the defaults of the enums; everything else is 0.
    pub fn new(dims: &GdnDims, num_seqs: usize) -> Self {
        Self {
            q_stride: dims.key_dim() as i64,
            k_stride: dims.key_dim() as i64,
            v_stride: dims.value_dim() as i64,
            decay_stride: dims.decay_len() as i64,
            beta_stride: dims.num_v_heads() as i64,
            out_stride: dims.value_dim() as i64,
            state_stride: dims.state_len() as i64,
            num_seqs: num_seqs as i32,
            num_k_heads: dims.num_k_heads() as i32,
            num_v_heads: dims.num_v_heads() as i32,
            head_k_dim: dims.head_k_dim() as i32,
            head_v_dim: dims.head_v_dim() as i32,
            per_channel: (dims.decay_shape() == DecayShape::PerChannel).into(),
            scale: undraft_core::ops::DeltaRuleInputs::default_scale(dims),
            ..Self::default()
        }
    }

    /// Whether vectors of 4 elements of q, k and the logs are aligned, in units of so many rows.
    fn vectors_fit(&self, rows: usize) -> bool {
        let aligned = |at: DevicePtr, dtype: Elements| at.is_multiple_of(4 * DType::from(dtype).size() as u64);
        let sizes = [self.head_k_dim, self.head_v_dim].iter().all(|size| size % 4 == 0) && rows.is_multiple_of(4);
        let strides = [self.q_stride, self.k_stride].iter().all(|stride| stride % 4 == 0);
        let logs = [self.pending_k, self.pending_delta, self.log_k].iter().all(|&at| aligned(at, Elements::F32));
        sizes && strides && logs && aligned(self.q, self.q_dtype) && aligned(self.k, self.k_dtype)
    }
}

impl Launcher {
    /// Replays pending entries, runs the windows, leaves what the capture says.
    ///
    /// # Errors
    /// [`crate::CudaError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn fused_recurrent_gated_delta_rule(
        &self,
        stream: CUstream,
        params: &RecurrentParams,
        state: Elements,
    ) -> Result<()> {
        let max_pending = if params.max_pending > 0 { params.max_pending } else { params.pending_max };
        let plan = select::recurrent(&RecurrentCall {
            state: state.into(),
            num_seqs: params.num_seqs.max(0) as usize,
            num_v_heads: params.num_v_heads.max(1) as usize,
            head_k_dim: params.head_k_dim.max(1) as usize,
            head_v_dim: params.head_v_dim.max(1) as usize,
            per_channel: params.per_channel == Switch::On,
            tree: params.parents != 0,
            each: params.capture == Captured::PerToken,
            compiled: self.device.compiled_for(params.head_k_dim.max(0) as usize).is_some(),
            max_window: if params.max_window > 0 { params.max_window as usize } else { usize::MAX },
            max_pending: if params.num_pending != 0 { max_pending.max(0) as usize } else { 0 },
            num_sms: self.device.attributes().num_sms,
            shared_per_sm: self.device.attributes().shared_per_sm,
        });
        let most = i32::MAX as u64;
        if plan.num_units > most {
            let op = "fused_recurrent_gated_delta_rule";
            return Err(CudaError::Launch { op, what: "shares of heads", got: plan.num_units, most });
        }
        let params = RecurrentParams {
            whole_heads: plan.whole_heads as i32,
            rows_per_block: plan.rows_per_block as i32,
            blocks_per_head: plan.blocks_per_head as i32,
            tail_rows: plan.tail_rows as i32,
            tail_blocks: plan.tail_blocks as i32,
            num_units: plan.num_units as i32,
            v_heads_per_k_head: params.num_v_heads / params.num_k_heads.max(1),
            in_vectors: params.vectors_fit(plan.rows_per_block.min(plan.tail_rows)).into(),
            ..params.clone()
        };
        let grid = Grid { blocks: (plan.num_blocks, 1), threads: plan.threads, shared: plan.shared };
        let kernel = Kernel::Recurrent(plan.kernel);
        let overlap = params.early == Switch::On;
        // SAFETY: the kernel takes these parameters, and its rows are shared out as the plan says; the caller's promise.
        unsafe { self.launch_with("fused_recurrent_gated_delta_rule", kernel, grid, overlap, stream, &params) }
    }
}

pub(crate) fn run(backend: &CudaBackend, args: FusedRecurrentArgs<'_>) -> Result<()> {
    let stream = backend.stream();
    let FusedRecurrentArgs { inputs, state, log, num_pending, pending_path, capture, out, .. } = args;
    let mut params = RecurrentParams::new(&inputs.dims, inputs.state_indices.len());

    let device = DeltaInputs::upload(stream, &inputs)?;
    set_delta_inputs!(params, device, inputs);
    let parents = DeviceBuffer::from_slice(stream, inputs.parents)?;
    params.parents = parents.address();

    let state = Output::upload(stream, state)?;
    let out_rows = Output::upload(stream, out.data)?;
    params.state = state.address();
    (params.out, params.out_stride) = (out_rows.address(), out.row_stride as i64);
    params.out_dtype = out_rows.dtype().into();

    params.max_window = inputs.cu_seqlens.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0).max(1);
    params.max_pending = inputs
        .state_indices
        .iter()
        .zip(num_pending)
        .map(|(&slot, &n)| if slot == PAD_SLOT { 0 } else { n as i32 })
        .max()
        .unwrap_or(0)
        .max(1);
    let num_pending = DeviceBuffer::from_slice(stream, num_pending)?;
    let pending_path = DeviceBuffer::from_slice(stream, pending_path)?;
    params.num_pending = num_pending.address();
    params.pending_path = pending_path.address();
    // Two copies of the log: the kernel reads pending entries from one and writes the window's into the other.
    let copies = || -> Result<[DeviceBuffer<f32>; 3]> {
        let (k, decay, delta): (&[f32], &[f32], &[f32]) =
            log.as_ref().map_or((&[], &[], &[]), |log| (log.k, log.decay, log.delta));
        Ok([
            DeviceBuffer::from_slice(stream, k)?,
            DeviceBuffer::from_slice(stream, decay)?,
            DeviceBuffer::from_slice(stream, delta)?,
        ])
    };
    let (pending, window) = (copies()?, copies()?);
    [params.pending_k, params.pending_decay, params.pending_delta] = pending.each_ref().map(|b| b.address());
    [params.log_k, params.log_decay, params.log_delta] = window.each_ref().map(|b| b.address());
    params.log_max = log.as_ref().map_or(0, |log| log.max_tokens as i32);
    params.pending_max = params.log_max;

    let (kind, captured) = match capture {
        CaptureMut::Final => (Capture::Final, None),
        CaptureMut::DeltaLog => (Capture::DeltaLog, None),
        CaptureMut::PerToken { states, max_tokens } => {
            params.capture_max = max_tokens as i32;
            (Capture::PerToken, Some(Output::upload(stream, states)?))
        }
    };
    params.capture = kind.into();
    params.captured = captured.as_ref().map_or(0, |states| states.address());

    let dtype = state.dtype().into();
    // SAFETY: the buffers were made from checked arguments and live until the results are back; the log's copies are two.
    unsafe { backend.launcher().fused_recurrent_gated_delta_rule(stream.handle(), &params, dtype)? };
    state.download(stream)?;
    out_rows.download(stream)?;
    if let Some(states) = captured {
        states.download(stream)?;
    }
    if let (Capture::DeltaLog, Some(log)) = (kind, log) {
        let [k, decay, delta] = &window;
        k.read(stream, 0, log.k)?;
        decay.read(stream, 0, log.decay)?;
        delta.read(stream, 0, log.delta)?;
    }
    Ok(())
}
