//! Runs a prompt through the chunked form.

use undraft_core::ops::{CheckpointsMut, ChunkGatedDeltaRuleArgs};
use undraft_core::{Backend, Op, Support};

use super::causal_conv1d_update::{poison_unless, restore};
use super::fused_recurrent_gated_delta_rule::{Operands, padding_is_zero};
use super::{Guarded, Memory, Outputs, settle};
use crate::cases::fused_recurrent_gated_delta_rule::DeltaRuleCase;

/// What a call left; slots that it does not own hold the case's values.
#[derive(Clone, Debug)]
pub struct ChunkOutcome {
    /// `[T, HV, V]`.
    pub out: Vec<f32>,
    /// `[slots, HV, V, K]`.
    pub state: Vec<f32>,
    /// `[num_checkpoints, HV, V, K]`, sequence by sequence.
    pub checkpoints: Vec<f32>,
}

/// Runs the case with checkpoints after every `every` tokens, or gives `None` if the back end refuses as declared. Foreign slots,
/// padding (and its checkpoints), gaps and guards are poison.
///
/// # Errors
/// A failed call, or a write out of place.
pub fn run(
    backend: &dyn Backend,
    case: &DeltaRuleCase,
    every: Option<usize>,
    memory: Memory,
) -> Result<Option<ChunkOutcome>, String> {
    let (dims, windows, dtype) = (&case.dims, &case.windows, case.state_dtype);
    let len = dims.state_len();
    let owners = windows.owners();
    let owned = |i: usize| owners[i / len];
    let initial = poison_unless(&case.state, memory, |i| owned(i).is_some());
    let mut state = Guarded::of(dtype, memory.poison, &initial);
    // Sequence of each checkpoint.
    let sequences: Vec<usize> = match every {
        Some(every) => (0..windows.num_seqs()).flat_map(|seq| vec![seq; windows.lens[seq] / every]).collect(),
        None => Vec::new(),
    };
    let mut checkpoints = Guarded::poisoned(dtype, memory.poison, sequences.len() * len);
    let operands = Operands::new(case, memory);
    let mut out = Outputs::new(memory, case.io, windows.num_tokens(), dims.value_dim());
    let args = ChunkGatedDeltaRuleArgs {
        inputs: operands.inputs(),
        num_slots: windows.num_slots,
        state: state.data_mut(),
        checkpoints: every.map(|every| CheckpointsMut { states: checkpoints.data_mut(), every }),
        out: out.rows_mut(),
    };
    let result = args.check().and_then(|args| backend.chunk_gated_delta_rule(args));
    let what = Support {
        io: case.io,
        state: dtype,
        decay_shape: dims.decay_shape(),
        ..Support::new(Op::ChunkGatedDeltaRule, dims.head_k_dim(), dims.head_v_dim())
    };
    let ran = settle(backend.caps().supports(&what).is_ok(), result)?;
    let is_live = |checkpoint: usize| windows.slots[sequences[checkpoint]] >= 0;
    checkpoints.check("checkpoints.states", |i| ran && is_live(i / len))?;
    state.check("state", |i| ran && owned(i).is_some_and(|seq| windows.lens[seq] > 0))?;
    if !ran {
        return out.untouched("out").map(|()| None);
    }
    let out = out.finish("out")?;
    padding_is_zero(&out, dims.value_dim(), windows)?;
    let state = restore(&state.values(), &case.state, |i| owned(i).is_some());
    Ok(Some(ChunkOutcome { out, state, checkpoints: checkpoints.values() }))
}
