//! `fused_recurrent_gated_delta_rule`.

use undraft_core::ops::FusedRecurrentArgs;
use undraft_core::{Beta, Capture, CaptureMut, Decay, DecayShape, GdnDims, HeadMap, PAD_SLOT, QkNorm, Rounding};

use crate::backend::MetalBackend;
use crate::driver::DeviceBuffer;
use crate::error::{MetalError, Result};
use crate::host::{Input, Output};
use crate::raw::{Call, Captured, DecayForm, Elements, EncoderHandle, Launcher, Slice, Switch, check_sizes, present};
use crate::select::{self, Kernel};

const OP: &str = "fused_recurrent_gated_delta_rule";

/// Parameters of the launch; shapes in [`undraft_core::ops::FusedRecurrentArgs`].
///
/// Unlike there, the log that pending entries lie in and the log that the window fills are two, since threadgroups of one
/// launch read the one and write the other.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct RecurrentParams {
    pub q: Slice,
    pub k: Slice,
    pub v: Slice,
    pub decay: Slice,
    pub beta: Slice,
    /// Or none, unless the decay's form is `Gate`.
    pub a_log: Slice,
    /// Or none, unless the decay's form is `Gate`.
    pub dt_bias: Slice,
    pub out: Slice,
    pub state: Slice,
    /// With capture `PerToken`.
    pub captured: Slice,
    pub cu_seqlens: Slice,
    pub state_indices: Slice,
    /// Or none: every window is a chain.
    pub parents: Slice,
    /// `[num_log_slots, pending_max, H, K]`; or none where nothing is pending.
    pub pending_k: Slice,
    pub pending_decay: Slice,
    pub pending_delta: Slice,
    /// `[num_seqs]` i32, slots of the pending log; none: as `state_indices`.
    pub pending_slots: Slice,
    /// `[num_seqs]` u32; none: nothing is pending.
    pub num_pending: Slice,
    /// `[num_seqs, pending_max]` u32; none: the first entries.
    pub pending_path: Slice,
    /// `[num_log_slots, log_max, H, K]`, with capture `DeltaLog`.
    pub log_k: Slice,
    pub log_decay: Slice,
    pub log_delta: Slice,
    /// `[num_seqs]` i32, slots of the window's log; none: as `state_indices`.
    pub log_slots: Slice,
    pub q_stride: i64,
    pub k_stride: i64,
    pub v_stride: i64,
    pub decay_stride: i64,
    pub beta_stride: i64,
    pub out_stride: i64,
    /// Elements from one slot's state to the next, at least `HV V K`; a multiple of 4 where K is 32, 64, 128 or 256.
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
    /// About the longest window or pending path, 0: unknown. Short ones need less threadgroup memory; the result is the same.
    pub longest: i32,
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
    /// Whether beta and the normalised q and k are rounded to the dtype of `k`.
    pub round_io: Switch,
    pub capture: Captured,
    pub eps: f32,
    pub scale: f32,
}

/// As in the kernel's source.
#[repr(C)]
struct Words {
    strides: [i64; 7],
    num_seqs: i32,
    num_k_heads: i32,
    num_v_heads: i32,
    head_k_dim: i32,
    head_v_dim: i32,
    pending_max: i32,
    log_max: i32,
    capture_max: i32,
    chunk: i32,
    dtypes: [Elements; 6],
    decay_form: DecayForm,
    per_channel: Switch,
    beta_is_logit: Switch,
    tiled: Switch,
    l2_norm: Switch,
    round_io: Switch,
    capture: Captured,
    whole: Switch,
    blocks_per_head: i32,
    present: u32,
    eps: f32,
    scale: f32,
}

impl RecurrentParams {
    /// Sizes and dense strides of a call with f32 tensors; buffers and the rest are to be filled in.
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

    /// In the order of the kernels' slots.
    fn buffers(&self) -> [Slice; 23] {
        [
            self.q,
            self.k,
            self.v,
            self.decay,
            self.beta,
            self.a_log,
            self.dt_bias,
            self.out,
            self.state,
            self.captured,
            self.cu_seqlens,
            self.state_indices,
            self.parents,
            self.pending_k,
            self.pending_decay,
            self.pending_delta,
            self.pending_slots,
            self.num_pending,
            self.pending_path,
            self.log_k,
            self.log_decay,
            self.log_delta,
            self.log_slots,
        ]
    }

    fn check(&self) -> Result<()> {
        check_sizes(OP, 0, &[("num_seqs", self.num_seqs.into())])?;
        let dims = [
            ("num_k_heads", self.num_k_heads),
            ("num_v_heads", self.num_v_heads),
            ("head_k_dim", self.head_k_dim),
            ("head_v_dim", self.head_v_dim),
        ];
        check_sizes(OP, 1, &dims.map(|(name, size)| (name, size.into())))?;
        let refuse = |arg, got: i32, expected| Err(MetalError::Argument { op: OP, arg, got: got.into(), expected });
        if self.head_k_dim > 256 {
            return refuse("head_k_dim", self.head_k_dim, "1 to 256");
        }
        if self.num_v_heads % self.num_k_heads != 0 {
            return refuse("num_v_heads", self.num_v_heads, "a multiple of `num_k_heads`");
        }
        Ok(())
    }
}

impl Launcher {
    /// Replays pending entries, then decodes or verifies the windows.
    ///
    /// # Errors
    /// [`MetalError::Argument`] for sizes that no kernel takes; [`MetalError`] of the launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn fused_recurrent_gated_delta_rule(
        &self,
        encoder: EncoderHandle,
        params: &RecurrentParams,
        state: Elements,
    ) -> Result<()> {
        params.check()?;
        let per_channel = params.per_channel == Switch::On;
        let longest = if params.longest > 0 { params.longest as usize } else { usize::MAX };
        let plan = select::recurrent(params.head_k_dim as usize, per_channel, longest);
        let blocks_per_head = (params.head_v_dim as usize).div_ceil(plan.rows);
        let buffers = params.buffers();
        let call = Call {
            op: OP,
            kernel: Kernel::Recurrent { state: state.into(), padded_k: plan.padded_k },
            buffers: &buffers,
            params_slot: 23,
            threadgroups: [blocks_per_head as u64 * params.num_v_heads as u64, params.num_seqs as u64, 1],
            threads: [128, 1, 1],
            threadgroup_bytes: plan.threadgroup_bytes,
        };
        let p = params;
        let words = Words {
            strides: [p.q_stride, p.k_stride, p.v_stride, p.decay_stride, p.beta_stride, p.out_stride, p.state_stride],
            num_seqs: p.num_seqs,
            num_k_heads: p.num_k_heads,
            num_v_heads: p.num_v_heads,
            head_k_dim: p.head_k_dim,
            head_v_dim: p.head_v_dim,
            pending_max: p.pending_max,
            log_max: p.log_max,
            capture_max: p.capture_max,
            chunk: plan.chunk as i32,
            dtypes: [p.q_dtype, p.k_dtype, p.v_dtype, p.decay_dtype, p.beta_dtype, p.out_dtype],
            decay_form: p.decay_form,
            per_channel: p.per_channel,
            beta_is_logit: p.beta_is_logit,
            tiled: p.tiled,
            l2_norm: p.l2_norm,
            round_io: p.round_io,
            capture: p.capture,
            whole: (params.head_k_dim as usize == plan.padded_k).into(),
            blocks_per_head: blocks_per_head as i32,
            present: present(&buffers),
            eps: p.eps,
            scale: p.scale,
        };
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch(encoder, call, &words) }
    }
}

pub(crate) fn run(backend: &MetalBackend, args: FusedRecurrentArgs<'_>) -> Result<()> {
    let driver = backend.driver();
    let FusedRecurrentArgs { inputs, state, log, num_pending, pending_path, capture, out, .. } = args;
    let mut params = RecurrentParams::new(&inputs.dims, inputs.state_indices.len());

    let (q, k) = (Input::upload(driver, &inputs.q)?, Input::upload(driver, &inputs.k)?);
    let v = Input::upload(driver, &inputs.v)?;
    (params.q, params.q_stride, params.q_dtype) = q.tensor();
    (params.k, params.k_stride, params.k_dtype) = k.tensor();
    (params.v, params.v_stride, params.v_dtype) = v.tensor();
    let (decay_form, decay, a_log, dt_bias): (_, _, &[f32], &[f32]) = match inputs.decay {
        Decay::Log(g) => (DecayForm::Log, g, &[], &[]),
        Decay::Linear(alpha) => (DecayForm::Linear, alpha, &[], &[]),
        Decay::NegLog(x) => (DecayForm::NegLog, x, &[], &[]),
        Decay::Gate { a, a_log, dt_bias } => (DecayForm::Gate, a, a_log, dt_bias),
    };
    let (beta, beta_is_logit) = match inputs.beta {
        Beta::Value(beta) => (beta, false),
        Beta::Logit(b) => (b, true),
    };
    let (decay, beta) = (DeviceBuffer::from_slice(driver, decay)?, DeviceBuffer::from_slice(driver, beta)?);
    let (a_log, dt_bias) = (DeviceBuffer::from_slice(driver, a_log)?, DeviceBuffer::from_slice(driver, dt_bias)?);
    (params.decay, params.decay_form) = (decay.slice(), decay_form);
    (params.beta, params.beta_is_logit) = (beta.slice(), beta_is_logit.into());
    (params.a_log, params.dt_bias) = (a_log.slice(), dt_bias.slice());
    let cu_seqlens = DeviceBuffer::from_slice(driver, inputs.cu_seqlens)?;
    let state_indices = DeviceBuffer::from_slice(driver, inputs.state_indices)?;
    let parents = DeviceBuffer::from_slice(driver, inputs.parents)?;
    (params.cu_seqlens, params.state_indices) = (cu_seqlens.slice(), state_indices.slice());
    params.parents = parents.slice();
    params.scale = inputs.scale;
    params.tiled = (inputs.head_map == HeadMap::Tiled).into();
    params.round_io = (inputs.rounding == Rounding::Io).into();
    if let QkNorm::L2Norm { eps } = inputs.qk_norm {
        (params.l2_norm, params.eps) = (Switch::On, eps);
    }

    let state = Output::upload(driver, state)?;
    params.state = state.slice();
    params.out_stride = out.row_stride as i64;
    let out = Output::upload(driver, out.data)?;
    (params.out, params.out_dtype) = (out.slice(), out.dtype().into());

    let windows = inputs.cu_seqlens.windows(2).map(|pair| pair[1] - pair[0]);
    let pending = inputs.state_indices.iter().zip(num_pending).filter(|&(&slot, _)| slot != PAD_SLOT);
    params.longest = windows.chain(pending.map(|(_, &n)| n as i32)).max().unwrap_or(0).max(1);
    let num_pending = DeviceBuffer::from_slice(driver, num_pending)?;
    let pending_path = DeviceBuffer::from_slice(driver, pending_path)?;
    (params.num_pending, params.pending_path) = (num_pending.slice(), pending_path.slice());
    // Two copies of the log: the kernel reads pending entries from one and writes the window's into the other.
    let copies = || -> Result<[DeviceBuffer<f32>; 3]> {
        let (k, decay, delta): (&[f32], &[f32], &[f32]) =
            log.as_ref().map_or((&[], &[], &[]), |log| (log.k, log.decay, log.delta));
        Ok([
            DeviceBuffer::from_slice(driver, k)?,
            DeviceBuffer::from_slice(driver, decay)?,
            DeviceBuffer::from_slice(driver, delta)?,
        ])
    };
    let (pending, window) = (copies()?, copies()?);
    [params.pending_k, params.pending_decay, params.pending_delta] = pending.each_ref().map(DeviceBuffer::slice);
    [params.log_k, params.log_decay, params.log_delta] = window.each_ref().map(DeviceBuffer::slice);
    params.log_max = log.as_ref().map_or(0, |log| log.max_tokens as i32);
    params.pending_max = params.log_max;

    let (kind, captured) = match capture {
        CaptureMut::Final => (Capture::Final, None),
        CaptureMut::DeltaLog => (Capture::DeltaLog, None),
        CaptureMut::PerToken { states, max_tokens } => {
            params.capture_max = max_tokens as i32;
            (Capture::PerToken, Some(Output::upload(driver, states)?))
        }
    };
    params.capture = kind.into();
    params.captured = captured.as_ref().map_or(Slice::NONE, Output::slice);

    let dtype = state.dtype().into();
    let encode = |launcher: &Launcher, encoder| {
        // SAFETY: the buffers were made from checked arguments and live until the work is done; the log's copies are two.
        unsafe { launcher.fused_recurrent_gated_delta_rule(encoder, &params, dtype) }
    };
    backend.run(encode)?;
    state.download()?;
    out.download()?;
    if let Some(states) = captured {
        states.download()?;
    }
    if let (Capture::DeltaLog, Some(log)) = (kind, log) {
        let [k, decay, delta] = &window;
        k.read(0, log.k)?;
        decay.read(0, log.decay)?;
        delta.read(0, log.delta)?;
    }
    Ok(())
}
