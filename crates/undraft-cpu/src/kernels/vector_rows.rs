//! Rows of the state in vectors.

use fearless_simd::prelude::*;
use fearless_simd::{Simd, f32x4};

use undraft_core::DType;

use super::factor::Factor;
use super::state_rows::{ChainRows, Entry, Row, RowKernel, Rows, Token};
use super::sweeps::{Sums, halves, whole};
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
            // A form of its own for f32, in which nothing asks whether to round.
            || match rows.state {
                DType::F32 => run(self.0, &token, Rows { state: DType::F32, ..rows }),
                _ => run(self.0, &token, rows),
            },
        );
    }

    #[inline(never)]
    fn chain<const CH: usize, F: Factor<CH>>(self, tokens: &[Token<'_, CH, F>], rows: ChainRows<'_, CH>) {
        self.0.vectorize(
            #[inline(always)]
            || match rows.state {
                DType::F32 => run_chain(self.0, tokens, ChainRows { state: DType::F32, ..rows }),
                _ => run_chain(self.0, tokens, rows),
            },
        );
    }

    #[inline(always)]
    fn with_features<R>(self, f: impl FnOnce() -> R) -> R {
        self.0.vectorize(f)
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
                let decayed = x[c] * entry.decay.vector(s, g * G + c, 0);
                x[c] = simd::fma(delta, simd::load(s, &entry.k[g * G + c]), decayed);
            }
            for c in 0..G {
                x[c] = whole::round(x[c], state);
            }
        }
        for c in 0..G {
            simd::store(x[c], &mut group[c]);
        }
    }
}

/// Rows whose sums are finished together.
const GROUP: usize = 4;
type Group<const CH: usize> = [Row<CH>; GROUP];

/// All rows, group by group: the sums of one group against k are finished while the next group's run.
#[inline(always)]
fn run<S: Simd, F: Factor<CH>, const CH: usize>(s: S, token: &Token<'_, CH, F>, rows: Rows<'_, CH>) {
    let Rows { v, from, to, out, mut delta, mut ahead, state } = rows;
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
            let d = deltas(s, token, &v[g], p);
            out[g] = update_group(s, token, d, &mut to[g], state);
            if let Some(delta) = &mut delta {
                delta[g * GROUP..(g + 1) * GROUP].copy_from_slice(&d);
            }
        }
    }
    if !v_rest.is_empty() {
        // The rows that are left over, made up to a group with rows that are not kept.
        let (n, done) = (v_rest.len(), num_rows - v_rest.len());
        let (mut v, mut rows) = ([0.0; GROUP], [[[0.0; LANES]; CH]; GROUP]);
        v[..n].copy_from_slice(v_rest);
        match from {
            Some(from) => rows[..n].copy_from_slice(&from[done..]),
            None => rows[..n].copy_from_slice(to_rest),
        }
        let p = decay_group(s, token, None, &mut rows);
        let d = deltas(s, token, &v, p);
        let o = update_group(s, token, d, &mut rows, state);
        to_rest.copy_from_slice(&rows[..n]);
        out_rest.copy_from_slice(&o[..n]);
        if let Some(delta) = &mut delta {
            delta[done..].copy_from_slice(&d[..n]);
        }
    }
}

/// Decays a group and sums it against k.
#[inline(always)]
fn decay_group<S: Simd, F: Factor<CH>, const CH: usize>(
    s: S,
    token: &Token<'_, CH, F>,
    from: Option<&Group<CH>>,
    to: &mut Group<CH>,
) -> Sums<S, GROUP> {
    if has_wide_registers::<S>() { whole::decay(s, token, from, to) } else { halves::decay(s, token, from, to) }
}

/// The group's deltas from its sums.
#[inline(always)]
fn deltas<S: Simd, F, const CH: usize>(
    s: S,
    token: &Token<'_, CH, F>,
    v: &[f32; GROUP],
    p: Sums<S, GROUP>,
) -> [f32; GROUP] {
    ((f32x4::load_array_ref(s, v) - simd::sum_each(p)) * token.beta).into()
}

/// The group's update and outputs.
#[inline(always)]
fn update_group<S: Simd, F: Factor<CH>, const CH: usize>(
    s: S,
    token: &Token<'_, CH, F>,
    delta: [f32; GROUP],
    rows: &mut Group<CH>,
    state: DType,
) -> [f32; GROUP] {
    let sums = if has_wide_registers::<S>() {
        whole::update(s, token, delta, rows, state)
    } else {
        halves::update(s, token, delta, rows, state)
    };
    (simd::sum_each(sums) * token.scale).into()
}

/// [`update_group`] for a token and [`decay_group`] for the next.
#[inline(always)]
fn update_and_decay_group<S: Simd, F: Factor<CH>, const CH: usize>(
    s: S,
    token: &Token<'_, CH, F>,
    next: &Token<'_, CH, F>,
    delta: [f32; GROUP],
    rows: &mut Group<CH>,
    state: DType,
) -> ([f32; GROUP], Sums<S, GROUP>) {
    let (outs, reads) = if has_wide_registers::<S>() {
        whole::update_and_decay(s, token, next, delta, rows, state)
    } else {
        // Registers hold two kinds of sums for two rows.
        let ([a, b, c, d], (pairs, _)) = (delta, rows.as_chunks_mut::<2>());
        let [first, second] = pairs else { unreachable!("a group is two pairs") };
        let ([o0, o1], [p0, p1]) = halves::update_and_decay(s, token, next, [a, b], first, state);
        let ([o2, o3], [p2, p3]) = halves::update_and_decay(s, token, next, [c, d], second, state);
        ([o0, o1, o2, o3], [p0, p1, p2, p3])
    };
    ((simd::sum_each(outs) * token.scale).into(), reads)
}

/// Whether a vector of 16 lanes is one register.
#[inline(always)]
fn has_wide_registers<S: Simd>() -> bool {
    <S::f32s as SimdBase<S>>::LEN >= LANES
}

/// Several tokens, each after the one before: between two of them the rows are loaded and stored once.
#[inline(always)]
fn run_chain<S: Simd, F: Factor<CH>, const CH: usize>(s: S, tokens: &[Token<'_, CH, F>], rows: ChainRows<'_, CH>) {
    let ChainRows { v, from, to, out, delta, mut ahead, state } = rows;
    let (to, _) = to.as_chunks_mut::<GROUP>();
    // Not with the last sweep: what it asks for would come too late.
    let lines = ahead.num_lines().div_ceil((to.len() * tokens.len()).max(1));
    for (g, to) in to.iter_mut().enumerate() {
        ahead.fetch(lines);
        let from = match from {
            Some(from) => from[g * GROUP..].first_chunk(),
            None => None,
        };
        let p = decay_group(s, &tokens[0], from, to);
        delta[0].as_chunks_mut().0[g] = deltas(s, &tokens[0], &v[0].as_chunks().0[g], p);
    }
    for t in 1..tokens.len() {
        let (before, after) = delta.split_at_mut(t);
        for (g, to) in to.iter_mut().enumerate() {
            ahead.fetch(lines);
            let d = before[t - 1].as_chunks().0[g];
            let (o, p) = update_and_decay_group(s, &tokens[t - 1], &tokens[t], d, to, state);
            out[t - 1].as_chunks_mut().0[g] = o;
            after[0].as_chunks_mut().0[g] = deltas(s, &tokens[t], &v[t].as_chunks().0[g], p);
        }
    }
    let last = tokens.len() - 1;
    for (g, to) in to.iter_mut().enumerate() {
        ahead.fetch(lines);
        out[last].as_chunks_mut().0[g] = update_group(s, &tokens[last], delta[last].as_chunks().0[g], to, state);
    }
}
