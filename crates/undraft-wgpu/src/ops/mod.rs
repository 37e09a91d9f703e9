//! One file an operation: the kernel's parameters, its dispatch, and the call over host memory.

pub(crate) mod commit_states;
pub(crate) mod fused_gdn_gating;
pub(crate) mod fused_recurrent_gated_delta_rule;
mod states;
