//! Blocks of 32 weights, laid out so that widening them takes one instruction a vector.

use half::{bf16, f16};
use undraft::cpu::simd::{self, LANES, Simd, f32x16, prelude::*, u32x16};

/// Elements of a block.
pub(super) const BLOCK: usize = 2 * LANES;

/// 32 consecutive weights of a row.
pub(super) trait Block: Copy + Send + Sync + 'static {
    /// The stored element.
    type Element: Copy;
    /// A block of these elements, zeros behind them if there are fewer.
    fn pack(elements: &[Self::Element]) -> Self;
    /// Elements 0..16 and 16..32, widened exactly.
    fn load<S: Simd>(&self, s: S) -> [f32x16<S>; 2];
}

/// f32 weights in their order.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct F32Block(pub(super) [[f32; LANES]; 2]);

/// bf16 weights: the low half of word i is element i, the high half element 16 + i.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Bf16Block([u32; LANES]);

/// f16 weights in their order.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct F16Block([[f16; LANES]; 2]);

impl F32Block {
    pub(super) const ZERO: Self = Self([[0.0; LANES]; 2]);
}

impl Block for F32Block {
    type Element = f32;

    fn pack(elements: &[f32]) -> Self {
        let mut block = Self::ZERO;
        block.0.as_flattened_mut()[..elements.len()].copy_from_slice(elements);
        block
    }

    #[inline(always)]
    fn load<S: Simd>(&self, s: S) -> [f32x16<S>; 2] {
        [simd::load(s, &self.0[0]), simd::load(s, &self.0[1])]
    }
}

impl Block for Bf16Block {
    type Element = bf16;

    fn pack(elements: &[bf16]) -> Self {
        let bits = |i: usize| elements.get(i).map_or(0, |x| u32::from(x.to_bits()));
        Self(std::array::from_fn(|i| bits(i) | bits(LANES + i) << 16))
    }

    #[inline(always)]
    fn load<S: Simd>(&self, s: S) -> [f32x16<S>; 2] {
        let words = u32x16::load_array_ref(s, &self.0);
        [(words << 16).bitcast(), (words & 0xffff_0000).bitcast()]
    }
}

impl Block for F16Block {
    type Element = f16;

    fn pack(elements: &[f16]) -> Self {
        let mut block = [f16::ZERO; BLOCK];
        block[..elements.len()].copy_from_slice(elements);
        Self([std::array::from_fn(|i| block[i]), std::array::from_fn(|i| block[LANES + i])])
    }

    #[inline(always)]
    fn load<S: Simd>(&self, s: S) -> [f32x16<S>; 2] {
        [simd::load_f16(s, &self.0[0]), simd::load_f16(s, &self.0[1])]
    }
}

impl Bf16Block {
    /// The elements in their order.
    pub(super) fn elements(&self) -> [bf16; BLOCK] {
        std::array::from_fn(|i| bf16::from_bits((self.0[i % LANES] >> (16 * (i / LANES))) as u16))
    }
}

impl F16Block {
    /// The elements in their order.
    pub(super) fn elements(&self) -> [f16; BLOCK] {
        std::array::from_fn(|i| self.0[i / LANES][i % LANES])
    }
}

/// Rows of `row_len` elements as blocks, every row beginning a new one.
pub(super) fn pack_rows<B: Block>(elements: &[B::Element], row_len: usize) -> Vec<B> {
    let mut blocks = Vec::with_capacity(elements.len() / row_len.max(1) * row_len.div_ceil(BLOCK));
    for row in elements.chunks(row_len.max(1)) {
        blocks.extend(row.chunks(BLOCK).map(B::pack));
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use undraft::cpu::simd::Token;
    use undraft::cpu::{Isa, with_simd};

    fn loaded<B: Block>(token: Token, block: B) -> Vec<f32> {
        let mut out = [[0.0; LANES]; 2];
        with_simd!(token, s => {
            let [low, high] = block.load(s);
            simd::store(low, &mut out[0]);
            simd::store(high, &mut out[1]);
        });
        out.as_flattened().to_vec()
    }

    #[test]
    fn loading_gives_the_packed_elements_in_order_and_zeros_behind() {
        for isa in Isa::ALL {
            let Ok(token) = Token::new(isa) else { continue };
            for len in [1, 15, 16, 17, 31, 32] {
                let values: Vec<f32> = (0..len).map(|i| (i as f32 - 7.0) * 0.375).collect();
                let mut want = values.clone();
                want.resize(BLOCK, 0.0);
                assert_eq!(loaded(token, F32Block::pack(&values)), want, "{isa}");
                let half: Vec<bf16> = values.iter().map(|&x| bf16::from_f32(x)).collect();
                assert_eq!(loaded(token, Bf16Block::pack(&half)), want, "{isa}");
                let half: Vec<f16> = values.iter().map(|&x| f16::from_f32(x)).collect();
                assert_eq!(loaded(token, F16Block::pack(&half)), want, "{isa}");
            }
        }
    }

    #[test]
    fn every_row_begins_a_block() {
        let blocks: Vec<F32Block> = pack_rows(&[1.0; 3 * 40], 40);
        assert_eq!(blocks.len(), 6);
        assert_eq!(blocks[1].0.as_flattened()[..8], [1.0; 8]);
        assert_eq!(blocks[1].0.as_flattened()[8..], [0.0; 24]);
    }
}
