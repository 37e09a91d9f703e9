//! Decay of one factor a token, value head and key channel (Kimi Delta Attention).
//!
//! `D(t, s)` is then a vector over the channels and stands inside the products:
//!
//! ```text
//! delta_t = beta_t * (v_t - S0 (D(t) k_t) - sum_{s < t} (k_t . (D(t, s) k_s)) delta_s)
//! o_t     = scale * (S0 (D(t) q_t) + sum_{s <= t} (q_t . (D(t, s) k_s)) delta_s)
//! S1      = S0 D(C) + sum_s delta_s (D(C, s) k_s)^T
//! ```
//!
//! Between two blocks of 16 tokens `D(t, s)` is split at the end r of the block before t's: `D(t, r)` goes to `k_t` and
//! `q_t`, `D(r, s)` to `k_s`, each a product of factors; nothing is ever divided by a decay. Within a block the products run
//! with `D(t, s)` itself.

use std::ops::Range;

use fearless_simd::Simd;
use undraft_core::MAX_HEAD_DIM;

use super::super::matmul::Lanes;
use super::keys::{Operands, products, token_minor};
use super::panel::TokenFactors;
use super::{CHUNK, PITCH};
use crate::simd::{self, LANES, Token};
use crate::with_simd;

/// Buffers of a chunk and value head.
pub(super) struct Buffers<'a> {
    /// Decay factors of the chunk, `[CHUNK][KP / 16][16 channels]`.
    pub(super) alpha: &'a mut [Lanes],
    /// Keys before they are transposed, alike.
    pub(super) rows: &'a mut [Lanes],
    /// `D(r, s) k_s`, `[CHUNK / 16][KP][16 tokens]`.
    pub(super) k_s: &'a mut [Lanes],
    /// `D(t) k_t`, alike.
    pub(super) k_t: &'a mut [Lanes],
    /// `D(t) q_t`, alike.
    pub(super) q_t: &'a mut [Lanes],
    /// `D(C, s) k_s`, `[KP / 16][PITCH][16 channels]`.
    pub(super) k: &'a mut [Lanes],
    pub(super) w_k: &'a mut [Lanes],
    pub(super) w_q: &'a mut [Lanes],
    /// `D(C)`, `[KP]`.
    pub(super) carry: &'a mut [f32],
}

/// Fills the buffers from `q` and `k` (`[CHUNK][KP / 16][16 channels]`) and `buffers.alpha` of `n` tokens.
pub(super) fn weights(
    token: Token,
    n: usize,
    k_dim: usize,
    [q, k]: [&[Lanes]; 2],
    buffers: &mut Buffers<'_>,
    tokens: &mut TokenFactors,
) {
    let kp = buffers.carry.len();
    let row_len = kp / LANES;
    for (rows, to) in [(q, &mut *buffers.q_t), (k, &mut *buffers.k_t)] {
        with_simd!(token, s => decay_from_block_start(s, n, rows, buffers.alpha, row_len, buffers.rows));
        token_minor(token, n, buffers.rows, row_len, to);
    }
    with_simd!(token, s => decay_to_block_end(s, n, k, buffers.alpha, row_len, buffers.rows));
    token_minor(token, n, buffers.rows, row_len, buffers.k_s);

    buffers.carry.fill(1.0);
    for block in 0..n.div_ceil(LANES) {
        let first = block * LANES;
        let here = block * kp..(block + 1) * kp;
        let w = block * CHUNK..(block + 1) * CHUNK;
        let (w_k, w_q) = (&mut buffers.w_k[w.clone()], &mut buffers.w_q[w]);
        let operands = Operands {
            k_s: &buffers.k_s[..block * kp],
            k_t: &buffers.k_t[here.clone()],
            q_t: &buffers.q_t[here.clone()],
            k_dim,
        };
        products(token, &operands, w_k, w_q);
        let len = LANES.min(n - first);
        let rows = first * row_len..(first + len) * row_len;
        let rows = [&q[rows.clone()], &k[rows.clone()], &buffers.alpha[rows]];
        with_simd!(token, s => diagonal(s, row_len, rows, [&mut w_k[first..], &mut w_q[first..]]));
        for row in &mut w_k[..first + len] {
            for (w, beta) in row.iter_mut().zip(&tokens.beta[first..]) {
                *w *= -beta;
            }
        }
        // From decay since the block's start to decay since the chunk's.
        for x in [&mut *buffers.q_t, &mut *buffers.k_t] {
            scale_rows(&mut x[here.clone()], buffers.carry);
        }
        // Past this block.
        for channels in 0..row_len {
            let mut decay = [1.0; LANES];
            for t in first..first + len {
                for (d, alpha) in decay.iter_mut().zip(&buffers.alpha[t * row_len + channels]) {
                    *d *= alpha;
                }
            }
            for block in 0..block {
                scale_rows(&mut buffers.k_s[block * kp + channels * LANES..][..LANES], &decay);
            }
            for (carry, d) in buffers.carry[channels * LANES..].iter_mut().zip(&decay) {
                *carry *= d;
            }
        }
    }
    with_simd!(token, s => decay_to_end(s, 0..n, k, buffers.alpha, row_len, [PITCH, 1], buffers.k));
    tokens.from_start.fill(1.0);
    tokens.to_end.fill(1.0);
    for (minus, beta) in tokens.minus.iter_mut().zip(&tokens.beta) {
        *minus = -beta;
    }
}

/// Row j times `by[j]`.
fn scale_rows(rows: &mut [Lanes], by: &[f32]) {
    for (row, by) in rows.iter_mut().zip(by) {
        row.iter_mut().for_each(|x| *x *= by);
    }
}

/// `to[t] = D(t, r) rows[t]` with r the end of the block before t's.
#[inline(always)]
fn decay_from_block_start<S: Simd>(s: S, n: usize, rows: &[Lanes], alpha: &[Lanes], row_len: usize, to: &mut [Lanes]) {
    for channels in 0..row_len {
        let mut decay = simd::splat(s, 1.0);
        for t in 0..n {
            let at = t * row_len + channels;
            let factor = simd::load(s, &alpha[at]);
            decay = if t % LANES == 0 { factor } else { decay * factor };
            simd::store(simd::load(s, &rows[at]) * decay, &mut to[at]);
        }
    }
}

/// `to[t] = D(e, t) rows[t]` with e the last token of t's block.
#[inline(always)]
fn decay_to_block_end<S: Simd>(s: S, n: usize, rows: &[Lanes], alpha: &[Lanes], row_len: usize, to: &mut [Lanes]) {
    for first in (0..n).step_by(LANES) {
        decay_to_end(s, first..n.min(first + LANES), rows, alpha, row_len, [1, row_len], to);
    }
}

/// `to[t] = D(e, t) rows[t]` with e the last of `tokens`; the vector of block c and token t goes to `c * block + t * row`.
#[inline(always)]
fn decay_to_end<S: Simd>(
    s: S,
    tokens: Range<usize>,
    rows: &[Lanes],
    alpha: &[Lanes],
    row_len: usize,
    [block, row]: [usize; 2],
    to: &mut [Lanes],
) {
    for channels in 0..row_len {
        let mut decay = simd::splat(s, 1.0);
        for t in tokens.clone().rev() {
            let at = t * row_len + channels;
            simd::store(simd::load(s, &rows[at]) * decay, &mut to[channels * block + t * row]);
            decay *= simd::load(s, &alpha[at]);
        }
    }
}

/// `k_t . (D(t, s) k_s)` for s < t and `q_t . (D(t, s) k_s)` for s <= t among the tokens of one block, each `[16 s][16 t]`;
/// the rest is left as it is.
#[inline(always)]
fn diagonal<S: Simd>(s: S, row_len: usize, [q, k, alpha]: [&[Lanes]; 3], [kk, qk]: [&mut [Lanes]; 2]) {
    let len = k.len() / row_len;
    // D(t, s) k_s for the t at hand.
    let mut key = [[0.0; LANES]; MAX_HEAD_DIM / LANES];
    let key = &mut key[..row_len];
    for from in 0..len {
        key.copy_from_slice(&k[from * row_len..][..row_len]);
        for t in from..len {
            let at = t * row_len..(t + 1) * row_len;
            let mut sums = [simd::zero(s); 2];
            for ((key, alpha), (k, q)) in key.iter_mut().zip(&alpha[at.clone()]).zip(k[at.clone()].iter().zip(&q[at])) {
                let mut x = simd::load(s, key);
                if t > from {
                    x *= simd::load(s, alpha);
                    simd::store(x, key);
                    sums[0] = simd::fma(simd::load(s, k), x, sums[0]);
                }
                sums[1] = simd::fma(simd::load(s, q), x, sums[1]);
            }
            kk[from][t] = simd::sum(sums[0]);
            qk[from][t] = simd::sum(sums[1]);
        }
    }
}
