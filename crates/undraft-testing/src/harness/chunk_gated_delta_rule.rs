//! Runs a prompt through the chunked form.

use undraft_core::ops::ChunkGatedDeltaRuleArgs;
use undraft_core::{Backend, Capture, Op};

use super::causal_conv1d_update::{poison_unless, restore};
use super::fused_recurrent_gated_delta_rule::{Operands, padding_is_zero};
use super::{Guarded, Memory, Outputs, settle, supports};
use crate::cases::fused_recurrent_gated_delta_rule::DeltaRuleCase;

/// `(out, state)`, or `None` if the back end refuses as declared. Foreign slots, padding, gaps and guards are poison.
///
/// # Errors
/// A failed call, or a write out of place.
pub fn run(backend: &dyn Backend, case: &DeltaRuleCase, memory: Memory) -> Result<Option<[Vec<f32>; 2]>, String> {
    let (dims, windows) = (&case.dims, &case.windows);
    let owners = windows.owners();
    let owned = |i: usize| owners[i / dims.state_len()];
    let mut state = Guarded::new(memory.poison, &poison_unless(&case.state, memory, |i| owned(i).is_some()));
    let operands = Operands::new(case, memory);
    let mut out = Outputs::new(memory, case.io, windows.num_tokens(), dims.value_dim());
    let args = ChunkGatedDeltaRuleArgs {
        inputs: operands.inputs(),
        num_slots: windows.num_slots,
        state: state.cells_mut().into(),
        checkpoints: None,
        out: out.rows_mut(),
    };
    let result = args.check().and_then(|args| backend.chunk_gated_delta_rule(args));
    let sizes = (dims.head_k_dim(), dims.head_v_dim());
    if !settle(supports(backend, Op::ChunkGatedDeltaRule, case.io, sizes, Capture::Final), result)? {
        out.untouched("out")?;
        return state.check("state", |_| false).map(|()| None);
    }
    state.check("state", |i| owned(i).is_some_and(|seq| windows.lens[seq] > 0))?;
    let out = out.finish("out")?;
    padding_is_zero(&out, dims.value_dim(), windows)?;
    Ok(Some([out, restore(&state.values(), &case.state, |i| owned(i).is_some())]))
}
