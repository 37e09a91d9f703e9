//! `fused_gdn_gating`: every token on its own.

use undraft_core::Checked;
use undraft_core::ops::FusedGdnGatingArgs;

use super::rows::read_f32;
use crate::executor::Executor;
use crate::shared::SharedMut;

pub(crate) fn fused_gdn_gating(executor: &dyn Executor, args: Checked<FusedGdnGatingArgs<'_>>) {
    let FusedGdnGatingArgs { num_tokens, num_v_heads: hv, decay_dim, a, b, a_log, dt_bias, g, beta } =
        args.into_inner();
    let row = hv * decay_dim;
    let (g, beta) = (SharedMut::new(g), SharedMut::new(beta));
    executor.run(num_tokens, &|t| {
        // SAFETY: token t's rows belong to task t.
        let (g, beta) = unsafe { (g.part(t * row..(t + 1) * row), beta.part(t * hv..(t + 1) * hv)) };
        read_f32(&a, t, 0, g);
        read_f32(&b, t, 0, beta);
        for head in 0..hv {
            let logit = beta[head];
            for i in head * decay_dim..(head + 1) * decay_dim {
                (g[i], beta[head]) = FusedGdnGatingArgs::element(g[i], logit, a_log[head], dt_bias[i]);
            }
        }
    });
}
