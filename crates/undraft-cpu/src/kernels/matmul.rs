//! Small dense products on scratch buffers, for the chunked form.

use fearless_simd::Simd;

use crate::simd::{self, LANES};

/// A matrix of f32 in a slice: element (i, j) at `i * row + j * col`.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub(super) data: &'a [f32],
    pub(super) row: usize,
    pub(super) col: usize,
}

/// `c[i][..] = beta * c[i][..] + sum_p a(i, p) * b[p][..]` for `i < m` and `n` columns, a multiple of 16.
///
/// `b` is `[depth, n]` with rows `b_row` apart, `c` is `[m, n]` with rows `c_row` apart. Terms are added in rising p,
/// one FMA each, so that a result does not depend on how rows and columns are blocked.
#[inline(always)]
pub(super) fn matmul<S: Simd>(
    s: S,
    [m, n, depth]: [usize; 3],
    a: Matrix<'_>,
    (b, b_row): (&[f32], usize),
    beta: f32,
    (c, c_row): (&mut [f32], usize),
) {
    let mut i = 0;
    while i + 4 <= m {
        columns::<S, 4>(s, i, [n, depth], a, (b, b_row), beta, (c, c_row));
        i += 4;
    }
    while i < m {
        columns::<S, 1>(s, i, [n, depth], a, (b, b_row), beta, (c, c_row));
        i += 1;
    }
}

#[inline(always)]
fn columns<S: Simd, const MR: usize>(
    s: S,
    i: usize,
    [n, depth]: [usize; 2],
    a: Matrix<'_>,
    b: (&[f32], usize),
    beta: f32,
    (c, c_row): (&mut [f32], usize),
) {
    let mut j = 0;
    while j + 4 * LANES <= n {
        tile::<S, MR, 4>(s, i, j, depth, a, b, beta, (c, c_row));
        j += 4 * LANES;
    }
    while j + LANES <= n {
        tile::<S, MR, 1>(s, i, j, depth, a, b, beta, (c, c_row));
        j += LANES;
    }
}

/// Rows `i .. i + MR`, columns `j .. j + 16 * NR`.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn tile<S: Simd, const MR: usize, const NR: usize>(
    s: S,
    i: usize,
    j: usize,
    depth: usize,
    a: Matrix<'_>,
    (b, b_row): (&[f32], usize),
    beta: f32,
    (c, c_row): (&mut [f32], usize),
) {
    let beta = simd::splat(s, beta);
    let mut acc = [[simd::zero(s); NR]; MR];
    for r in 0..MR {
        let from = &c[(i + r) * c_row + j..][..NR * LANES];
        for (to, from) in acc[r].iter_mut().zip(from.as_chunks::<LANES>().0) {
            *to = simd::load(s, from) * beta;
        }
    }
    for p in 0..depth {
        let (b, _) = b[p * b_row + j..][..NR * LANES].as_chunks::<LANES>();
        for r in 0..MR {
            let x = simd::splat(s, a.data[(i + r) * a.row + p * a.col]);
            for n in 0..NR {
                acc[r][n] = simd::fma(x, simd::load(s, &b[n]), acc[r][n]);
            }
        }
    }
    for r in 0..MR {
        let (to, _) = c[(i + r) * c_row + j..][..NR * LANES].as_chunks_mut::<LANES>();
        for n in 0..NR {
            simd::store(acc[r][n], &mut to[n]);
        }
    }
}

/// `to[j][i] = from[i][j]` for `rows x cols`.
pub(super) fn transpose(
    rows: usize,
    cols: usize,
    (from, from_row): (&[f32], usize),
    (to, to_row): (&mut [f32], usize),
) {
    for i in 0..rows {
        for j in 0..cols {
            to[j * to_row + i] = from[i * from_row + j];
        }
    }
}
