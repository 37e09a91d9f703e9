//! `causal_conv1d_fn`: convolve whole prompts and move the states on.

use undraft_core::ops::CausalConv1dFnArgs;
use undraft_core::{Capture, Checked};

use super::convolution::Call;
use super::rows::SharedRows;
use crate::executor::Executor;
use crate::shared::SharedMut;
use crate::simd::Token;

pub(crate) fn causal_conv1d_fn(token: Token, executor: &dyn Executor, args: Checked<CausalConv1dFnArgs<'_>>) {
    let args = args.into_inner();
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
        log: None,
        capture: Capture::Final,
        out: SharedRows::new(args.out),
    };
    call.run(executor, |_, slot, tokens, channels| call.convolve(token, slot, tokens, &[], channels));
}
