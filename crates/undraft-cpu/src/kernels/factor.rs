//! Decay of a row: one factor for all channels, or one for each.

use fearless_simd::prelude::*;
use fearless_simd::{Simd, f32x8, f32x16};

use super::state_rows::{Row, vectors};
use crate::simd::{self, LANES};

/// The decay of one token and value head.
pub(super) trait Factor<const CH: usize>: Copy {
    /// Channels `16 c .. 16 c + 16`; `part` is 0.
    fn vector<S: Simd>(self, s: S, c: usize, part: usize) -> f32x16<S>;
    /// Half `part` of the same.
    fn half<S: Simd>(self, s: S, c: usize, part: usize) -> f32x8<S>;
    /// The same without SIMD.
    fn lanes(self, c: usize) -> [f32; LANES];
}

/// Chooses between the two at compile time.
pub(super) trait DecayKind {
    /// The decay of one token and value head.
    type Of<'a, const CH: usize>: Factor<CH>;
    /// What starts at `at`.
    fn of<const CH: usize>(decay: &[f32], at: usize) -> Self::Of<'_, CH>;
}

/// Gated DeltaNet.
pub(super) struct PerHead;
/// Kimi Delta Attention.
pub(super) struct PerChannel;

impl DecayKind for PerHead {
    type Of<'a, const CH: usize> = f32;
    #[inline(always)]
    fn of<const CH: usize>(decay: &[f32], at: usize) -> f32 {
        decay[at]
    }
}

impl DecayKind for PerChannel {
    type Of<'a, const CH: usize> = &'a Row<CH>;
    #[inline(always)]
    fn of<const CH: usize>(decay: &[f32], at: usize) -> &Row<CH> {
        vectors(&decay[at..])
    }
}

impl<const CH: usize> Factor<CH> for f32 {
    #[inline(always)]
    fn vector<S: Simd>(self, s: S, _: usize, _: usize) -> f32x16<S> {
        simd::splat(s, self)
    }
    #[inline(always)]
    fn half<S: Simd>(self, s: S, _: usize, _: usize) -> f32x8<S> {
        f32x8::splat(s, self)
    }
    #[inline(always)]
    fn lanes(self, _: usize) -> [f32; LANES] {
        [self; LANES]
    }
}

impl<const CH: usize> Factor<CH> for &Row<CH> {
    #[inline(always)]
    fn vector<S: Simd>(self, s: S, c: usize, _: usize) -> f32x16<S> {
        simd::load(s, &self[c])
    }
    #[inline(always)]
    fn half<S: Simd>(self, s: S, c: usize, part: usize) -> f32x8<S> {
        f32x8::load_array_ref(s, &self[c].as_chunks::<8>().0[part])
    }
    #[inline(always)]
    fn lanes(self, c: usize) -> [f32; LANES] {
        self[c]
    }
}
