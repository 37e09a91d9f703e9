//! `fused_gdn_gating`.

use undraft_core::Checked;
use undraft_core::ops::FusedGdnGatingArgs;

use super::rows::read_f32;

pub(crate) fn fused_gdn_gating(args: Checked<FusedGdnGatingArgs<'_>>) {
    let args = args.into_inner();
    let hv = args.num_v_heads;
    for t in 0..args.num_tokens {
        let (g, beta) = (&mut args.g[t * hv..(t + 1) * hv], &mut args.beta[t * hv..(t + 1) * hv]);
        read_f32(&args.a, t, 0, g);
        read_f32(&args.b, t, 0, beta);
        for head in 0..hv {
            (g[head], beta[head]) =
                FusedGdnGatingArgs::element(g[head], beta[head], args.a_log[head], args.dt_bias[head]);
        }
    }
}
