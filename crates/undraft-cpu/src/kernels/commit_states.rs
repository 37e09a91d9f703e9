//! `commit_states`: the recurrence's replay with no token behind it.

use undraft_core::Checked;
use undraft_core::ops::CommitStatesArgs;

use super::fused_recurrent_gated_delta_rule::{Call, SharedCapture};
use super::prepare::Workspace;
use super::states::SharedStates;
use crate::executor::Executor;
use crate::shared::SharedMut;
use crate::simd::Token;

pub(crate) fn commit_states(
    token: Token,
    executor: &dyn Executor,
    workspace: &mut Workspace,
    args: Checked<CommitStatesArgs<'_>>,
) {
    let args = args.into_inner();
    let Workspace { window, pending, no_tokens, tree, tree_states, .. } = workspace;
    tree.prepare(&[], &[]);
    pending.prepare(&args.dims, args.state_indices, args.num_kept, args.path, Some(&args.log));
    no_tokens.clear();
    no_tokens.resize(args.state_indices.len() + 1, 0);
    Call {
        token,
        dims: args.dims,
        head_map: args.head_map,
        scale: 1.0,
        cu_seqlens: no_tokens,
        state_indices: args.state_indices,
        window,
        pending,
        tree,
        state: SharedStates::new(args.state),
        log_delta: Some((SharedMut::new(args.log.delta), args.log.max_tokens)),
        capture: SharedCapture::DeltaLog,
        out: SharedMut::new(&mut []),
        out_stride: 0,
    }
    .run(executor, tree_states);
}
