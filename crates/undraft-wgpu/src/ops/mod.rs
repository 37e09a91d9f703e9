//! One file an operation: the kernel's parameters, its dispatch, and the call over host memory.

pub(crate) mod causal_conv1d_fn;
pub(crate) mod causal_conv1d_update;
pub(crate) mod commit_states;
pub(crate) mod fused_gdn_gating;
pub(crate) mod fused_recurrent_gated_delta_rule;
pub(crate) mod rms_norm_gated;
mod states;
