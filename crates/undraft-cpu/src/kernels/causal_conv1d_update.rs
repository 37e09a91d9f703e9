//! `causal_conv1d_update`: settle the kept inputs, convolve the window, keep or move on the state.

use undraft_core::ops::{CausalConv1dUpdateArgs, ConvLogMut};
use undraft_core::{Checked, is_chain};

use super::convolution::Call;
use super::rows::SharedRows;
use crate::executor::Executor;
use crate::shared::SharedMut;
use crate::simd::Token;

pub(crate) fn causal_conv1d_update(token: Token, executor: &dyn Executor, args: Checked<CausalConv1dUpdateArgs<'_>>) {
    let args = args.into_inner();
    let max_tokens = args.log.as_ref().map_or(0, |log| log.max_tokens);
    let call = Call {
        channels: args.dims.channels(),
        width: args.dims.width(),
        x: args.x,
        weight: args.weight,
        bias: args.bias,
        activation: args.activation,
        cu_seqlens: args.cu_seqlens,
        state_indices: args.state_indices,
        state: SharedMut::new(args.state),
        log: args.log.map(|ConvLogMut { x, max_tokens }| (SharedMut::new(x), max_tokens)),
        capture: args.capture,
        out: SharedRows::new(args.out),
    };
    call.run(executor, |seq, slot, tokens, channels| {
        let num_pending = args.num_pending.get(seq).map_or(0, |&n| n as usize);
        let path = match args.pending_path {
            [] => &[],
            path => &path[seq * max_tokens..][..num_pending],
        };
        // A chain needs no look at its ancestors, and with capture `Final` there is no log to find them in.
        let parents = match args.parents {
            [] => &[],
            parents => match &parents[tokens.clone()] {
                chain if is_chain(chain) => &[],
                tree => tree,
            },
        };
        call.settle(slot, num_pending, path, &channels);
        call.convolve(token, slot, tokens, parents, channels);
    });
}
