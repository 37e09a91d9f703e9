//! `fused_recurrent_gated_delta_rule`.

use undraft_core::ops::FusedRecurrentArgs;
use undraft_core::{Beta, Capture, CaptureMut, DType, Decay, DecayShape, GdnDims, HeadMap, QkNorm, Rounding};

use super::states::{state_constants, state_file};
use crate::backend::WgpuBackend;
use crate::batch::Batch;
use crate::buffer::Binding;
use crate::error::Result;
use crate::host::{Elementwise, Packed, count, packed_stride, read_f32, unpack};
use crate::kernel::{Access, KernelSource, Params};
use crate::raw::{Captured, DecayForm, Elements, NONE};
use crate::select::{self, RecurrentCall, StateKind};

crate::params! {
    /// Parameters of the dispatch; shapes in [`undraft_core::ops::FusedRecurrentArgs`].
    ///
    /// Unlike there, the log that pending entries lie in and the log that the window fills are two, since workgroups of one
    /// dispatch read the one and write the other: two places, or two sets of slots, of one buffer.
    #[allow(missing_docs)]
    pub struct RecurrentParams {
        pub state_first: u32,
        /// Elements from one slot's state to the next, at least `HV V K`.
        pub state_stride: u32,
        /// Tokens of a sequence in `captured`.
        pub capture_max: u32,
        pub out_first: u32,
        pub out_stride: u32,
        /// A [`crate::raw::Elements`], as all fields of this kind.
        pub out_dtype: u32,
        /// First elements of the parts of the log that pending entries lie in.
        pub pending_k_first: u32,
        pub pending_decay_first: u32,
        pub pending_delta_first: u32,
        /// Tokens of a slot of it.
        pub pending_max: u32,
        /// First elements of the parts of the window's log.
        pub log_k_first: u32,
        pub log_decay_first: u32,
        pub log_delta_first: u32,
        /// Tokens of a slot of it.
        pub log_max: u32,
        /// First elements in `tokens`.
        pub q_first: u32,
        pub k_first: u32,
        pub v_first: u32,
        pub q_stride: u32,
        pub k_stride: u32,
        pub v_stride: u32,
        pub q_dtype: u32,
        /// What `round_io` rounds to, as well.
        pub k_dtype: u32,
        pub v_dtype: u32,
        /// First elements in `gates`.
        pub decay_first: u32,
        pub beta_first: u32,
        pub decay_stride: u32,
        pub beta_stride: u32,
        pub decay_dtype: u32,
        pub beta_dtype: u32,
        /// First elements in `weights`.
        pub a_log_first: u32,
        pub dt_bias_first: u32,
        /// First elements of lists in `ints`.
        pub cu_seqlens: u32,
        pub state_indices: u32,
        /// Or [`NONE`](crate::raw::NONE): every window is a chain.
        pub parents: u32,
        /// Or [`NONE`](crate::raw::NONE): nothing is pending.
        pub num_pending: u32,
        /// Or [`NONE`](crate::raw::NONE): the first entries.
        pub pending_path: u32,
        /// Slots of the pending log, or [`NONE`](crate::raw::NONE): as `state_indices`.
        pub pending_slots: u32,
        /// Slots of the window's log, or [`NONE`](crate::raw::NONE): as `state_indices`.
        pub log_slots: u32,
        pub num_seqs: u32,
        pub num_k_heads: u32,
        pub num_v_heads: u32,
        pub head_k_dim: u32,
        pub head_v_dim: u32,
        /// A [`crate::raw::DecayForm`].
        pub decay_form: u32,
        /// 1 if beta is a logit.
        pub beta_is_logit: u32,
        /// 1 if value head `hv` reads key head `hv % H`; else `hv / (HV / H)`.
        pub tiled: u32,
        /// 1 if q and k are normalised, with `eps`.
        pub l2_norm: u32,
        /// 1 if beta and the normalised q and k are rounded to the element type of k.
        pub round_io: u32,
        /// A [`crate::raw::Captured`].
        pub capture: u32,
        pub eps: f32,
        pub scale: f32,
        /// No window has more tokens; 0: unknown. It chooses the kernel, not the result.
        pub max_window: u32,
        /// No sequence has more entries pending; 0: unknown.
        pub max_pending: u32,
        /// Filled in by the dispatch.
        pub splits: u32,
        /// Filled in by the dispatch.
        pub num_units: u32,
        /// Filled in by the dispatch.
        pub state_dtype: u32,
        /// Filled in by the dispatch.
        pub per_channel: u32,
    }
}

/// Buffers of the dispatch.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct RecurrentBuffers<'a> {
    pub state: Binding<'a>,
    /// With capture `PerToken`.
    pub captured: Option<Binding<'a>>,
    pub out: Binding<'a>,
    /// k, decay and delta of both logs; where anything is pending, and with capture `DeltaLog`.
    pub log: Option<Binding<'a>>,
    /// q, k and v.
    pub tokens: Binding<'a>,
    /// Decay and beta.
    pub gates: Binding<'a>,
    /// `A_log` and `dt_bias`, where the decay's form is `Gate`.
    pub weights: Option<Binding<'a>>,
    /// Lengths, slots, counts, paths and parents.
    pub ints: Binding<'a>,
}

impl RecurrentParams {
    /// The sizes, contiguous rows, no lists; `cu_seqlens`, `state_indices` and the first elements are to be set.
    pub fn new(dims: &GdnDims, num_seqs: usize) -> Result<Self> {
        Ok(Self {
            state_stride: count("state_stride", dims.state_len() as u64)?,
            out_stride: count("out_stride", dims.value_dim() as u64)?,
            q_stride: count("q_stride", dims.key_dim() as u64)?,
            k_stride: count("k_stride", dims.key_dim() as u64)?,
            v_stride: count("v_stride", dims.value_dim() as u64)?,
            decay_stride: count("decay_stride", dims.decay_len() as u64)?,
            beta_stride: dims.num_v_heads() as u32,
            parents: NONE,
            num_pending: NONE,
            pending_path: NONE,
            pending_slots: NONE,
            log_slots: NONE,
            num_seqs: count("num_seqs", num_seqs as u64)?,
            num_k_heads: dims.num_k_heads() as u32,
            num_v_heads: dims.num_v_heads() as u32,
            head_k_dim: dims.head_k_dim() as u32,
            head_v_dim: dims.head_v_dim() as u32,
            scale: undraft_core::ops::DeltaRuleInputs::default_scale(dims),
            ..Self::default()
        })
    }
    /// Whether rows of q, k and o begin at multiples of a word.
    fn is_aligned(&self) -> bool {
        let words = [
            (self.q_dtype, self.q_first | self.q_stride),
            (self.k_dtype, self.k_first | self.k_stride),
            (self.out_dtype, self.out_first | self.out_stride),
        ];
        words.into_iter().all(|(dtype, places)| dtype == Elements::F32.word() || places.is_multiple_of(2))
    }
    /// Element type of q, k and v, if it is one.
    fn token_type(&self) -> Option<DType> {
        let is_one = self.q_dtype == self.k_dtype && self.k_dtype == self.v_dtype;
        [DType::F32, DType::Bf16, DType::F16]
            .into_iter()
            .find(|&dtype| is_one && Elements::from(dtype).word() == self.k_dtype)
    }
}

/// A promised number, which may be unknown.
fn promised(most: u32) -> u32 {
    if most == 0 { u32::MAX } else { most }
}

impl Batch<'_> {
    /// Replays pending entries, runs the windows, leaves what the capture says.
    ///
    /// # Errors
    /// [`crate::WgpuError`] of the kernel or the dispatch.
    pub fn fused_recurrent_gated_delta_rule(
        &mut self,
        buffers: &RecurrentBuffers<'_>,
        params: &RecurrentParams,
        state: DType,
        decay: DecayShape,
    ) -> Result<()> {
        let device = self.device().clone();
        let plan = select::recurrent(&RecurrentCall {
            state: StateKind::new(state, params.head_k_dim, params.state_first, params.state_stride),
            num_seqs: params.num_seqs,
            num_v_heads: params.num_v_heads,
            head_k_dim: params.head_k_dim,
            head_v_dim: params.head_v_dim,
            per_channel: decay == DecayShape::PerChannel,
            trees: params.parents != NONE,
            aligned: params.is_aligned(),
            tokens: params.token_type(),
            memory: device.limits().max_compute_workgroup_storage_size,
            max_threads: device.max_threads(),
            without_subgroups: !device.facts().has_subgroups,
            rows: device.rows_at_once(),
            max_window: promised(params.max_window),
            max_pending: promised(params.max_pending),
            fused: device.is_fast(),
        });
        let memory = u64::from(plan.memory(!device.facts().has_subgroups));
        let most = u64::from(device.limits().max_compute_workgroup_storage_size);
        let what = "workgroup memory of fused_recurrent_gated_delta_rule";
        device.limit(what, memory, most, "max_compute_workgroup_storage_size")?;
        let source = KernelSource {
            name: "fused_recurrent_gated_delta_rule",
            files: &[
                include_str!("../../kernels/prelude.wgsl"),
                include_str!("../../kernels/gates.wgsl"),
                state_file(plan.state),
                include_str!("../../kernels/recurrent_prepare.wgsl"),
                include_str!("../../kernels/recurrent_trees.wgsl"),
                include_str!("../../kernels/fused_recurrent_gated_delta_rule.wgsl"),
            ],
            params: RecurrentParams::WGSL,
            buffers: &[
                Access::ReadWrite,
                Access::ReadWrite,
                Access::ReadWrite,
                Access::ReadWrite,
                Access::Read,
                Access::Read,
                Access::Read,
                Access::Read,
            ],
            exchanges: true,
            is_large: true,
        };
        let mut constants = plan.constants().to_vec();
        constants.extend(state_constants(plan.state, device.is_fast()));
        let kernel = device.pipeline(&source, &constants)?;
        let num_units = count("num_seqs * num_v_heads * shares", plan.units)?;
        let params = RecurrentParams {
            splits: plan.splits,
            num_units,
            state_dtype: Elements::from(state).word(),
            per_channel: (decay == DecayShape::PerChannel).into(),
            ..params.clone()
        };
        let RecurrentBuffers { state, captured, out, log, tokens, gates, weights, ints } = *buffers;
        let buffers = [
            state,
            captured.unwrap_or(device.absent(0)),
            out,
            log.unwrap_or(device.absent(1)),
            tokens,
            gates,
            weights.unwrap_or(device.absent(2)),
            ints,
        ];
        self.dispatch(&kernel, &buffers, &params, plan.units)
    }
}

pub(crate) fn run(backend: &WgpuBackend, args: FusedRecurrentArgs<'_>) -> Result<()> {
    let device = backend.device();
    let FusedRecurrentArgs { inputs, state, log, num_pending, pending_path, capture, mut out, .. } = args;
    let dims = inputs.dims;
    let num_tokens = inputs.cu_seqlens.last().map_or(0, |&n| n as usize);
    let mut params = RecurrentParams::new(&dims, inputs.state_indices.len())?;

    let mut tokens = Packed::default();
    (params.q_first, params.q_stride) = tokens.push_rows("q", &inputs.q, num_tokens, dims.key_dim())?;
    (params.k_first, params.k_stride) = tokens.push_rows("k", &inputs.k, num_tokens, dims.key_dim())?;
    (params.v_first, params.v_stride) = tokens.push_rows("v", &inputs.v, num_tokens, dims.value_dim())?;
    [params.q_dtype, params.k_dtype, params.v_dtype] =
        [&inputs.q, &inputs.k, &inputs.v].map(|rows| Elements::from(rows.dtype()).word());
    let (form, decay, a_log, dt_bias): (_, _, &[f32], &[f32]) = match inputs.decay {
        Decay::Log(g) => (DecayForm::Log, g, &[], &[]),
        Decay::Linear(alpha) => (DecayForm::Linear, alpha, &[], &[]),
        Decay::NegLog(x) => (DecayForm::NegLog, x, &[], &[]),
        Decay::Gate { a, a_log, dt_bias } => (DecayForm::Gate, a, a_log, dt_bias),
    };
    let (beta, is_logit) = match inputs.beta {
        Beta::Value(beta) => (beta, false),
        Beta::Logit(b) => (b, true),
    };
    (params.decay_form, params.beta_is_logit) = (form.word(), is_logit.into());
    let (mut gates, mut weights) = (Packed::default(), Packed::default());
    params.decay_first = gates.push("decay", decay)?;
    params.beta_first = gates.push("beta", beta)?;
    params.a_log_first = weights.push("A_log", a_log)?;
    params.dt_bias_first = weights.push("dt_bias", dt_bias)?;
    let mut ints = Packed::default();
    params.cu_seqlens = ints.push("cu_seqlens", inputs.cu_seqlens)?;
    params.state_indices = ints.push("state_indices", inputs.state_indices)?;
    params.parents = ints.push_some("parents", inputs.parents)?;
    params.num_pending = ints.push_some("num_pending", num_pending)?;
    params.pending_path = ints.push_some("pending_path", pending_path)?;
    let longest = inputs.cu_seqlens.windows(2).map(|pair| (pair[1] - pair[0]) as u32).max();
    params.max_window = longest.unwrap_or(0).max(1);
    params.max_pending = num_pending.iter().copied().max().unwrap_or(0).max(1);
    params.scale = inputs.scale;
    params.tiled = (inputs.head_map == HeadMap::Tiled).into();
    params.round_io = (inputs.rounding == Rounding::Io).into();
    if let QkNorm::L2Norm { eps } = inputs.qk_norm {
        (params.l2_norm, params.eps) = (1, eps);
    }

    // Two copies of the log: the kernel reads pending entries from one and writes the window's into the other.
    let mut logs = Packed::default();
    if let Some(log) = &log {
        params.log_max = count("log.max_tokens", log.max_tokens as u64)?;
        params.pending_max = params.log_max;
        params.pending_k_first = logs.push("log.k", log.k)?;
        params.pending_decay_first = logs.push("log.decay", log.decay)?;
        params.pending_delta_first = logs.push("log.delta", log.delta)?;
        params.log_k_first = logs.push("log.k", log.k)?;
        params.log_decay_first = logs.push("log.decay", log.decay)?;
        params.log_delta_first = logs.push("log.delta", log.delta)?;
    }
    let out_stride = packed_stride(out.dtype(), dims.value_dim());
    params.out_stride = count("out_stride", out_stride as u64)?;
    params.out_dtype = Elements::from(out.dtype()).word();
    let (kind, captured) = match capture {
        CaptureMut::Final => (Capture::Final, None),
        CaptureMut::DeltaLog => (Capture::DeltaLog, None),
        CaptureMut::PerToken { states, max_tokens } => {
            params.capture_max = count("capture.max_tokens", max_tokens as u64)?;
            (Capture::PerToken, Some(Elementwise::upload(device, "captured", states)?))
        }
    };
    params.capture = Captured::from(kind).word();

    let state = Elementwise::upload(device, "state", state)?;
    let out_bytes = (num_tokens * out_stride * out.dtype().size()) as u64;
    let out_buffer = device.buffer("out", out_bytes)?;
    let (tokens, gates) = (tokens.upload(device, "tokens")?, gates.upload(device, "gates")?);
    let (weights, ints) = (weights.upload(device, "weights")?, ints.upload(device, "ints")?);
    let logs = logs.upload(device, "log")?;
    let buffers = RecurrentBuffers {
        state: (&state.buffer).into(),
        captured: captured.as_ref().map(|states| (&states.buffer).into()),
        out: (&out_buffer).into(),
        log: Some((&logs).into()),
        tokens: (&tokens).into(),
        gates: (&gates).into(),
        weights: Some((&weights).into()),
        ints: (&ints).into(),
    };
    let mut batch = Batch::new(device);
    batch.fused_recurrent_gated_delta_rule(&buffers, &params, state.dtype(), dims.decay_shape())?;
    let mut parts = vec![state.part(), Binding::part(&out_buffer, 0..out_bytes)];
    parts.extend(captured.as_ref().map(Elementwise::part));
    let logged = log.filter(|_| kind == Capture::DeltaLog);
    if let Some(log) = &logged {
        let lens = [log.k.len(), log.decay.len(), log.delta.len()];
        let firsts = [params.log_k_first, params.log_decay_first, params.log_delta_first];
        parts.extend(firsts.into_iter().zip(lens).map(|(first, len)| {
            let begin = 4 * u64::from(first);
            Binding::part(&logs, begin..begin + 4 * len as u64)
        }));
    }
    let read = batch.finish()?.run(&parts)?;
    let mut read = read.iter();
    let mut next = || read.next().map_or(&[][..], Vec::as_slice);
    state.finish(next());
    unpack(next(), &mut out, num_tokens, dims.value_dim());
    if let Some(states) = captured {
        states.finish(next());
    }
    if let Some(log) = logged {
        for part in [log.k, log.decay, log.delta] {
            read_f32(next(), part);
        }
    }
    Ok(())
}
