//! Sums of products in registers, over matrices that lie in blocks of 16 columns.
//!
//! A matrix `[R, C]` lies as `[ceil(C / 16)][R][16]`: a block's rows follow one another, so that a product reads both its
//! operands in order. Terms are added in rising depth, one FMA each: how large a tile is does not change a bit.

use fearless_simd::prelude::*;
use fearless_simd::{Simd, f32x16};

use crate::simd::{self, LANES, Token};
use crate::with_vectors;

/// One row of a block.
pub(super) type Lanes = [f32; LANES];

/// Sums of `MR` rows and `NR` blocks of columns.
#[derive(Clone, Copy)]
pub(super) struct Tile<S: Simd, const MR: usize, const NR: usize> {
    pub(super) sums: [[f32x16<S>; NR]; MR],
}

impl<S: Simd, const MR: usize, const NR: usize> Tile<S, MR, NR> {
    #[inline(always)]
    pub(super) fn zero(s: S) -> Self {
        Self { sums: [[simd::zero(s); NR]; MR] }
    }

    /// Adds `sum_p a[p][row + r] * b[n][p]` to sum `(r, n)`; `b[n]` is at least as long as `a`.
    #[inline(always)]
    pub(super) fn add(&mut self, s: S, a: &[Lanes], row: usize, mut b: [&[Lanes]; NR]) {
        assert!(row + MR <= LANES);
        for n in 0..NR {
            b[n] = &b[n][..a.len()];
        }
        for (p, a) in a.iter().enumerate() {
            let mut columns = [simd::zero(s); NR];
            for n in 0..NR {
                columns[n] = simd::load(s, &b[n][p]);
            }
            for r in 0..MR {
                let x = simd::splat(s, a[row + r]);
                for n in 0..NR {
                    self.sums[r][n] = simd::fma(x, columns[n], self.sums[r][n]);
                }
            }
        }
    }

    /// Adds `sum_{p <= r} a[p][row + r] * b[n][p]` for the `MR` rows of `a`; what lies above the diagonal is not read.
    #[inline(always)]
    pub(super) fn add_lower(&mut self, s: S, a: &[Lanes], row: usize, b: [&[Lanes]; NR]) {
        for p in 0..MR {
            for n in 0..NR {
                let column = simd::load(s, &b[n][p]);
                for r in p..MR {
                    self.sums[r][n] = simd::fma(simd::splat(s, a[p][row + r]), column, self.sums[r][n]);
                }
            }
        }
    }

    /// Forward substitution: adds `sum_{p < r} a[p][row + r] * sums[p]` to row r, rows in rising order.
    #[inline(always)]
    pub(super) fn substitute(&mut self, s: S, a: &[Lanes], row: usize) {
        for p in 0..MR {
            for r in p + 1..MR {
                let x = simd::splat(s, a[p][row + r]);
                for n in 0..NR {
                    self.sums[r][n] = simd::fma(x, self.sums[p][n], self.sums[r][n]);
                }
            }
        }
    }
}

/// `to[j][i] = from[i * row_len][j]` for 16 rows of `from`, `row_len` vectors apart.
pub(super) fn transpose(token: Token, from: &[Lanes], row_len: usize, to: &mut [Lanes; LANES]) {
    with_vectors!(token, scalar => transpose_loops(from, row_len, to), s => transpose_vectors(s, from, row_len, to));
}

/// [`transpose`] in plain loops.
pub(super) fn transpose_loops(from: &[Lanes], row_len: usize, to: &mut [Lanes; LANES]) {
    for i in 0..LANES {
        for j in 0..LANES {
            to[j][i] = from[i * row_len][j];
        }
    }
}

/// [`transpose`] by four perfect shuffles of the 256 elements: each takes the highest bit of the index to its lowest place.
#[inline(always)]
pub(super) fn transpose_vectors<S: Simd>(s: S, from: &[Lanes], row_len: usize, to: &mut [Lanes; LANES]) {
    let mut x = [simd::zero(s); LANES];
    for i in 0..LANES {
        x[i] = simd::load(s, &from[i * row_len]);
    }
    for _ in 0..4 {
        let mut y = x;
        for i in 0..LANES / 2 {
            y[2 * i] = x[i].zip_low(x[i + LANES / 2]);
            y[2 * i + 1] = x[i].zip_high(x[i + LANES / 2]);
        }
        x = y;
    }
    for i in 0..LANES {
        simd::store(x[i], &mut to[i]);
    }
}
