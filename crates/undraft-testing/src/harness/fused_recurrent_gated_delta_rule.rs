//! Runs a case of the recurrence.

use undraft_core::ops::{DeltaRuleInputs, FusedRecurrentArgs};
use undraft_core::{Backend, Beta, Capture, CaptureMut, Decay, DeltaLogMut, Op, Support};

use super::causal_conv1d_update::{poison_unless, restore};
use super::{Guarded, Inputs, Memory, Outputs, settle};
use crate::cases::Windows;
use crate::cases::fused_recurrent_gated_delta_rule::{BetaForm, DecayForm, DeltaRuleCase, LogData};

/// What a call left; slots and log entries that it does not own hold the case's values.
#[derive(Clone, Debug)]
pub struct DeltaRuleOutcome {
    /// `[T, HV, V]`.
    pub out: Vec<f32>,
    /// `[slots, HV, V, K]`.
    pub state: Vec<f32>,
    /// The log.
    pub log: LogData,
    /// `[num_seqs, max_captured, HV, V, K]` with capture `PerToken`, else empty.
    pub captured: Vec<f32>,
    /// Tokens a sequence may have in `captured`.
    pub max_captured: usize,
    /// Elements of a state.
    pub state_len: usize,
}

impl DeltaRuleOutcome {
    /// State after token `t` of a sequence.
    pub fn captured(&self, seq: usize, t: usize) -> &[f32] {
        &self.captured[(seq * self.max_captured + t) * self.state_len..][..self.state_len]
    }
}

/// Everything that the operation reads, laid out in memory; the inputs of padding are poison.
pub(super) struct Operands<'a> {
    case: &'a DeltaRuleCase,
    qkv: Inputs,
    decay: Vec<f32>,
    beta: Vec<f32>,
    cu_seqlens: Vec<i32>,
}

impl<'a> Operands<'a> {
    pub(super) fn new(case: &'a DeltaRuleCase, memory: Memory) -> Self {
        let (dims, windows) = (&case.dims, &case.windows);
        let spoiled = |values: &[f32], row: usize| {
            let mut values = values.to_vec();
            for (tokens, &slot) in windows.ranges().into_iter().zip(&windows.slots) {
                if slot < 0 {
                    values[tokens.start * row..tokens.end * row].fill(memory.poison.f32());
                }
            }
            values
        };
        let (q, k) = (spoiled(&case.q, dims.key_dim()), spoiled(&case.k, dims.key_dim()));
        let v = spoiled(&case.v, dims.value_dim());
        let parts = [(&q[..], dims.key_dim()), (&k[..], dims.key_dim()), (&v[..], dims.value_dim())];
        Self {
            case,
            qkv: Inputs::new(memory, case.io, windows.num_tokens(), &parts),
            decay: spoiled(&case.decay, dims.decay_len()),
            beta: spoiled(&case.beta, dims.num_v_heads()),
            cu_seqlens: windows.cu_seqlens(),
        }
    }

    pub(super) fn inputs(&self) -> DeltaRuleInputs<'_> {
        let case = self.case;
        DeltaRuleInputs {
            dims: case.dims,
            q: self.qkv.rows(0),
            k: self.qkv.rows(1),
            v: self.qkv.rows(2),
            decay: match &case.decay_form {
                DecayForm::Log => Decay::Log(&self.decay),
                DecayForm::Linear => Decay::Linear(&self.decay),
                DecayForm::NegLog => Decay::NegLog(&self.decay),
                DecayForm::Gate { a_log, dt_bias } => Decay::Gate { a: &self.decay, a_log, dt_bias },
            },
            beta: match case.beta_form {
                BetaForm::Value => Beta::Value(&self.beta),
                BetaForm::Logit => Beta::Logit(&self.beta),
            },
            scale: case.scale,
            head_map: case.head_map,
            qk_norm: case.qk_norm,
            rounding: case.rounding,
            cu_seqlens: &self.cu_seqlens,
            state_indices: &case.windows.slots,
            parents: &case.windows.parents,
        }
    }
}

/// Whether the back end does this.
pub fn supports(backend: &dyn Backend, case: &DeltaRuleCase, capture: Capture) -> bool {
    let d = &case.dims;
    let what = Support {
        io: case.io,
        capture,
        state: case.state_dtype,
        decay_shape: d.decay_shape(),
        tree: case.windows.has_tree(),
        ..Support::new(Op::FusedRecurrentGatedDeltaRule, d.head_k_dim(), d.head_v_dim())
    };
    backend.caps().supports(&what).is_ok()
}

/// Runs the case, or gives `None` if the back end refuses as declared. Foreign slots, unused log entries, captures,
/// padding, gaps and guards are poison, and checked.
///
/// # Errors
/// A failed call, or a write out of place.
pub fn run(
    backend: &dyn Backend,
    case: &DeltaRuleCase,
    capture: Capture,
    memory: Memory,
) -> Result<Option<DeltaRuleOutcome>, String> {
    let (dims, windows, poison) = (&case.dims, &case.windows, memory.poison);
    let (state_len, max_tokens) = (dims.state_len(), case.log.max_tokens);
    let owners = windows.owners();
    let owned = |i: usize| owners[i / state_len];
    let initial = poison_unless(&case.state, memory, |i| owned(i).is_some());
    let mut state = Guarded::of(case.state_dtype, poison, &initial);
    // `entry` counts slots and tokens.
    let entries: Vec<Vec<usize>> = (0..windows.num_seqs()).map(|seq| case.pending_entries(seq)).collect();
    let is_pending =
        |entry: usize| owners[entry / max_tokens].is_some_and(|seq| entries[seq].contains(&(entry % max_tokens)));
    let log =
        |values: &[f32], len: usize| Guarded::new(poison, &poison_unless(values, memory, |i| is_pending(i / len)));
    let mut k = log(&case.log.k, dims.key_dim());
    let mut decay = log(&case.log.decay, dims.decay_len());
    let mut delta = log(&case.log.delta, dims.value_dim());
    let max_captured = if capture == Capture::PerToken { windows.longest() + 1 } else { 0 };
    let mut captured = Guarded::poisoned(case.state_dtype, poison, windows.num_seqs() * max_captured * state_len);
    let operands = Operands::new(case, memory);
    let mut out = Outputs::new(memory, case.io, windows.num_tokens(), dims.value_dim());

    let log_is_used = capture == Capture::DeltaLog || !case.num_pending.is_empty();
    let args = FusedRecurrentArgs {
        inputs: operands.inputs(),
        num_slots: windows.num_slots,
        state: state.data_mut(),
        log: log_is_used.then(|| DeltaLogMut {
            k: k.cells_mut(),
            decay: decay.cells_mut(),
            delta: delta.cells_mut(),
            max_tokens,
        }),
        num_pending: &case.num_pending,
        pending_path: &case.pending_path,
        capture: match capture {
            Capture::Final => CaptureMut::Final,
            Capture::DeltaLog => CaptureMut::DeltaLog,
            Capture::PerToken => CaptureMut::PerToken { states: captured.data_mut(), max_tokens: max_captured },
        },
        out: out.rows_mut(),
    };
    let result = args.check().and_then(|args| backend.fused_recurrent_gated_delta_rule(args));
    let ran = settle(supports(backend, case, capture), result)?;

    let moves = |seq: usize| case.pending(seq) > 0 || (capture == Capture::Final && windows.lens[seq] > 0);
    state.check("state", |i| ran && owned(i).is_some_and(moves))?;
    let is_new = |entry: usize| owners[entry / max_tokens].is_some_and(|seq| entry % max_tokens < windows.lens[seq]);
    let written = |entry| ran && capture == Capture::DeltaLog && is_new(entry);
    k.check("log.k", |i| written(i / dims.key_dim()))?;
    decay.check("log.decay", |i| written(i / dims.decay_len()))?;
    delta.check("log.delta", |i| written(i / dims.value_dim()))?;
    captured.check("capture.states", |i| {
        let (seq, t) = (i / state_len / max_captured, i / state_len % max_captured);
        ran && windows.slots[seq] >= 0 && t < windows.lens[seq]
    })?;
    if !ran {
        return out.untouched("out").map(|()| None);
    }
    let out = out.finish("out")?;
    padding_is_zero(&out, dims.value_dim(), windows)?;
    let known = |entry| is_pending(entry) || written(entry);
    let log = LogData {
        k: restore(&k.values(), &case.log.k, |i| known(i / dims.key_dim())),
        decay: restore(&decay.values(), &case.log.decay, |i| known(i / dims.decay_len())),
        delta: restore(&delta.values(), &case.log.delta, |i| known(i / dims.value_dim())),
        max_tokens,
    };
    let state = restore(&state.values(), &case.state, |i| owned(i).is_some());
    Ok(Some(DeltaRuleOutcome { out, state, log, captured: captured.values(), max_captured, state_len }))
}

/// Outputs of padding are +0.
pub(super) fn padding_is_zero(out: &[f32], row: usize, windows: &Windows) -> Result<(), String> {
    for (seq, tokens) in windows.ranges().into_iter().enumerate().filter(|&(seq, _)| windows.slots[seq] < 0) {
        for t in tokens {
            if let Some(x) = out[t * row..(t + 1) * row].iter().find(|x| x.to_bits() != 0) {
                return Err(format!("`out`: sequence {seq} is padding, its token {t} got {x}, expected 0"));
            }
        }
    }
    Ok(())
}
