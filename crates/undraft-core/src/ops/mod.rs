//! Argument structs of the operations, one file an operation; `check` turns one into [`Checked`].

mod causal_conv1d_fn;
mod causal_conv1d_update;
mod chunk_gated_delta_rule;
mod commit_states;
mod fused_gdn_gating;
mod fused_recurrent_gated_delta_rule;
mod rms_norm_gated;

pub use causal_conv1d_fn::CausalConv1dFnArgs;
pub use causal_conv1d_update::{CausalConv1dUpdateArgs, ConvLogMut};
pub use chunk_gated_delta_rule::{CheckpointsMut, ChunkGatedDeltaRuleArgs};
pub use commit_states::CommitStatesArgs;
pub use fused_gdn_gating::FusedGdnGatingArgs;
pub use fused_recurrent_gated_delta_rule::{DeltaRuleInputs, FusedRecurrentArgs};
pub use rms_norm_gated::{GateActivation, RmsNormGatedArgs};

/// Arguments that passed their check; the only kind that a back end accepts.
///
/// Facts that a kernel may rely on are listed at the `check` of the inner type.
#[derive(Debug)]
pub struct Checked<T>(T);

impl<T> Checked<T> {
    pub(crate) fn new(args: T) -> Self {
        Self(args)
    }
    /// The arguments.
    pub fn into_inner(self) -> T {
        self.0
    }
    /// The arguments, borrowed.
    pub fn get(&self) -> &T {
        &self.0
    }
}
