//! Runs a replay.

use undraft_core::ops::CommitStatesArgs;
use undraft_core::{Backend, Capture, DType, DeltaLogMut, Op};

use super::causal_conv1d_update::{poison_unless, restore};
use super::{Guarded, Memory, settle, supports};
use crate::cases::commit_states::CommitCase;

/// The states, or `None` if the back end refuses as declared. Foreign slots and entries that do not stay are poison.
///
/// # Errors
/// A failed call, or a write out of place.
pub fn run(backend: &dyn Backend, case: &CommitCase, memory: Memory) -> Result<Option<Vec<f32>>, String> {
    let (dims, windows, max_tokens) = (&case.dims, &case.windows, case.log.max_tokens);
    let owners = windows.owners();
    let owned = |i: usize| owners[i / dims.state_len()];
    let mut state = Guarded::new(memory.poison, &poison_unless(&case.state, memory, |i| owned(i).is_some()));
    let kept = |entry: usize| owners[entry / max_tokens].is_some_and(|seq| entry % max_tokens < case.kept(seq));
    let log =
        |values: &[f32], len: usize| Guarded::new(memory.poison, &poison_unless(values, memory, |i| kept(i / len)));
    let mut k = log(&case.log.k, dims.key_dim());
    let mut decay = log(&case.log.decay, dims.num_v_heads());
    let mut delta = log(&case.log.delta, dims.value_dim());
    let args = CommitStatesArgs {
        dims: *dims,
        head_map: case.head_map,
        num_slots: windows.num_slots,
        state: state.cells_mut().into(),
        log: DeltaLogMut { k: k.cells_mut(), decay: decay.cells_mut(), delta: delta.cells_mut(), max_tokens },
        state_indices: &windows.slots,
        num_kept: &case.num_kept,
        path: &[],
    };
    let result = args.check().and_then(|args| backend.commit_states(args));
    let sizes = (dims.head_k_dim(), dims.head_v_dim());
    let ran = settle(supports(backend, Op::CommitStates, DType::F32, sizes, Capture::DeltaLog), result)?;
    state.check("state", |i| ran && owned(i).is_some_and(|seq| case.kept(seq) > 0))?;
    for (arg, part) in [("log.k", &k), ("log.decay", &decay), ("log.delta", &delta)] {
        part.check(arg, |_| false)?;
    }
    Ok(ran.then(|| restore(state.values(), &case.state, |i| owned(i).is_some())))
}
