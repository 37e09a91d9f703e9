//! Runs a case of the convolution.

use undraft_core::ops::{CausalConv1dUpdateArgs, ConvLogMut};
use undraft_core::{Backend, Capture, Op, Support};

use super::fused_recurrent_gated_delta_rule::padding_is_zero;
use super::{Guarded, Inputs, Memory, Outputs, settle};
use crate::cases::causal_conv1d_update::ConvCase;

/// What a call left; slots that it does not own hold the case's values.
#[derive(Clone, Debug)]
pub struct ConvOutcome {
    /// `[T, C]`.
    pub out: Vec<f32>,
    /// `[slots, W - 1, C]`.
    pub state: Vec<f32>,
    /// `[slots, max_tokens, C]`.
    pub log: Vec<f32>,
}

/// Whether the back end does this.
pub fn supports(backend: &dyn Backend, case: &ConvCase, capture: Capture) -> bool {
    let tree = case.windows.has_tree();
    let what = Support { io: case.io, capture, tree, ..Support::new(Op::CausalConv1dUpdate, 1, 1) };
    backend.caps().supports(&what).is_ok()
}

/// Runs the case, or gives `None` if the back end refuses as declared. Foreign slots, unused log entries, padding,
/// gaps and guards are poison, and checked.
///
/// # Errors
/// A failed call, or a write out of place.
pub fn run(
    backend: &dyn Backend,
    case: &ConvCase,
    capture: Capture,
    memory: Memory,
) -> Result<Option<ConvOutcome>, String> {
    let (c, windows) = (case.dims.channels(), &case.windows);
    let (slot_len, log_len) = (case.dims.state_len(), case.max_tokens * c);
    let owners = windows.owners();
    let owned = |i: usize| owners[i / slot_len];
    let mut state = Guarded::new(memory.poison, &poison_unless(&case.state, memory, |i| owned(i).is_some()));
    let pending: Vec<Vec<usize>> = (0..windows.num_seqs()).map(|seq| case.pending_entries(seq)).collect();
    let is_pending = |i: usize| owners[i / log_len].is_some_and(|seq| pending[seq].contains(&(i % log_len / c)));
    let mut log = Guarded::new(memory.poison, &poison_unless(&case.log, memory, is_pending));
    let mut x = case.x.clone();
    for (tokens, _) in windows.ranges().into_iter().zip(&windows.slots).filter(|&(_, &slot)| slot < 0) {
        x[tokens.start * c..tokens.end * c].fill(memory.poison.f32());
    }
    let inputs = Inputs::new(memory, case.io, windows.num_tokens(), &[(&x, c)]);
    let mut out = Outputs::new(memory, case.io, windows.num_tokens(), c);
    let cu_seqlens = windows.cu_seqlens();
    let log_is_used = capture == Capture::DeltaLog || !case.num_pending.is_empty();
    let args = CausalConv1dUpdateArgs {
        dims: case.dims,
        x: inputs.rows(0),
        weight: &case.weight,
        bias: case.bias.as_deref(),
        activation: case.activation,
        cu_seqlens: &cu_seqlens,
        state_indices: &windows.slots,
        num_slots: windows.num_slots,
        state: state.cells_mut(),
        log: log_is_used.then(|| ConvLogMut { x: log.cells_mut(), max_tokens: case.max_tokens }),
        num_pending: &case.num_pending,
        pending_path: &case.pending_path,
        parents: &windows.parents,
        capture,
        out: out.rows_mut(),
    };
    let result = args.check().and_then(|args| backend.causal_conv1d_update(args));
    if !settle(supports(backend, case, capture), result)? {
        out.untouched("out")?;
        state.check("state", |_| false)?;
        return log.check("log.x", |_| false).map(|()| None);
    }

    let moves = |seq: usize| case.pending(seq) > 0 || (capture == Capture::Final && windows.lens[seq] > 0);
    state.check("state", |i| owned(i).is_some_and(moves))?;
    let written = |i: usize| {
        capture == Capture::DeltaLog && owners[i / log_len].is_some_and(|seq| i % log_len / c < windows.lens[seq])
    };
    log.check("log.x", written)?;
    let out = out.finish("out")?;
    padding_is_zero(&out, c, windows)?;
    Ok(Some(ConvOutcome {
        out,
        state: restore(&state.values(), &case.state, |i| owned(i).is_some()),
        log: restore(&log.values(), &case.log, |i| is_pending(i) || written(i)),
    }))
}

/// The values where `keep`, poison elsewhere.
pub(super) fn poison_unless(values: &[f32], memory: Memory, keep: impl Fn(usize) -> bool) -> Vec<f32> {
    values.iter().enumerate().map(|(i, &x)| if keep(i) { x } else { memory.poison.f32() }).collect()
}

/// `after` where `take`, `before` elsewhere.
pub(super) fn restore(after: &[f32], before: &[f32], take: impl Fn(usize) -> bool) -> Vec<f32> {
    after.iter().zip(before).enumerate().map(|(i, (&a, &b))| if take(i) { a } else { b }).collect()
}
