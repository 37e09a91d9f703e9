//! Decay factors of every key channel (Kimi Delta Attention), sixteen at a time.

use fearless_simd::Simd;
use fearless_simd::prelude::*;
use undraft_core::{Decay, GdnDims};

use crate::simd::{self, LANES, Token};
use crate::with_simd;

/// The factors of a token and value head, `[K]`, padded with 1 to the length of `to`.
pub(super) fn channel_decay(token: Token, dims: &GdnDims, decay: &Decay<'_>, t: usize, head: usize, to: &mut [f32]) {
    let k_dim = dims.head_k_dim();
    let bias = head * k_dim..(head + 1) * k_dim;
    let given = t * dims.decay_len() + bias.start..t * dims.decay_len() + bias.end;
    to[k_dim..].fill(1.0);
    let to = &mut to[..k_dim];
    match *decay {
        Decay::Linear(alpha) => to.copy_from_slice(&alpha[given]),
        Decay::Log(g) => with_simd!(token, s => factors(s, Exponent::Times(1.0, &g[given]), to)),
        Decay::NegLog(x) => with_simd!(token, s => factors(s, Exponent::Times(-1.0, &x[given]), to)),
        Decay::Gate { a, a_log, dt_bias } => {
            let rate = -f64::from(a_log[head]).exp() as f32;
            with_simd!(token, s => factors(s, Exponent::Gate(rate, &a[given], &dt_bias[bias]), to));
        }
    }
}

/// What the factor is `exp` of.
#[derive(Clone, Copy)]
enum Exponent<'a> {
    /// `c * x`.
    Times(f32, &'a [f32]),
    /// `c * softplus(a + bias)`.
    Gate(f32, &'a [f32], &'a [f32]),
}

#[inline(always)]
fn factors<S: Simd>(s: S, exponent: Exponent<'_>, to: &mut [f32]) {
    let len = to.len();
    for start in (0..len).step_by(LANES) {
        let n = LANES.min(len - start);
        let vector = |x: &[f32]| {
            let mut padded = [0.0; LANES];
            padded[..n].copy_from_slice(&x[start..start + n]);
            padded
        };
        let g = match exponent {
            Exponent::Times(c, x) => simd::load(s, &vector(x)) * c,
            Exponent::Gate(c, a, bias) => {
                simd::softplus(s, simd::load(s, &vector(a)) + simd::load(s, &vector(bias))) * c
            }
        };
        // `exp` clamps its argument: nothing is left of the state from there on, and a NaN must stay one.
        let factor = g.simd_lt(simd::splat(s, -87.3)).select(simd::zero(s), simd::exp(s, g));
        let factor = g.simd_eq(g).select(factor, g);
        let mut out = [0.0; LANES];
        simd::store(factor, &mut out);
        to[start..start + n].copy_from_slice(&out[..n]);
    }
}
