//! The recurrence, token by token, and its matrix form.

use std::ffi::c_char;

use undraft::ops::{CheckpointsMut, ChunkGatedDeltaRuleArgs, DeltaRuleInputs, FusedRecurrentArgs};
use undraft::{Beta, Capture, CaptureMut, Decay, GdnDims, HeadMap, QkNorm, Rounding};

use super::{check_total, decay_axes, run, state_axes, undraft_delta_log};
use crate::choices::{
    BetaForm, DecayForm, beta_form, capture, decay_form, head_map, rounding, undraft_beta_form, undraft_capture,
    undraft_decay_form, undraft_head_map, undraft_qk_norm, undraft_rounding,
};
use crate::device::undraft_device;
use crate::layer::qk_norm;
use crate::pointer::{check_reserved, sized};
use crate::sizes::undraft_gdn_dims;
use crate::status::{Failure, Result, undraft_status};
use crate::tensor::{Disjoint, F32, FLOAT, I32, Tensors, U32, View, i32s_or_empty, u32s_or_empty, undraft_tensor};

/// What the recurrence and the matrix form read.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_delta_rule_inputs {
    /// Sizes.
    pub dims: undraft_gdn_dims,
    /// How the decay is given.
    pub decay_form: undraft_decay_form,
    /// How beta is given.
    pub beta_form: undraft_beta_form,
    /// Which key head a value head reads.
    pub head_map: undraft_head_map,
    /// Whether q and k are normalised.
    pub qk_norm: undraft_qk_norm,
    /// Rounding of beta, q and k.
    pub rounding: undraft_rounding,
    /// Of the L2 norm.
    pub qk_eps: f32,
    /// Of the output; 0 is `K^-0.5`.
    pub scale: f32,
    /// 0.
    pub reserved: u32,
    /// `[N, H, K]`.
    pub q: undraft_tensor,
    /// `[N, H, K]`.
    pub k: undraft_tensor,
    /// `[N, HV, V]`.
    pub v: undraft_tensor,
    /// `[N, HV]` or `[N, HV, K]`.
    pub decay: undraft_tensor,
    /// `[HV]` with the gate.
    pub a_log: undraft_tensor,
    /// `[HV]` or `[HV, K]` with the gate.
    pub dt_bias: undraft_tensor,
    /// `[N, HV]`.
    pub beta: undraft_tensor,
    /// `[num_seqs + 1]`.
    pub cu_seqlens: undraft_tensor,
    /// `[num_seqs]`.
    pub state_indices: undraft_tensor,
    /// `[N]`, or absent.
    pub parents: undraft_tensor,
}

/// Arguments of [`undraft_fused_recurrent_gated_delta_rule`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_fused_recurrent_args {
    /// Bytes of the struct.
    pub size: usize,
    /// What is read.
    pub inputs: undraft_delta_rule_inputs,
    /// What the window leaves.
    pub capture: undraft_capture,
    /// 0.
    pub reserved: u32,
    /// `[num_slots, HV, V, K]`.
    pub state: undraft_tensor,
    /// The log.
    pub log: undraft_delta_log,
    /// `[num_seqs]`, or absent.
    pub num_pending: undraft_tensor,
    /// `[num_seqs, max_tokens]`, or absent.
    pub pending_path: undraft_tensor,
    /// `[num_seqs, max_tokens, HV, V, K]`, or absent.
    pub capture_states: undraft_tensor,
    /// `[N, HV, V]`.
    pub out: undraft_tensor,
}
sized!(undraft_fused_recurrent_args);

/// Arguments of [`undraft_chunk_gated_delta_rule`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_chunk_args {
    /// Bytes of the struct.
    pub size: usize,
    /// What is read.
    pub inputs: undraft_delta_rule_inputs,
    /// `[num_slots, HV, V, K]`.
    pub state: undraft_tensor,
    /// `[num_checkpoints, HV, V, K]`, or absent.
    pub checkpoints: undraft_tensor,
    /// Tokens from one checkpoint to the next.
    pub checkpoint_every: usize,
    /// `[N, HV, V]`.
    pub out: undraft_tensor,
}
sized!(undraft_chunk_args);

/// Checked inputs.
struct InputViews {
    dims: GdnDims,
    decay_form: DecayForm,
    beta_form: BetaForm,
    head_map: HeadMap,
    qk_norm: QkNorm,
    rounding: Rounding,
    scale: f32,
    num_tokens: usize,
    num_seqs: usize,
    q: View,
    k: View,
    v: View,
    decay: View,
    /// `A_log` and `dt_bias`.
    gate: Option<(View, View)>,
    beta: View,
    cu_seqlens: View,
    state_indices: View,
    parents: Option<View>,
}

impl undraft_delta_rule_inputs {
    fn views(&self, tensors: &mut Tensors<'_>) -> Result<InputViews> {
        check_reserved("undraft_delta_rule_inputs", &[self.reserved])?;
        let dims = self.dims.gdn()?;
        let decay_form = decay_form("decay_form", self.decay_form)?;
        let (num_tokens, num_seqs) = (self.q.axis(0), self.state_indices.axis(0));
        let n = ("num_tokens", num_tokens);
        let keys = [n, ("num_k_heads", dims.num_k_heads()), ("head_k_dim", dims.head_k_dim())];
        let values = [n, ("num_v_heads", dims.num_v_heads()), ("head_v_dim", dims.head_v_dim())];
        let (of_decay, num_axes) = decay_axes(&dims, n);
        let gate = match (decay_form, self.a_log.is_absent() && self.dt_bias.is_absent()) {
            (DecayForm::Gate, _) => Some((
                tensors.read("a_log", &self.a_log, F32, &of_decay[1..2])?,
                tensors.read("dt_bias", &self.dt_bias, F32, &of_decay[1..num_axes])?,
            )),
            (_, true) => None,
            (_, false) => {
                let text = "`a_log` or `dt_bias` is given, expected neither: `decay_form` is not UNDRAFT_DECAY_GATE";
                return Err(Failure::invalid(text));
            }
        };
        Ok(InputViews {
            dims,
            decay_form,
            beta_form: beta_form("beta_form", self.beta_form)?,
            head_map: head_map("head_map", self.head_map)?,
            qk_norm: qk_norm(self.qk_norm, self.qk_eps)?,
            rounding: rounding("rounding", self.rounding)?,
            scale: if self.scale == 0.0 { DeltaRuleInputs::default_scale(&dims) } else { self.scale },
            num_tokens,
            num_seqs,
            q: tensors.rows("q", &self.q, &keys)?,
            k: tensors.rows("k", &self.k, &keys)?,
            v: tensors.rows("v", &self.v, &values)?,
            decay: tensors.read("decay", &self.decay, F32, &of_decay[..num_axes])?,
            gate,
            beta: tensors.read("beta", &self.beta, F32, &values[..2])?,
            cu_seqlens: tensors.read("cu_seqlens", &self.cu_seqlens, I32, &[("num_seqs + 1", num_seqs + 1)])?,
            state_indices: tensors.read("state_indices", &self.state_indices, I32, &[("num_seqs", num_seqs)])?,
            parents: tensors.optional("parents", &self.parents, I32, &[n])?,
        })
    }
}

impl InputViews {
    fn inputs<'t>(&self, shown: &'t Disjoint<'_>) -> Result<DeltaRuleInputs<'t>> {
        let cu_seqlens = self.cu_seqlens.i32s(shown);
        check_total(cu_seqlens, self.num_tokens)?;
        let (decay, beta) = (self.decay.f32s(shown), self.beta.f32s(shown));
        Ok(DeltaRuleInputs {
            dims: self.dims,
            q: self.q.rows(shown),
            k: self.k.rows(shown),
            v: self.v.rows(shown),
            decay: match (self.decay_form, &self.gate) {
                (DecayForm::Log, _) => Decay::Log(decay),
                (DecayForm::Linear, _) => Decay::Linear(decay),
                (DecayForm::NegLog, _) => Decay::NegLog(decay),
                (DecayForm::Gate, gate) => {
                    let (a_log, dt_bias) = gate
                        .as_ref()
                        .map_or((&[][..], &[][..]), |(a_log, dt_bias)| (a_log.f32s(shown), dt_bias.f32s(shown)));
                    Decay::Gate { a: decay, a_log, dt_bias }
                }
            },
            beta: match self.beta_form {
                BetaForm::Value => Beta::Value(beta),
                BetaForm::Logit => Beta::Logit(beta),
            },
            scale: self.scale,
            head_map: self.head_map,
            qk_norm: self.qk_norm,
            rounding: self.rounding,
            cu_seqlens,
            state_indices: self.state_indices.i32s(shown),
            parents: i32s_or_empty(&self.parents, shown),
        })
    }
}

/// The recurrence over windows.
///
/// # Safety
/// Pointers are null or lead to what the header says, as do the tensors of the struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_fused_recurrent_gated_delta_rule(
    device: *const undraft_device,
    args: *const undraft_fused_recurrent_args,
    message: *mut *mut c_char,
) -> undraft_status {
    // SAFETY: the same contract.
    unsafe {
        run(device, args, message, |device, args, mut tensors| {
            check_reserved("undraft_fused_recurrent_args", &[args.reserved])?;
            let capture = capture("capture", args.capture)?;
            let views = args.inputs.views(&mut tensors)?;
            let dims = views.dims;
            let num_slots = args.state.axis(0);
            let state = tensors.write("state", &args.state, FLOAT, &state_axes(&dims, ("num_slots", num_slots)))?;
            let log = match args.log.is_absent() {
                true => None,
                false => Some(args.log.views(&mut tensors, &dims, num_slots)?),
            };
            let (seqs, tokens) = (("num_seqs", views.num_seqs), ("max_tokens", args.log.max_tokens()));
            let num_pending = tensors.optional("num_pending", &args.num_pending, U32, &[seqs])?;
            let pending_path = tensors.optional("pending_path", &args.pending_path, U32, &[seqs, tokens])?;
            let capture_tokens = args.capture_states.axis(1);
            let capture_states = match (capture, args.capture_states.is_absent()) {
                (Capture::PerToken, _) => {
                    let [_, rest @ ..] = state_axes(&dims, seqs);
                    let [hv, v, k] = rest;
                    let axes = [seqs, ("max_tokens", capture_tokens), hv, v, k];
                    Some(tensors.write("capture_states", &args.capture_states, FLOAT, &axes)?)
                }
                (_, true) => None,
                (_, false) => {
                    let text = "`capture_states` is given, expected none: `capture` is not UNDRAFT_CAPTURE_PER_TOKEN";
                    return Err(Failure::invalid(text));
                }
            };
            let n = ("num_tokens", views.num_tokens);
            let values = [n, ("num_v_heads", dims.num_v_heads()), ("head_v_dim", dims.head_v_dim())];
            let out = tensors.rows_mut("out", &args.out, &values)?;
            let shown = tensors.disjoint()?;
            let args = FusedRecurrentArgs {
                inputs: views.inputs(&shown)?,
                num_slots,
                state: state.data_mut(&shown),
                log: log.map(|log| log.log(&shown)),
                num_pending: u32s_or_empty(&num_pending, &shown),
                pending_path: u32s_or_empty(&pending_path, &shown),
                capture: match capture_states {
                    Some(states) => {
                        CaptureMut::PerToken { states: states.data_mut(&shown), max_tokens: capture_tokens }
                    }
                    None if capture == Capture::Final => CaptureMut::Final,
                    None => CaptureMut::DeltaLog,
                },
                out: out.rows_mut(&shown),
            };
            Ok(device.device.backend().fused_recurrent_gated_delta_rule(args.check()?)?)
        })
    }
}

/// The matrix form over prompts.
///
/// # Safety
/// Pointers are null or lead to what the header says, as do the tensors of the struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_chunk_gated_delta_rule(
    device: *const undraft_device,
    args: *const undraft_chunk_args,
    message: *mut *mut c_char,
) -> undraft_status {
    // SAFETY: the same contract.
    unsafe {
        run(device, args, message, |device, args, mut tensors| {
            let views = args.inputs.views(&mut tensors)?;
            let dims = views.dims;
            let num_slots = args.state.axis(0);
            let state = tensors.write("state", &args.state, FLOAT, &state_axes(&dims, ("num_slots", num_slots)))?;
            let checkpoints = match args.checkpoints.is_absent() {
                true => None,
                false => {
                    let axes = state_axes(&dims, ("num_checkpoints", args.checkpoints.axis(0)));
                    Some(tensors.write("checkpoints", &args.checkpoints, FLOAT, &axes)?)
                }
            };
            let n = ("num_tokens", views.num_tokens);
            let values = [n, ("num_v_heads", dims.num_v_heads()), ("head_v_dim", dims.head_v_dim())];
            let out = tensors.rows_mut("out", &args.out, &values)?;
            let shown = tensors.disjoint()?;
            let every = args.checkpoint_every;
            let args = ChunkGatedDeltaRuleArgs {
                inputs: views.inputs(&shown)?,
                num_slots,
                state: state.data_mut(&shown),
                checkpoints: checkpoints.map(|states| CheckpointsMut { states: states.data_mut(&shown), every }),
                out: out.rows_mut(&shown),
            };
            Ok(device.device.backend().chunk_gated_delta_rule(args.check()?)?)
        })
    }
}
