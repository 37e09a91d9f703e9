//! The kernels, one file an operation. They hold no intrinsic and take only checked arguments.

mod causal_conv1d_fn;
mod causal_conv1d_update;
mod channel_decay;
mod chunk_gated_delta_rule;
mod commit_states;
mod convolution;
mod factor;
mod fused_gdn_gating;
mod fused_recurrent_gated_delta_rule;
mod matmul;
mod prepare;
mod rms_norm_gated;
mod rows;
mod scalar_rows;
mod state_rows;
mod states;
mod sweeps;
mod tree;
mod vector_rows;

pub(crate) use causal_conv1d_fn::causal_conv1d_fn;
pub(crate) use causal_conv1d_update::causal_conv1d_update;
pub(crate) use chunk_gated_delta_rule::chunk_gated_delta_rule;
pub(crate) use commit_states::commit_states;
pub(crate) use fused_gdn_gating::fused_gdn_gating;
pub(crate) use fused_recurrent_gated_delta_rule::fused_recurrent_gated_delta_rule;
pub(crate) use prepare::Workspace;
pub(crate) use rms_norm_gated::rms_norm_gated;
