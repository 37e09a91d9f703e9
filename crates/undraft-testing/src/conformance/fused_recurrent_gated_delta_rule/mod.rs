//! The recurrence: near the oracle under every capture, and exact.

mod exactness;
mod rounding;
mod trees;
mod values;

pub(super) use exactness::exactness;
pub(super) use values::values;

use crate::cases::fused_recurrent_gated_delta_rule::DeltaRuleCase;

/// Axes of `out`.
pub(super) fn out_axes(case: &DeltaRuleCase) -> [(&'static str, usize); 3] {
    [("token", case.windows.num_tokens()), ("head", case.dims.num_v_heads()), ("row", case.dims.head_v_dim())]
}

/// Axes of `state`.
pub(super) fn state_axes(case: &DeltaRuleCase) -> [(&'static str, usize); 4] {
    let [head, row, column] = slot_axes(case);
    [("slot", case.windows.num_slots), head, row, column]
}

/// Axes of one slot's state.
pub(super) fn slot_axes(case: &DeltaRuleCase) -> [(&'static str, usize); 3] {
    let d = &case.dims;
    [("head", d.num_v_heads()), ("row", d.head_v_dim()), ("column", d.head_k_dim())]
}
