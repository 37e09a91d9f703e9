//! A chunk of one value head over a panel of its columns: deltas, outputs, state. Everything is one product after another
//! in registers; columns do not depend on each other.

use fearless_simd::Simd;
use fearless_simd::prelude::*;

use super::super::matmul::{Lanes, Tile};
use super::ahead::Ahead;
use super::{CHUNK, PITCH};
use crate::simd::{self, LANES, Token};
use crate::with_vectors;

/// Blocks of 16 columns of a panel.
pub(super) const PANEL: usize = 2;

/// What a chunk of a value head multiplies its columns by. KP is K, padded to 16.
pub(super) struct Factors<'a> {
    /// Tokens.
    pub(super) n: usize,
    pub(super) k_dim: usize,
    /// Queries, `[CHUNK / 16][KP][16 tokens]`; with decay per channel times `D(t)`.
    pub(super) q_t: &'a [Lanes],
    /// Keys, alike.
    pub(super) k_t: &'a [Lanes],
    /// Keys, `[KP / 16][PITCH][16 channels]`; with decay per channel times `D(C, s)`.
    pub(super) k: &'a [Lanes],
    /// `-beta_t D(t, s) (k_t . k_s)` for s < t, `[CHUNK / 16][CHUNK s][16 t]`.
    pub(super) w_k: &'a [Lanes],
    /// `D(t, s) (q_t . k_s)` for s <= t, alike.
    pub(super) w_q: &'a [Lanes],
    pub(super) tokens: &'a TokenFactors,
    /// By what the state decays over the chunk, `[KP]`.
    pub(super) carry: &'a [f32],
    pub(super) scale: f32,
}

/// Factors of each token.
pub(super) struct TokenFactors {
    pub(super) beta: [f32; CHUNK],
    /// `D(t)`, or 1 where the keys hold it.
    pub(super) from_start: [f32; CHUNK],
    /// `-beta_t D(t)`.
    pub(super) minus: [f32; CHUNK],
    /// `D(C, t)`, or 1 where the keys hold it.
    pub(super) to_end: [f32; CHUNK],
}

/// A panel of columns of a value head: one or two blocks.
pub(super) struct Columns<'a> {
    /// Key-major, `[blocks][KP][16]`; before the chunk, then after it.
    pub(super) state: &'a mut [Lanes],
    /// v, then the outputs, `[CHUNK][row_len][16]`.
    pub(super) values: &'a mut [Lanes],
    /// Blocks of a row of `values`.
    pub(super) row_len: usize,
    /// The first of the panel's.
    pub(super) first: usize,
    /// Scratch, `[2][PANEL][PITCH][16]`: deltas, and deltas times `D(C, t)`.
    pub(super) delta: &'a mut [Lanes],
    /// Memory for what comes next.
    pub(super) ahead: &'a mut Ahead,
}

/// Tiles of eight rows of a panel, each of which fetches from [`Columns::ahead`].
pub(super) fn num_tiles(n: usize, kp: usize) -> usize {
    (2 * n + kp).div_ceil(8)
}

/// Runs the chunk over a panel.
pub(super) fn run(token: Token, factors: &Factors<'_>, columns: &mut Columns<'_>) {
    let num_blocks = PANEL.min(columns.row_len - columns.first);
    with_vectors!(token, scalar => {
        let Token::Scalar(s) = token else { unreachable!("matched above") };
        for block in 0..num_blocks {
            chunk::<_, 1, 1, 1>(s, factors, columns, block);
        }
    }, s => vectors(s, factors, columns, num_blocks));
}

/// Registers hold tiles of 8 x 2 where a vector is one register (16 of 32), else of 6 x 1 and 5 x 1 (12 of 16).
#[inline(always)]
fn vectors<S: Simd>(s: S, factors: &Factors<'_>, columns: &mut Columns<'_>, num_blocks: usize) {
    if <S::f32s as SimdBase<S>>::LEN < LANES {
        for block in 0..num_blocks {
            chunk::<S, 6, 5, 1>(s, factors, columns, block);
        }
    } else if num_blocks == PANEL {
        chunk::<S, 8, 8, 2>(s, factors, columns, 0);
    } else {
        chunk::<S, 8, 8, 1>(s, factors, columns, 0);
    }
}

/// Blocks `at .. at + NR` of the panel. A block of 16 rows is a tile of `M0` and as many of `M1` as it takes.
#[inline(always)]
fn chunk<S: Simd, const M0: usize, const M1: usize, const NR: usize>(
    s: S,
    factors: &Factors<'_>,
    columns: &mut Columns<'_>,
    at: usize,
) {
    for block in 0..factors.n.div_ceil(LANES) {
        let num_rows = LANES.min(factors.n - block * LANES);
        let mut row = 0;
        while row < num_rows {
            if row == 0 {
                deltas::<S, M0, NR>(s, factors, columns, at, block, row);
                row += M0;
            } else {
                deltas::<S, M1, NR>(s, factors, columns, at, block, row);
                row += M1;
            }
        }
        let mut row = 0;
        while row < num_rows {
            if row == 0 {
                outputs::<S, M0, NR>(s, factors, columns, at, block, row);
                row += M0;
            } else {
                outputs::<S, M1, NR>(s, factors, columns, at, block, row);
                row += M1;
            }
        }
    }
    for block in 0..factors.carry.len() / LANES {
        let mut row = 0;
        while row < LANES {
            if row == 0 {
                update::<S, M0, NR>(s, factors, columns, at, block, row);
                row += M0;
            } else {
                update::<S, M1, NR>(s, factors, columns, at, block, row);
                row += M1;
            }
        }
    }
}

/// `len` rows from `first` on of each of the blocks `at .. at + NR`, which have `rows` rows.
#[inline(always)]
fn blocks<const NR: usize>(of: &[Lanes], at: usize, rows: usize, first: usize, len: usize) -> [&[Lanes]; NR] {
    let mut blocks = [&of[..0]; NR];
    for n in 0..NR {
        blocks[n] = &of[(at + n) * rows + first..][..len];
    }
    blocks
}

/// Stores the sums into rows `first .. first + MR` of blocks `at .. at + NR`.
#[inline(always)]
fn store<S: Simd, const MR: usize, const NR: usize>(
    tile: &Tile<S, MR, NR>,
    to: &mut [Lanes],
    at: usize,
    rows: usize,
    first: usize,
) {
    for n in 0..NR {
        let to = &mut to[(at + n) * rows + first..][..MR];
        for r in 0..MR {
            simd::store(tile.sums[r][n], &mut to[r]);
        }
    }
}

/// `delta_t = beta_t v_t - beta_t D(t) S0 k_t - sum_{s < t} beta_t D(t, s) (k_t . k_s) delta_s` for `MR` tokens.
#[inline(always)]
fn deltas<S: Simd, const MR: usize, const NR: usize>(
    s: S,
    factors: &Factors<'_>,
    columns: &mut Columns<'_>,
    at: usize,
    block: usize,
    row: usize,
) {
    let (kp, first) = (factors.carry.len(), block * LANES + row);
    columns.ahead.fetch();
    let mut tile = Tile::<S, MR, NR>::zero(s);
    let state = blocks(columns.state, at, kp, 0, factors.k_dim);
    tile.add(s, &factors.k_t[block * kp..][..factors.k_dim], row, state);
    let (minus, beta) = (&factors.tokens.minus[first..][..MR], &factors.tokens.beta[first..][..MR]);
    for r in 0..MR {
        let (minus, beta) = (simd::splat(s, minus[r]), simd::splat(s, beta[r]));
        let v = &columns.values[(first + r) * columns.row_len + columns.first + at..][..NR];
        for n in 0..NR {
            tile.sums[r][n] = simd::fma(minus, tile.sums[r][n], beta * simd::load(s, &v[n]));
        }
    }
    let (before, here) = factors.w_k[block * CHUNK..][..first + MR].split_at(first);
    tile.add(s, before, row, blocks(columns.delta, at, PITCH, 0, first));
    tile.substitute(s, here, row);
    store(&tile, columns.delta, at, PITCH, first);
    let to_end = &factors.tokens.to_end[first..][..MR];
    for r in 0..MR {
        let to_end = simd::splat(s, to_end[r]);
        for n in 0..NR {
            tile.sums[r][n] *= to_end;
        }
    }
    store(&tile, columns.delta, PANEL + at, PITCH, first);
}

/// `o_t = scale (D(t) S0 q_t + sum_{s <= t} D(t, s) (q_t . k_s) delta_s)` for `MR` tokens.
#[inline(always)]
fn outputs<S: Simd, const MR: usize, const NR: usize>(
    s: S,
    factors: &Factors<'_>,
    columns: &mut Columns<'_>,
    at: usize,
    block: usize,
    row: usize,
) {
    let (kp, first) = (factors.carry.len(), block * LANES + row);
    columns.ahead.fetch();
    let mut tile = Tile::<S, MR, NR>::zero(s);
    let state = blocks(columns.state, at, kp, 0, factors.k_dim);
    tile.add(s, &factors.q_t[block * kp..][..factors.k_dim], row, state);
    let from_start = &factors.tokens.from_start[first..][..MR];
    for r in 0..MR {
        let from_start = simd::splat(s, from_start[r]);
        for n in 0..NR {
            tile.sums[r][n] *= from_start;
        }
    }
    let (before, here) = factors.w_q[block * CHUNK..][..first + MR].split_at(first);
    tile.add(s, before, row, blocks(columns.delta, at, PITCH, 0, first));
    tile.add_lower(s, here, row, blocks(columns.delta, at, PITCH, first, MR));
    let scale = simd::splat(s, factors.scale);
    for r in 0..MR {
        let to = &mut columns.values[(first + r) * columns.row_len + columns.first + at..][..NR];
        for n in 0..NR {
            simd::store(tile.sums[r][n] * scale, &mut to[n]);
        }
    }
}

/// `S1 = D(C) S0 + sum_s D(C, s) k_s delta_s^T` for `MR` channels.
#[inline(always)]
fn update<S: Simd, const MR: usize, const NR: usize>(
    s: S,
    factors: &Factors<'_>,
    columns: &mut Columns<'_>,
    at: usize,
    block: usize,
    row: usize,
) {
    let (kp, first) = (factors.carry.len(), block * LANES + row);
    columns.ahead.fetch();
    let mut tile = Tile::<S, MR, NR>::zero(s);
    let (carry, state) = (&factors.carry[first..][..MR], blocks::<NR>(columns.state, at, kp, first, MR));
    for r in 0..MR {
        let carry = simd::splat(s, carry[r]);
        for n in 0..NR {
            tile.sums[r][n] = simd::load(s, &state[n][r]) * carry;
        }
    }
    let k = &factors.k[block * PITCH..][..factors.n];
    tile.add(s, k, row, blocks(columns.delta, PANEL + at, PITCH, 0, factors.n));
    store(&tile, columns.state, at, kp, first);
}
