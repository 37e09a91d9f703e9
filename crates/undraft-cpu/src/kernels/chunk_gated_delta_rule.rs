//! placeholder
use super::prepare::Workspace;
use crate::executor::Executor;
use crate::simd::Token;
use undraft_core::Checked;
use undraft_core::ops::ChunkGatedDeltaRuleArgs;
pub(crate) fn chunk_gated_delta_rule(
    _: Token,
    _: &dyn Executor,
    _: &mut Workspace,
    _: Checked<ChunkGatedDeltaRuleArgs<'_>>,
) {
}
