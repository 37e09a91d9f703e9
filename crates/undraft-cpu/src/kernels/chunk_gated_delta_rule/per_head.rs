//! Decay of one factor a token and value head.

use fearless_simd::Simd;
use fearless_simd::prelude::*;

use super::super::matmul::Lanes;
use super::CHUNK;
use super::panel::TokenFactors;
use crate::simd::{self, LANES, Token};
use crate::with_simd;

/// Fills `w_k`, `w_q` and the token factors from the products and the factors `alpha` of `n` tokens; gives `D(C)`.
pub(super) fn weights(
    token: Token,
    n: usize,
    alpha: &[f32; CHUNK],
    products: [&[Lanes]; 2],
    weights: [&mut [Lanes]; 2],
    tokens: &mut TokenFactors,
) -> f32 {
    with_simd!(token, s => blocks(s, n, alpha, products, weights, tokens));
    let mut to_end = 1.0;
    for t in (0..n).rev() {
        tokens.to_end[t] = to_end;
        to_end *= alpha[t];
        tokens.minus[t] = -tokens.beta[t] * tokens.from_start[t];
    }
    to_end
}

const INDEX: Lanes = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];

/// Sixteen tokens t at a time, with s falling: `D(t, s)` is `D(t, s + 1)` times the factor of token s + 1. Lanes with
/// t < s hold numbers of no meaning until s comes down to t.
#[inline(always)]
fn blocks<S: Simd>(
    s: S,
    n: usize,
    alpha: &[f32; CHUNK],
    [kk, qk]: [&[Lanes]; 2],
    [w_k, w_q]: [&mut [Lanes]; 2],
    tokens: &mut TokenFactors,
) {
    let index = simd::load(s, &INDEX);
    for block in 0..n.div_ceil(LANES) {
        let first = block * LANES;
        let beta = tokens.beta[first..].first_chunk().map_or(simd::zero(s), |beta| simd::load(s, beta));
        let minus_beta = -beta;
        let mut decay = simd::splat(s, 1.0);
        for from in (0..first + LANES).rev() {
            if from + 1 < first + LANES {
                decay *= simd::splat(s, alpha[from + 1]);
            }
            if from >= first {
                let here = index.simd_eq(simd::splat(s, (from - first) as f32));
                decay = here.select(simd::splat(s, 1.0), decay);
            }
            let at = block * CHUNK + from;
            simd::store(simd::load(s, &kk[at]) * decay * minus_beta, &mut w_k[at]);
            simd::store(simd::load(s, &qk[at]) * decay, &mut w_q[at]);
        }
        decay *= simd::splat(s, alpha[0]);
        if let Some(to) = tokens.from_start[first..].first_chunk_mut() {
            simd::store(decay, to);
        }
    }
}
