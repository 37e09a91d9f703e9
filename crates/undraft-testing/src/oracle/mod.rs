//! The operations in f64, one token at a time, one plain loop per index: the specification.
//!
//! Nothing here is shared with kernels or with the formulas of `undraft-core`; its enums are used as names only.

pub mod causal_conv1d_update;
pub mod chunk_gated_delta_rule;
pub mod commit_states;
pub mod fused_gdn_gating;
pub mod fused_recurrent_gated_delta_rule;
pub mod rms_norm_gated;
mod scalar;

pub use scalar::{round_state, round_to, sigmoid, silu, softplus};
