//! Runs a replay.

use undraft_core::ops::CommitStatesArgs;
use undraft_core::{Backend, DeltaLogMut, Op, Support};

use super::causal_conv1d_update::{poison_unless, restore};
use super::{Guarded, Memory, settle};
use crate::cases::commit_states::CommitCase;

/// Whether the back end does this.
pub fn supports(backend: &dyn Backend, case: &CommitCase) -> bool {
    let d = &case.dims;
    let what = Support {
        state: case.state_dtype,
        decay_shape: d.decay_shape(),
        ..Support::new(Op::CommitStates, d.head_k_dim(), d.head_v_dim())
    };
    backend.caps().supports(&what).is_ok()
}

/// The states, or `None` if the back end refuses as declared. Foreign slots and entries that do not stay are poison.
///
/// # Errors
/// A failed call, or a write out of place.
pub fn run(backend: &dyn Backend, case: &CommitCase, memory: Memory) -> Result<Option<Vec<f32>>, String> {
    let (dims, windows, max_tokens) = (&case.dims, &case.windows, case.log.max_tokens);
    let owners = windows.owners();
    let owned = |i: usize| owners[i / dims.state_len()];
    let initial = poison_unless(&case.state, memory, |i| owned(i).is_some());
    let mut state = Guarded::of(case.state_dtype, memory.poison, &initial);
    let entries: Vec<Vec<usize>> = (0..windows.num_seqs()).map(|seq| case.kept_entries(seq)).collect();
    let kept =
        |entry: usize| owners[entry / max_tokens].is_some_and(|seq| entries[seq].contains(&(entry % max_tokens)));
    let log =
        |values: &[f32], len: usize| Guarded::new(memory.poison, &poison_unless(values, memory, |i| kept(i / len)));
    let mut k = log(&case.log.k, dims.key_dim());
    let mut decay = log(&case.log.decay, dims.decay_len());
    let mut delta = log(&case.log.delta, dims.value_dim());
    let args = CommitStatesArgs {
        dims: *dims,
        head_map: case.head_map,
        num_slots: windows.num_slots,
        state: state.data_mut(),
        log: DeltaLogMut { k: k.cells_mut(), decay: decay.cells_mut(), delta: delta.cells_mut(), max_tokens },
        state_indices: &windows.slots,
        num_kept: &case.num_kept,
        path: &case.path,
    };
    let result = args.check().and_then(|args| backend.commit_states(args));
    let ran = settle(supports(backend, case), result)?;
    state.check("state", |i| ran && owned(i).is_some_and(|seq| case.kept(seq) > 0))?;
    for (arg, part) in [("log.k", &k), ("log.decay", &decay), ("log.delta", &delta)] {
        part.check(arg, |_| false)?;
    }
    Ok(ran.then(|| restore(&state.values(), &case.state, |i| owned(i).is_some())))
}
