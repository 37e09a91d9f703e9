//! Runs a case of the convolution over whole prompts.

use undraft_core::ops::CausalConv1dFnArgs;
use undraft_core::{Backend, Capture, Op};

use super::causal_conv1d_update::{poison_unless, restore};
use super::fused_recurrent_gated_delta_rule::padding_is_zero;
use super::{Guarded, Inputs, Memory, Outputs, settle, supports};
use crate::cases::causal_conv1d_update::ConvCase;

/// `(out, state)`, or `None` if the back end refuses as declared; pending entries of the case are not looked at. Foreign
/// slots, padding, gaps and guards are poison, and checked.
///
/// # Errors
/// A failed call, or a write out of place.
pub fn run(backend: &dyn Backend, case: &ConvCase, memory: Memory) -> Result<Option<[Vec<f32>; 2]>, String> {
    let (c, windows) = (case.dims.channels(), &case.windows);
    let owners = windows.owners();
    let owned = |i: usize| owners[i / case.dims.state_len()];
    let mut state = Guarded::new(memory.poison, &poison_unless(&case.state, memory, |i| owned(i).is_some()));
    let mut x = case.x.clone();
    for (tokens, _) in windows.ranges().into_iter().zip(&windows.slots).filter(|&(_, &slot)| slot < 0) {
        x[tokens.start * c..tokens.end * c].fill(memory.poison.f32());
    }
    let inputs = Inputs::new(memory, case.io, windows.num_tokens(), &[(&x, c)]);
    let mut out = Outputs::new(memory, case.io, windows.num_tokens(), c);
    let args = CausalConv1dFnArgs {
        dims: case.dims,
        x: inputs.rows(0),
        weight: &case.weight,
        bias: case.bias.as_deref(),
        activation: case.activation,
        cu_seqlens: &windows.cu_seqlens(),
        state_indices: &windows.slots,
        num_slots: windows.num_slots,
        state: state.cells_mut(),
        out: out.rows_mut(),
    };
    let result = args.check().and_then(|args| backend.causal_conv1d_fn(args));
    if !settle(supports(backend, Op::CausalConv1dFn, case.io, (1, 1), Capture::Final), result)? {
        out.untouched("out")?;
        return state.check("state", |_| false).map(|()| None);
    }
    state.check("state", |i| owned(i).is_some_and(|seq| windows.lens[seq] > 0))?;
    let out = out.finish("out")?;
    padding_is_zero(&out, c, windows)?;
    Ok(Some([out, restore(&state.values(), &case.state, |i| owned(i).is_some())]))
}
