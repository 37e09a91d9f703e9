//! Sixteen f32 lanes on every instruction set, so that sums have one order everywhere.

use fearless_simd::prelude::*;
use fearless_simd::{Level, Simd, f32x4, f32x8, f32x16, f64x2, u16x16, u32x8, u32x16};
use half::{bf16, f16};

/// Lanes of the one vector type that the kernels use.
pub const LANES: usize = 16;

/// All lanes zero.
#[inline(always)]
pub fn zero<S: Simd>(simd: S) -> f32x16<S> {
    f32x16::splat(simd, 0.0)
}

/// All lanes `x`.
#[inline(always)]
pub fn splat<S: Simd>(simd: S, x: f32) -> f32x16<S> {
    f32x16::splat(simd, x)
}

/// Loads 16 values.
#[inline(always)]
pub fn load<S: Simd>(simd: S, from: &[f32; LANES]) -> f32x16<S> {
    f32x16::load_array_ref(simd, from)
}

/// Stores 16 values.
#[inline(always)]
pub fn store<S: Simd>(from: f32x16<S>, to: &mut [f32; LANES]) {
    from.store_array(to);
}

/// `a * b + c` with one rounding, on every instruction set.
#[inline(always)]
pub fn fma<S: Simd>(a: f32x16<S>, b: f32x16<S>, c: f32x16<S>) -> f32x16<S> {
    if a.token().level().is_fallback() {
        let mut out = [0.0; LANES];
        software_fma(&a, &b, &c, &mut out);
        return f32x16::load_array(a.token(), out);
    }
    a.mul_add_precise(b, c)
}

/// `a * b + c` with one rounding, lane by lane, without the instruction.
///
/// Out of line: the exact software form is some hundred instructions, and kernels unroll their loops.
#[inline(never)]
pub fn software_fma(a: &[f32; LANES], b: &[f32; LANES], c: &[f32; LANES], out: &mut [f32; LANES]) {
    let Level::Fallback(simd) = Level::fallback() else { unreachable!("made for the fallback level alone") };
    for i in (0..LANES).step_by(4) {
        let part = |x: &[f32; LANES]| f32x4::load_array(simd, std::array::from_fn(|j| x[i + j]));
        part(a).mul_add_precise(part(b), part(c)).store_slice(&mut out[i..i + 4]);
    }
}

/// Sum of the lanes: lane i with i + 8, then with i + 4, then with i + 2, then the last two.
#[inline(always)]
pub fn sum<S: Simd>(v: f32x16<S>) -> f32 {
    let v = fold(v);
    (v[0] + v[2]) + (v[1] + v[3])
}

/// The first two steps of [`sum`]: lane i with i + 8, then with i + 4.
#[inline(always)]
pub fn fold<S: Simd>(v: f32x16<S>) -> f32x4<S> {
    let (low, high) = v.split();
    let (low, high) = (low + high).split();
    low + high
}

/// The last two steps of [`sum`] for four vectors at once.
#[inline(always)]
pub fn sum_each<S: Simd>([a, b, c, d]: [f32x4<S>; 4]) -> f32x4<S> {
    // [a0 + a2, b0 + b2, a1 + a3, b1 + b3]
    let ab: f64x2<S> = (a.zip_low(b) + a.zip_high(b)).bitcast();
    let cd: f64x2<S> = (c.zip_low(d) + c.zip_high(d)).bitcast();
    ab.zip_low(cd).bitcast::<f32x4<S>>() + ab.zip_high(cd).bitcast::<f32x4<S>>()
}

/// Loads 16 bf16 values, exactly.
#[inline(always)]
pub fn load_bf16<S: Simd>(simd: S, from: &[bf16; LANES]) -> f32x16<S> {
    let (low, high) = load_bits(simd, from.map(bf16::to_bits)).widen();
    let bits: u32x16<S> = low.combine(high) << 16;
    bits.bitcast()
}

/// Loads 16 f16 values, exactly (subnormals, infinities and NaN too).
#[inline(always)]
pub fn load_f16<S: Simd>(simd: S, from: &[f16; LANES]) -> f32x16<S> {
    let (low, high) = load_bits(simd, from.map(f16::to_bits)).widen();
    let bits: u32x16<S> = low.combine(high);
    let sign = (bits & 0x8000) << 16;
    let magnitude = bits & 0x7fff;
    // Exponent and mantissa moved into place are off by the difference of the biases, 112; a product mends it exactly,
    // for subnormals as well.
    let scaled: f32x16<S> =
        (magnitude << 13).bitcast::<f32x16<S>>() * f32x16::splat(simd, f32::from_bits((112 + 127) << 23));
    let scaled: u32x16<S> = scaled.bitcast();
    // Infinity and NaN: all exponent bits stay set.
    let special: u32x16<S> = (magnitude << 13) | 0x7f80_0000;
    let magnitude = magnitude.simd_ge(0x7c00).select(special, scaled);
    (magnitude | sign).bitcast()
}

/// Rounding to 16-bit dtypes for vectors of one width.
macro_rules! rounding {
    ($(#[$lanes:meta])* $F:ident, $U:ident, $bf16:ident, $f16:ident) => {
        /// Rounds to the nearest bf16, ties to even: what [`undraft_core::DType::round`] gives.
        $(#[$lanes])*
        #[inline(always)]
        pub fn $bf16<S: Simd>(x: $F<S>) -> $F<S> {
            let bits: $U<S> = x.bitcast();
            let rounded: $F<S> = (bits + 0x7fff + ((bits >> 16) & 1)).bitcast();
            let nan: $F<S> = (bits | 0x0040_0000).bitcast();
            let bits: $U<S> = x.simd_eq(x).select(rounded, nan).bitcast();
            (bits & 0xffff_0000).bitcast()
        }

        /// Rounds to the nearest f16, ties to even, subnormals too; infinity from 65,520 on.
        $(#[$lanes])*
        #[inline(always)]
        pub fn $f16<S: Simd>(x: $F<S>) -> $F<S> {
            let splat = |c: f32| $F::splat(x.token(), c);
            let bits: $U<S> = x.bitcast();
            let (sign, magnitude) = (bits & 0x8000_0000, bits & 0x7fff_ffff);
            let normal: $F<S> = ((magnitude + 0xfff + ((magnitude >> 13) & 1)) & 0xffff_e000).bitcast();
            let normal = normal.simd_ge(splat(65_536.0)).select(splat(f32::INFINITY), normal);
            // Below 2^-14 the step is 2^-24, as it is for f32 in 0.5..1.
            let size: $F<S> = magnitude.bitcast();
            let small = (size + splat(0.5)) - splat(0.5);
            let rounded = size.simd_lt(splat(2f32.powi(-14))).select(small, normal);
            let nan: $F<S> = ((magnitude | 0x0040_0000) & 0xffff_e000).bitcast();
            let rounded: $U<S> = x.simd_eq(x).select(rounded, nan).bitcast();
            (rounded | sign).bitcast()
        }
    };
}

rounding!(f32x16, u32x16, round_bf16, round_f16);
rounding!(
    /// Half a vector.
    f32x8, u32x8, round_bf16_half, round_f16_half
);

#[inline(always)]
fn load_bits<S: Simd>(simd: S, bits: [u16; LANES]) -> u16x16<S> {
    u16x16::load_array(simd, bits)
}
