//! Queries and keys of a chunk: read once for all value heads of a key head, and laid out for the products.

use std::ops::Range;

use fearless_simd::Simd;
use fearless_simd::prelude::*;
use undraft_core::ops::DeltaRuleInputs;
use undraft_core::{DType, QkNorm, Rounding, Rows};

use super::super::matmul::{Lanes, Tile, transpose_loops, transpose_vectors};
use super::super::rows::read_f32;
use super::PITCH;
use crate::simd::{self, LANES, Token};
use crate::{with_simd, with_vectors};

/// Reads `width` elements from `column` on of each token's row into `[tokens][row_len][16]`, padded with zeros.
pub(super) fn read(
    rows: &Rows<'_>,
    tokens: Range<usize>,
    column: usize,
    width: usize,
    to: &mut [Lanes],
    row_len: usize,
) {
    for (t, row) in tokens.zip(to.chunks_exact_mut(row_len)) {
        let (values, padding) = row.as_flattened_mut().split_at_mut(width);
        read_f32(rows, t, column, values);
        padding.fill(0.0);
    }
}

/// What beta and the normalised keys are rounded to.
pub(super) fn round_to(inputs: &DeltaRuleInputs<'_>) -> DType {
    match inputs.rounding {
        Rounding::F32 => DType::F32,
        Rounding::Io => inputs.k.dtype(),
    }
}

/// Normalises and rounds heads of `row_len` vectors as asked.
pub(super) fn normalise(token: Token, inputs: &DeltaRuleInputs<'_>, heads: &mut [Lanes], row_len: usize) {
    if let QkNorm::L2Norm { eps } = inputs.qk_norm {
        with_simd!(token, s => scale_to_unit(s, eps, heads, row_len));
    }
    let round_to = round_to(inputs);
    if round_to != DType::F32 {
        heads.as_flattened_mut().iter_mut().for_each(|x| *x = round_to.round(*x));
    }
}

/// Each head times `1 / sqrt(sum(x^2) + eps)`; the sum runs as in the recurrence.
#[inline(always)]
fn scale_to_unit<S: Simd>(s: S, eps: f32, heads: &mut [Lanes], row_len: usize) {
    for head in heads.chunks_exact_mut(row_len) {
        let mut sums = [simd::zero(s); 2];
        for (i, x) in head.iter().enumerate() {
            let x = simd::load(s, x);
            sums[i & 1] = simd::fma(x, x, sums[i & 1]);
        }
        let factor = simd::splat(s, 1.0 / (simd::sum(sums[0] + sums[1]) + eps).sqrt());
        for x in head.iter_mut() {
            simd::store(simd::load(s, x) * factor, x);
        }
    }
}

/// `[CHUNK][row_len][16 channels]` to `[CHUNK / 16][row_len * 16 channels][16 tokens]`, for `n` tokens rounded up to 16.
pub(super) fn token_minor(token: Token, n: usize, from: &[Lanes], row_len: usize, to: &mut [Lanes]) {
    let blocks = from.chunks_exact(LANES * row_len).zip(to.chunks_exact_mut(LANES * row_len)).take(n.div_ceil(LANES));
    for (from, to) in blocks {
        with_vectors!(token, scalar => {
            for (i, to) in to.as_chunks_mut().0.iter_mut().enumerate() {
                transpose_loops(&from[i..], row_len, to);
            }
        }, s => transposes(s, from, row_len, to));
    }
}

#[inline(always)]
fn transposes<S: Simd>(s: S, from: &[Lanes], row_len: usize, to: &mut [Lanes]) {
    for (i, to) in to.as_chunks_mut().0.iter_mut().enumerate() {
        transpose_vectors(s, &from[i..], row_len, to);
    }
}

/// `[n][row_len][16 channels]` to `[row_len][PITCH][16 channels]`.
pub(super) fn channel_blocks(token: Token, from: &[Lanes], row_len: usize, to: &mut [Lanes]) {
    with_simd!(token, s => copy_blocks(s, from, row_len, to));
}

#[inline(always)]
fn copy_blocks<S: Simd>(s: S, from: &[Lanes], row_len: usize, to: &mut [Lanes]) {
    for (channels, to) in to.chunks_exact_mut(PITCH).enumerate() {
        for (from, to) in from.chunks_exact(row_len).zip(to) {
            simd::store(simd::load(s, &from[channels]), to);
        }
    }
}

/// The operands of [`products`], each `[_][KP][16 tokens]`.
pub(super) struct Operands<'a> {
    /// Keys of all blocks up to that of `k_t`.
    pub(super) k_s: &'a [Lanes],
    /// Keys of one block.
    pub(super) k_t: &'a [Lanes],
    /// Queries of one block.
    pub(super) q_t: &'a [Lanes],
    pub(super) k_dim: usize,
}

/// `k_s . k_t` and `k_s . q_t` for one block of t and every s of the blocks in `k_s`, each `[s][16 t]`.
pub(super) fn products(token: Token, operands: &Operands<'_>, kk: &mut [Lanes], qk: &mut [Lanes]) {
    with_vectors!(token, scalar => {
        let Token::Scalar(s) = token else { unreachable!("matched above") };
        tiles::<_, 1, 1, 1>(s, operands, kk, qk);
    }, s => vectors(s, operands, kk, qk));
}

#[inline(always)]
fn vectors<S: Simd>(s: S, operands: &Operands<'_>, kk: &mut [Lanes], qk: &mut [Lanes]) {
    if <S::f32s as SimdBase<S>>::LEN < LANES {
        tiles::<S, 6, 5, 1>(s, operands, kk, qk);
    } else {
        tiles::<S, 8, 8, 2>(s, operands, kk, qk);
    }
}

#[inline(always)]
fn tiles<S: Simd, const M0: usize, const M1: usize, const NR: usize>(
    s: S,
    operands: &Operands<'_>,
    kk: &mut [Lanes],
    qk: &mut [Lanes],
) {
    let kp = operands.k_t.len();
    for (block, k_s) in operands.k_s.chunks_exact(kp).enumerate() {
        let (kk, qk) = (&mut kk[block * LANES..][..LANES], &mut qk[block * LANES..][..LANES]);
        let mut row = 0;
        while row < LANES {
            if row == 0 {
                tile::<S, M0, NR>(s, operands, k_s, row, kk, qk);
                row += M0;
            } else {
                tile::<S, M1, NR>(s, operands, k_s, row, kk, qk);
                row += M1;
            }
        }
    }
}

/// Both products at once where `NR` is 2.
#[inline(always)]
fn tile<S: Simd, const MR: usize, const NR: usize>(
    s: S,
    operands: &Operands<'_>,
    k_s: &[Lanes],
    row: usize,
    kk: &mut [Lanes],
    qk: &mut [Lanes],
) {
    let (k_s, both) = (&k_s[..operands.k_dim], [operands.k_t, operands.q_t]);
    let mut to = [kk, qk];
    for (from, to) in both.as_chunks::<NR>().0.iter().zip(to.as_chunks_mut::<NR>().0) {
        let mut tile = Tile::<S, MR, NR>::zero(s);
        tile.add(s, k_s, row, *from);
        for r in 0..MR {
            for n in 0..NR {
                simd::store(tile.sums[r][n], &mut to[n][row + r]);
            }
        }
    }
}
