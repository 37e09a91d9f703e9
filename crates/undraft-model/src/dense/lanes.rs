//! Element by element over slices of any length, 16 lanes at a time; what is behind the last whole vector is padded.
//!
//! Closures given to these must be `#[inline(always)]`: out of line they are compiled without the instruction set.

use undraft::cpu::simd::{self, LANES, Simd, f32x16};

/// Up to 16 elements, zeros behind them.
#[inline(always)]
pub(super) fn load_part<S: Simd>(s: S, from: &[f32]) -> f32x16<S> {
    let mut padded = [0.0; LANES];
    padded[..from.len()].copy_from_slice(from);
    simd::load(s, &padded)
}

/// The first lanes, as many as `to` has.
#[inline(always)]
pub(super) fn store_part<S: Simd>(from: f32x16<S>, to: &mut [f32]) {
    let mut padded = [0.0; LANES];
    simd::store(from, &mut padded);
    to.copy_from_slice(&padded[..to.len()]);
}

/// `to[i] = f(to[i], with[i])`.
#[inline(always)]
pub(crate) fn zip<S: Simd>(s: S, to: &mut [f32], with: &[f32], f: impl Fn(f32x16<S>, f32x16<S>) -> f32x16<S>) {
    let (to, to_rest) = to.as_chunks_mut::<LANES>();
    let (with, with_rest) = with.as_chunks::<LANES>();
    for (to, with) in to.iter_mut().zip(with) {
        simd::store(f(simd::load(s, to), simd::load(s, with)), to);
    }
    if !to_rest.is_empty() {
        store_part(f(load_part(s, to_rest), load_part(s, with_rest)), to_rest);
    }
}

/// `out[i] = f(a[i], b[i])`.
#[inline(always)]
pub(super) fn zip_into<S: Simd>(
    s: S,
    a: &[f32],
    b: &[f32],
    out: &mut [f32],
    f: impl Fn(f32x16<S>, f32x16<S>) -> f32x16<S>,
) {
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    for ((a, b), out) in a.iter().zip(b).zip(out) {
        simd::store(f(simd::load(s, a), simd::load(s, b)), out);
    }
    if !out_rest.is_empty() {
        store_part(f(load_part(s, a_rest), load_part(s, b_rest)), out_rest);
    }
}
