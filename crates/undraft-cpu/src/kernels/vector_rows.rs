//! Rows of the state in vectors.

use fearless_simd::prelude::*;
use fearless_simd::{Simd, f32x4, f32x16};

use undraft_core::DType;

use super::factor::Factor;
use super::state_rows::{Entry, Row, RowKernel, Rows, Token};
use crate::simd::{self, LANES};

/// Vector arithmetic with the instruction set that the token proves.
#[derive(Clone, Copy)]
pub(super) struct Vectors<S>(pub(super) S);

impl<S: Simd> RowKernel for Vectors<S> {
    #[inline(always)]
    fn replay<const CH: usize, F: Factor<CH>>(self, row: &mut Row<CH>, entries: &[Entry<'_, CH, F>], state: DType) {
        // As many vectors at a time as registers hold everywhere.
        if CH.is_multiple_of(4) {
            replay::<S, F, CH, 4>(self.0, row, entries, state);
        } else if CH.is_multiple_of(2) {
            replay::<S, F, CH, 2>(self.0, row, entries, state);
        } else {
            replay::<S, F, CH, 1>(self.0, row, entries, state);
        }
    }

    /// Out of line: compiled once for each instruction set and `CH`, however many callers there are.
    #[inline(never)]
    fn token<const CH: usize, F: Factor<CH>>(self, token: Token<'_, CH, F>, rows: Rows<'_, CH>) {
        self.0.vectorize(
            #[inline(always)]
            || run(self.0, &token, rows),
        );
    }

    /// A pass of its own over rows in the first-level cache, so that f32 states have no part of it.
    #[inline(never)]
    fn round(self, rows: &mut [[f32; LANES]], to: DType) {
        self.0.vectorize(
            #[inline(always)]
            || match to {
                DType::F32 => {}
                DType::Bf16 => {
                    for x in rows {
                        simd::store(simd::round_bf16(simd::load(self.0, x)), x);
                    }
                }
                DType::F16 => {
                    for x in rows {
                        simd::store(simd::round_f16(simd::load(self.0, x)), x);
                    }
                }
            },
        );
    }
}

/// All entries over `G` vectors of the row, then over the next ones. `G` divides `CH`.
#[inline(always)]
fn replay<S: Simd, F: Factor<CH>, const CH: usize, const G: usize>(
    s: S,
    row: &mut Row<CH>,
    entries: &[Entry<'_, CH, F>],
    state: DType,
) {
    for (g, group) in row.as_chunks_mut::<G>().0.iter_mut().enumerate() {
        let mut x = [simd::zero(s); G];
        for c in 0..G {
            x[c] = simd::load(s, &group[c]);
        }
        for entry in entries {
            let delta = simd::splat(s, entry.delta);
            for c in 0..G {
                let decayed = x[c] * entry.decay.vector(s, g * G + c);
                x[c] = simd::fma(delta, simd::load(s, &entry.k[g * G + c]), decayed);
            }
            match state {
                DType::F32 => {}
                DType::Bf16 => {
                    for c in 0..G {
                        x[c] = simd::round_bf16(x[c]);
                    }
                }
                DType::F16 => {
                    for c in 0..G {
                        x[c] = simd::round_f16(x[c]);
                    }
                }
            }
        }
        for c in 0..G {
            simd::store(x[c], &mut group[c]);
        }
    }
}

/// Rows whose sums are finished together.
const GROUP: usize = 4;

/// All rows, group by group: the sums of one group against k are finished while the next group's run.
#[inline(always)]
fn run<S: Simd, F: Factor<CH>, const CH: usize>(s: S, token: &Token<'_, CH, F>, rows: Rows<'_, CH>) {
    let Rows { v, from, to, out, mut delta, mut ahead } = rows;
    let num_rows = v.len();
    let (v, v_rest) = v.as_chunks::<GROUP>();
    let (to, to_rest) = to.as_chunks_mut::<GROUP>();
    let (out, out_rest) = out.as_chunks_mut::<GROUP>();
    let num_groups = v.len().min(to.len()).min(out.len());
    let source = |g: usize| match from {
        Some(from) => from[g * GROUP..].first_chunk(),
        None => None,
    };
    if num_groups > 0 {
        let lines = ahead.num_lines().div_ceil(num_groups);
        let mut next = decay_group(s, token, source(0), &mut to[0]);
        for g in 0..num_groups {
            let p = next;
            ahead.fetch(lines);
            if g + 1 < num_groups {
                next = decay_group(s, token, source(g + 1), &mut to[g + 1]);
            }
            let d = finish_group(s, token, &v[g], p, &mut to[g], &mut out[g]);
            if let Some(delta) = &mut delta {
                delta[g * GROUP..(g + 1) * GROUP].copy_from_slice(&d);
            }
        }
    }
    if !v_rest.is_empty() {
        // The rows that are left over, made up to a group with rows that are not kept.
        let (n, done) = (v_rest.len(), num_rows - v_rest.len());
        let (mut v, mut rows, mut o) = ([0.0; GROUP], [[[0.0; LANES]; CH]; GROUP], [0.0; GROUP]);
        v[..n].copy_from_slice(v_rest);
        match from {
            Some(from) => rows[..n].copy_from_slice(&from[done..]),
            None => rows[..n].copy_from_slice(to_rest),
        }
        let p = decay_group(s, token, None, &mut rows);
        let d = finish_group(s, token, &v, p, &mut rows, &mut o);
        to_rest.copy_from_slice(&rows[..n]);
        out_rest.copy_from_slice(&o[..n]);
        if let Some(delta) = &mut delta {
            delta[done..].copy_from_slice(&d[..n]);
        }
    }
}

/// Decays a group and sums it against k. Registers hold the sums of four rows where a vector is one register, else of
/// two.
#[inline(always)]
fn decay_group<S: Simd, F: Factor<CH>, const CH: usize>(
    s: S,
    token: &Token<'_, CH, F>,
    from: Option<&[Row<CH>; GROUP]>,
    to: &mut [Row<CH>; GROUP],
) -> [f32x4<S>; GROUP] {
    if <S::f32s as SimdBase<S>>::LEN < LANES {
        let [a, b] = decay_rows::<S, F, CH, 2>(s, token, 0, from, to);
        let [c, d] = decay_rows::<S, F, CH, 2>(s, token, 2, from, to);
        [a, b, c, d]
    } else {
        decay_rows::<S, F, CH, 4>(s, token, 0, from, to)
    }
}

/// The group's deltas from its sums, then its update and outputs.
#[inline(always)]
fn finish_group<S: Simd, F: Factor<CH>, const CH: usize>(
    s: S,
    token: &Token<'_, CH, F>,
    v: &[f32; GROUP],
    p: [f32x4<S>; GROUP],
    rows: &mut [Row<CH>; GROUP],
    out: &mut [f32; GROUP],
) -> [f32; GROUP] {
    let delta = (f32x4::load_array_ref(s, v) - simd::sum_each(p)) * token.beta;
    let delta = <[f32; GROUP]>::from(delta);
    let o = if <S::f32s as SimdBase<S>>::LEN < LANES {
        let [a, b] = update_rows::<S, F, CH, 2>(s, token, 0, [delta[0], delta[1]], rows);
        let [c, d] = update_rows::<S, F, CH, 2>(s, token, 2, [delta[2], delta[3]], rows);
        [a, b, c, d]
    } else {
        update_rows::<S, F, CH, 4>(s, token, 0, delta, rows)
    };
    *out = (simd::sum_each(o) * token.scale).into();
    delta
}

/// Decays rows `at .. at + R` of the group and sums them against k, down to four lanes.
#[inline(always)]
fn decay_rows<S: Simd, F: Factor<CH>, const CH: usize, const R: usize>(
    s: S,
    token: &Token<'_, CH, F>,
    at: usize,
    from: Option<&[Row<CH>; GROUP]>,
    to: &mut [Row<CH>; GROUP],
) -> [f32x4<S>; R] {
    let mut acc = [[simd::zero(s); 2]; R];
    for c in 0..CH {
        let (k, decay) = (simd::load(s, &token.k[c]), token.decay.vector(s, c));
        for r in 0..R {
            let source = match from {
                Some(from) => &from[at + r][c],
                None => &to[at + r][c],
            };
            let x = simd::load(s, source) * decay;
            simd::store(x, &mut to[at + r][c]);
            acc[r][c & 1] = simd::fma(x, k, acc[r][c & 1]);
        }
    }
    fold(s, &acc)
}

/// Adds delta times k to rows `at .. at + R` of the group and sums them against q, down to four lanes.
#[inline(always)]
fn update_rows<S: Simd, F: Factor<CH>, const CH: usize, const R: usize>(
    s: S,
    token: &Token<'_, CH, F>,
    at: usize,
    delta: [f32; R],
    rows: &mut [Row<CH>; GROUP],
) -> [f32x4<S>; R] {
    let mut splat = [simd::zero(s); R];
    for r in 0..R {
        splat[r] = simd::splat(s, delta[r]);
    }
    let mut acc = [[simd::zero(s); 2]; R];
    for c in 0..CH {
        let (k, q) = (simd::load(s, &token.k[c]), simd::load(s, &token.q[c]));
        for r in 0..R {
            let x = simd::fma(splat[r], k, simd::load(s, &rows[at + r][c]));
            simd::store(x, &mut rows[at + r][c]);
            acc[r][c & 1] = simd::fma(x, q, acc[r][c & 1]);
        }
    }
    fold(s, &acc)
}

/// The two sums of each row added and folded to four lanes.
#[inline(always)]
fn fold<S: Simd, const R: usize>(s: S, acc: &[[f32x16<S>; 2]; R]) -> [f32x4<S>; R] {
    let mut folded = [f32x4::splat(s, 0.0); R];
    for r in 0..R {
        folded[r] = simd::fold(acc[r][0] + acc[r][1]);
    }
    folded
}
