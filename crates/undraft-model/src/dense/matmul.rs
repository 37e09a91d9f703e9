//! Matrix products whose result for a token does not depend on the tokens beside it.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use undraft::cpu::simd::{LANES, Simd, Token, prelude::*};
use undraft::cpu::{SharedMut, with_vectors};

use super::Compute;
use super::block::{BLOCK, Bf16Block, Block, F16Block, F32Block, pack_rows};
use super::tile::{self, Vector};
use crate::weights::{WeightData, WeightDtype};

/// Weights (elements) that a task goes through for all tokens before it takes the next ones: 32 KB of bf16, which stay
/// in the first cache while tokens pass.
const TASK_WEIGHTS: usize = 1 << 14;

/// Fewest rows of a task: enough for whole tiles of any shape.
const MIN_TASK_ROWS: usize = 8;

/// `y = W x`, `W` as stored.
///
/// `y[t][o]` is a function of `x[t]` and `W[o]` alone, in one order of operations: see the module's head. Weights are
/// read and widened once for up to eight tokens.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Packed,
    out_features: usize,
    in_features: usize,
}

/// Rows of `in_features.div_ceil(32)` blocks.
#[derive(Clone, Debug)]
enum Packed {
    F32(Vec<F32Block>),
    Bf16(Vec<Bf16Block>),
    F16(Vec<F16Block>),
}

impl Linear {
    /// Lays out `weight`, `[out_features, in_features]`.
    ///
    /// # Panics
    /// If it does not have that many elements.
    pub fn new(weight: &WeightData, out_features: usize, in_features: usize) -> Self {
        assert_eq!(weight.len(), out_features * in_features, "`weight` is not [{out_features}, {in_features}]");
        let weight = match weight {
            WeightData::F32(elements) => Packed::F32(pack_rows(elements, in_features)),
            WeightData::Bf16(elements) => Packed::Bf16(pack_rows(elements, in_features)),
            WeightData::F16(elements) => Packed::F16(pack_rows(elements, in_features)),
        };
        Self { weight, out_features, in_features }
    }

    /// Rows of the weight.
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Columns of the weight.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Element type of the weight.
    pub fn dtype(&self) -> WeightDtype {
        match self.weight {
            Packed::F32(_) => WeightDtype::F32,
            Packed::Bf16(_) => WeightDtype::Bf16,
            Packed::F16(_) => WeightDtype::F16,
        }
    }

    /// Bytes of the weight as it lies in memory.
    pub fn memory(&self) -> usize {
        match &self.weight {
            Packed::F32(blocks) => size_of_val(&blocks[..]),
            Packed::Bf16(blocks) => size_of_val(&blocks[..]),
            Packed::F16(blocks) => size_of_val(&blocks[..]),
        }
    }

    /// Writes row `row`, widened, to `to` `[in_features]`.
    ///
    /// # Panics
    /// If there is no such row, or `to` has another length.
    pub fn row(&self, row: usize, to: &mut [f32]) {
        fn widen<B: Block>(blocks: &[B], to: &mut [f32], elements: impl Fn(&B, &mut [f32; BLOCK])) {
            for (block, to) in blocks.iter().zip(to.chunks_mut(BLOCK)) {
                let mut whole = [0.0; BLOCK];
                elements(block, &mut whole);
                to.copy_from_slice(&whole[..to.len()]);
            }
        }
        assert_eq!(to.len(), self.in_features, "`to` is not [in_features]");
        let blocks = self.in_features.div_ceil(BLOCK);
        let blocks = row * blocks..(row + 1) * blocks;
        match &self.weight {
            Packed::F32(rows) => widen(&rows[blocks], to, |b, to| to.copy_from_slice(b.0.as_flattened())),
            Packed::Bf16(rows) => widen(&rows[blocks], to, |b, to| b.elements().convert_to_f32_slice(to)),
            Packed::F16(rows) => widen(&rows[blocks], to, |b, to| b.elements().convert_to_f32_slice(to)),
        }
    }

    /// `y[t] = W x[t]` for every row of `x` `[n, in_features]`; `y` is `[n, out_features]`.
    ///
    /// # Panics
    /// If the buffers are not rows of these sizes.
    pub fn forward(&self, compute: &Compute, x: &[f32], y: &mut [f32]) {
        forward_joint(compute, x, [(self, y)]);
    }
}

/// Several products of the same `x` `[n, in_features]` in one go, so that threads meet once; each `y` is
/// `[n, out_features]`.
///
/// # Panics
/// If the buffers are not rows of these sizes, or the weights differ in `in_features`.
pub fn forward_joint<const N: usize>(compute: &Compute, x: &[f32], products: [(&Linear, &mut [f32]); N]) {
    let Some((first, _)) = products.first() else { return };
    let in_features = first.in_features;
    assert!(x.len().is_multiple_of(in_features), "`x` has {} elements, expected rows of {in_features}", x.len());
    let num_tokens = x.len() / in_features;
    let task_rows = (TASK_WEIGHTS / in_features).next_multiple_of(MIN_TASK_ROWS).max(MIN_TASK_ROWS);
    let (mut num_tasks, mut work) = (0, 0);
    let parts = products.map(|(linear, y)| {
        assert_eq!(linear.in_features, in_features, "weights of a joint product differ in `in_features`");
        assert_eq!(y.len(), num_tokens * linear.out_features, "`y` is not [{num_tokens}, {}]", linear.out_features);
        let first_task = num_tasks;
        num_tasks += linear.out_features.div_ceil(task_rows);
        work += linear.out_features * x.len() / LANES;
        (first_task, linear, SharedMut::new(y))
    });
    if num_tokens == 0 {
        return;
    }
    compute.run(num_tasks, work, &|task| {
        let Some((first_task, linear, y)) = parts.iter().rev().find(|(first_task, ..)| *first_task <= task) else {
            return;
        };
        let start = (task - first_task) * task_rows;
        let rows = start..(start + task_rows).min(linear.out_features);
        let out = Out { y, out_features: linear.out_features };
        match compute.token() {
            Token::Scalar(s) => match &linear.weight {
                Packed::F32(weight) => scalar_panel(s, weight, rows, in_features, x, &out),
                Packed::Bf16(weight) => scalar_panel(s, weight, rows, in_features, x, &out),
                Packed::F16(weight) => scalar_panel(s, weight, rows, in_features, x, &out),
            },
            token => with_vectors!(token, scalar => {}, s => match &linear.weight {
                Packed::F32(weight) => panel(s, weight, rows, in_features, x, &out),
                Packed::Bf16(weight) => panel(s, weight, rows, in_features, x, &out),
                Packed::F16(weight) => panel(s, weight, rows, in_features, x, &out),
            }),
        }
    });
}

/// Where a product goes: `[n, out_features]`, of which a task writes some columns.
struct Out<'a, 'y> {
    y: &'a SharedMut<'y, f32>,
    out_features: usize,
}

/// Some rows of the weight times all tokens. Tiles are chosen by the registers there are; they change no sum.
fn panel<S: Simd, B: Block>(s: S, weight: &[B], rows: Range<usize>, in_features: usize, x: &[f32], out: &Out<'_, '_>) {
    let wide = <S::f32s as SimdBase<S>>::LEN >= LANES;
    let mut token = 0;
    while token < x.len() / in_features {
        let x = &x[token * in_features..];
        let left = x.len() / in_features;
        let call = Strip { weight, rows: rows.clone(), in_features, x, token, out };
        token += match (wide, left) {
            (_, 1) => call.run::<S, 4, 1>(s),
            (true, 2) => call.run::<S, 4, 2>(s),
            (true, 3) => call.run::<S, 4, 3>(s),
            (true, 4) => call.run::<S, 4, 4>(s),
            (true, 5) => call.run::<S, 4, 5>(s),
            (true, 6) => call.run::<S, 2, 6>(s),
            (true, 7) => call.run::<S, 2, 7>(s),
            (true, _) => call.run::<S, 2, 8>(s),
            (false, _) => call.run::<S, 2, 2>(s),
        };
    }
}

/// [`panel`] for the scalar instruction set, where there are no registers to fill: one row, one token at a time.
fn scalar_panel<S: Simd, B: Block>(
    s: S,
    weight: &[B],
    rows: Range<usize>,
    in_features: usize,
    x: &[f32],
    out: &Out<'_, '_>,
) {
    for (token, x) in x.chunks_exact(in_features).enumerate() {
        Strip { weight, rows: rows.clone(), in_features, x, token, out }.run::<S, 1, 1>(s);
    }
}

/// Some rows of the weight times the next few tokens.
struct Strip<'a, 'y, B> {
    weight: &'a [B],
    rows: Range<usize>,
    in_features: usize,
    /// From the first of the tokens on.
    x: &'a [f32],
    /// Its number.
    token: usize,
    out: &'a Out<'a, 'y>,
}

impl<B: Block> Strip<'_, '_, B> {
    /// `T` tokens, `R` rows at a time; gives `T`.
    fn run<S: Simd, const R: usize, const T: usize>(&self, s: S) -> usize {
        s.vectorize(
            #[inline(always)]
            || {
                let mut vectors = [Vector::EMPTY; T];
                for (t, vector) in vectors.iter_mut().enumerate() {
                    *vector = Vector::new(&self.x[t * self.in_features..(t + 1) * self.in_features]);
                }
                let mut row = self.rows.start;
                while row + R <= self.rows.end {
                    self.tile::<S, R, T>(s, row, vectors);
                    row += R;
                }
                while row < self.rows.end {
                    self.tile::<S, 1, T>(s, row, vectors);
                    row += 1;
                }
            },
        );
        T
    }

    #[inline(always)]
    fn tile<S: Simd, const R: usize, const T: usize>(&self, s: S, row: usize, vectors: [Vector<'_>; T]) {
        let blocks = self.in_features.div_ceil(BLOCK);
        let mut rows = [&self.weight[..0]; R];
        for (r, slice) in rows.iter_mut().enumerate() {
            *slice = &self.weight[(row + r) * blocks..(row + r + 1) * blocks];
        }
        let sums = tile::sums(tile::tile(s, rows, vectors));
        for (t, sums) in sums.iter().enumerate() {
            let start = (self.token + t) * self.out.out_features + row;
            // SAFETY: tasks have disjoint ranges of rows, and no element of `y` belongs to two rows of the weight.
            unsafe { self.out.y.part(start..start + R) }.copy_from_slice(sums);
        }
    }
}

#[cfg(test)]
mod tests;
