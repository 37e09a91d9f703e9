//! The one dot product: a tile of rows times a tile of vectors, each sum in an order that neither tile size changes.
//!
//! A sum has one accumulator of 16 lanes, fed block by block (elements 0..16 of the block, then 16..32), and one
//! reduction tree. Arrays are filled by loops on purpose: closures given to `std::array` functions are compiled
//! without the instruction set and would break the registers' use.

use undraft::cpu::simd::{self, LANES, Simd, f32x16, prelude::*};

use super::block::{BLOCK, Block, F32Block};
use super::prefetch::{blocks_ahead, prefetch};

/// A vector to multiply rows with, seen as blocks.
#[derive(Clone, Copy)]
pub(super) struct Vector<'a> {
    whole: &'a [[[f32; LANES]; 2]],
    /// What is left behind the whole blocks, zeros behind it.
    tail: F32Block,
}

impl<'a> Vector<'a> {
    pub(super) const EMPTY: Self = Self { whole: &[], tail: F32Block::ZERO };

    pub(super) fn new(elements: &'a [f32]) -> Self {
        let (whole, rest) = elements.as_chunks::<BLOCK>();
        let whole = whole.as_flattened().as_chunks::<LANES>().0.as_chunks::<2>().0;
        Self { whole, tail: F32Block::pack(rest) }
    }
}

/// Accumulators of `R` rows times `T` vectors. Rows have as many blocks as the vectors, the tail counted, and are taken
/// to lie one behind the other in memory, which decides what is fetched ahead and nothing else.
#[inline(always)]
pub(super) fn tile<S: Simd, B: Block, const R: usize, const T: usize>(
    s: S,
    rows: [&[B]; R],
    vectors: [Vector<'_>; T],
) -> [[f32x16<S>; R]; T] {
    let num_whole = vectors[0].whole.len();
    let num_blocks = rows[0].len();
    let mut rows = rows;
    for row in &mut rows {
        *row = &row[..num_blocks];
    }
    let mut whole = [vectors[0].whole; T];
    for t in 0..T {
        whole[t] = &vectors[t].whole[..num_whole];
    }
    let ahead = blocks_ahead::<B>(R, num_blocks);
    let mut acc = [[simd::zero(s); R]; T];
    for i in 0..num_whole.min(num_blocks) {
        let mut x = [[simd::zero(s); 2]; T];
        for t in 0..T {
            x[t] = [simd::load(s, &whole[t][i][0]), simd::load(s, &whole[t][i][1])];
        }
        for r in 0..R {
            prefetch(&rows[r][i], ahead);
            step(rows[r][i].load(s), &x, r, &mut acc);
        }
    }
    if num_blocks > num_whole {
        let mut x = [[simd::zero(s); 2]; T];
        for t in 0..T {
            x[t] = vectors[t].tail.load(s);
        }
        for r in 0..R {
            step(rows[r][num_whole].load(s), &x, r, &mut acc);
        }
    }
    acc
}

#[inline(always)]
fn step<S: Simd, const R: usize, const T: usize>(
    weight: [f32x16<S>; 2],
    x: &[[f32x16<S>; 2]; T],
    r: usize,
    acc: &mut [[f32x16<S>; R]; T],
) {
    for half in 0..2 {
        for t in 0..T {
            acc[t][r] = simd::fma(weight[half], x[t][half], acc[t][r]);
        }
    }
}

/// The sums of a tile's accumulators: [`simd::sum`] of each, four at a time where there are four.
#[inline(always)]
pub(super) fn sums<S: Simd, const R: usize, const T: usize>(acc: [[f32x16<S>; R]; T]) -> [[f32; R]; T] {
    let mut out = [[0.0; R]; T];
    let (acc, flat) = (acc.as_flattened(), out.as_flattened_mut());
    let mut i = 0;
    while i + 4 <= R * T {
        let folded = [simd::fold(acc[i]), simd::fold(acc[i + 1]), simd::fold(acc[i + 2]), simd::fold(acc[i + 3])];
        simd::sum_each(folded).store_slice(&mut flat[i..i + 4]);
        i += 4;
    }
    while i < R * T {
        flat[i] = simd::sum(acc[i]);
        i += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use undraft::cpu::simd::Token;
    use undraft::cpu::{Isa, with_simd};

    #[test]
    fn four_sums_at_once_are_the_same_bits_as_one_by_one() {
        for isa in Isa::ALL {
            let Ok(token) = Token::new(isa) else { continue };
            let x: [[f32; LANES]; 4] =
                std::array::from_fn(|i| std::array::from_fn(|j| ((i * 37 + j * 101) % 97) as f32 * 0.31 - 11.0));
            let (mut four, mut one) = ([0.0; 4], [0.0; 4]);
            with_simd!(token, s => {
                let v = [simd::load(s, &x[0]), simd::load(s, &x[1]), simd::load(s, &x[2]), simd::load(s, &x[3])];
                [four] = sums([v]);
                for i in 0..4 {
                    one[i] = simd::sum(v[i]);
                }
            });
            assert_eq!(four.map(f32::to_bits), one.map(f32::to_bits), "{isa}");
        }
    }
}
