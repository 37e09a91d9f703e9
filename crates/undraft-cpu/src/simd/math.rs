//! Elementary functions on lanes, the same bits on every instruction set.

use fearless_simd::prelude::*;
use fearless_simd::{Simd, f32x16, u32x16};

use super::lanes::fma;

/// `exp(x)`, within 2 ULP for `x` in -87.3..=88.7; clamped to the value at the ends outside.
///
/// Reduction `x = n ln 2 + r` with ln 2 in two parts, then the degree-6 polynomial of Cephes' `expf`
/// (S. L. Moshier, Methods and Programs for Mathematical Functions).
#[inline(always)]
pub fn exp<S: Simd>(simd: S, x: f32x16<S>) -> f32x16<S> {
    let splat = |c: f32| f32x16::splat(simd, c);
    let x = x.max(splat(-87.33654)).min(splat(88.37626));
    // Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the mantissa.
    let magic = splat(12_582_912.0);
    let shifted = fma(x, splat(std::f32::consts::LOG2_E), magic);
    let n = shifted - magic;
    let r = fma(n, splat(-0.693_359_4), x);
    let r = fma(n, splat(2.121_944_4e-4), r);
    let mut p = splat(1.987_569_1e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = fma(p, r, splat(c));
    }
    let p = fma(p, r * r, r) + splat(1.0);
    let exponent: u32x16<S> = (shifted.bitcast::<u32x16<S>>() + 127) << 23;
    p * exponent.bitcast::<f32x16<S>>()
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub fn sigmoid<S: Simd>(simd: S, x: f32x16<S>) -> f32x16<S> {
    let one = f32x16::splat(simd, 1.0);
    one / (one + exp(simd, -x))
}

/// `x * sigmoid(x)`.
#[inline(always)]
pub fn silu<S: Simd>(simd: S, x: f32x16<S>) -> f32x16<S> {
    x * sigmoid(simd, x)
}

/// `ln(1 + exp(x))` as `max(x, 0) + ln(1 + exp(-|x|))`, which never overflows.
///
/// `ln(1 + y) = 2 artanh(s)` with `s = y / (2 + y) <= 1/3`, by its power series up to `s^15`.
#[inline(always)]
pub fn softplus<S: Simd>(simd: S, x: f32x16<S>) -> f32x16<S> {
    let splat = |c: f32| f32x16::splat(simd, c);
    let y = exp(simd, -x.abs());
    let s = y / (y + splat(2.0));
    let square = s * s;
    let mut p = splat(1.0 / 15.0);
    for c in [1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0] {
        p = fma(p, square, splat(c));
    }
    fma(p, s + s, x.max(splat(0.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, Token, load, round_bf16_half, round_f16_half, store};

    fn apply(token: Token, x: &[f32; 16], f: &str) -> [f32; 16] {
        let mut out = [0.0; 16];
        crate::with_simd!(token, s => {
            let x = load(s, x);
            let y = match f {
                "exp" => exp(s, x),
                "sigmoid" => sigmoid(s, x),
                "softplus" => softplus(s, x),
                "bf16" => crate::simd::round_bf16(x),
                "f16" => crate::simd::round_f16(x),
                "bf16 in halves" | "f16 in halves" => {
                    let (low, high) = x.split();
                    match f {
                        "f16 in halves" => round_f16_half(low).combine(round_f16_half(high)),
                        _ => round_bf16_half(low).combine(round_bf16_half(high)),
                    }
                }
                _ => silu(s, x),
            };
            store(y, &mut out);
        });
        out
    }

    fn inputs() -> impl Iterator<Item = [f32; 16]> {
        (0..4000).map(|i| std::array::from_fn(|j| -87.3 + (i * 16 + j) as f32 * (174.6 / 64000.0)))
    }

    #[test]
    fn exp_is_within_two_ulp_of_f64() {
        let token = Token::new(Isa::best()).unwrap();
        for x in inputs() {
            for (x, y) in x.iter().zip(apply(token, &x, "exp")) {
                let want = f64::from(*x).exp();
                let ulp = f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32);
                assert!((f64::from(y) - want).abs() <= 2.0 * ulp, "exp({x}) = {y}, expected {want}");
            }
        }
    }

    #[test]
    fn softplus_is_within_1e_6_relative() {
        let token = Token::new(Isa::best()).unwrap();
        for x in inputs() {
            for (x, y) in x.iter().zip(apply(token, &x, "softplus")) {
                let x = f64::from(*x);
                let want = x.max(0.0) + (-x.abs()).exp().ln_1p();
                assert!((f64::from(y) - want).abs() <= 1e-6 * want + 1e-37, "softplus({x}) = {y}, expected {want}");
            }
        }
    }

    #[test]
    fn sixteen_bit_rounding_is_that_of_the_dtypes() {
        use undraft_core::DType;
        // Every exponent and sign, and mantissas around each tie and each step of both dtypes.
        let mantissas = [0u32, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000, 0x7fff, 0x8000, 0x8001, 0x1_8000];
        let high = [0u32, 0x40_0000, 0x7f_0000, 0x7f_e000];
        let mut all: Vec<f32> = Vec::new();
        for e in 0..512u32 {
            for h in high {
                all.extend(mantissas.iter().map(|m| f32::from_bits((e << 23) | ((h + m) & 0x7f_ffff))));
            }
        }
        for isa in Isa::ALL {
            let Ok(token) = Token::new(isa) else { continue };
            for x in all.as_chunks::<16>().0 {
                for (name, dtype) in [
                    ("bf16", DType::Bf16),
                    ("f16", DType::F16),
                    ("bf16 in halves", DType::Bf16),
                    ("f16 in halves", DType::F16),
                ] {
                    for (x, y) in x.iter().zip(apply(token, x, name)) {
                        let want = dtype.round(*x);
                        let same = y.to_bits() == want.to_bits() || y.is_nan() && want.is_nan();
                        assert!(same, "{isa} {name}({x:e} = {:#x}) = {y:e}, expected {want:e}", x.to_bits());
                    }
                }
            }
        }
    }

    #[test]
    fn sigmoid_and_silu_are_within_1e_6_relative_and_saturate() {
        let token = Token::new(Isa::best()).unwrap();
        for x in inputs() {
            for (f, reference) in [("sigmoid", 0), ("silu", 1)] {
                for (x, y) in x.iter().zip(apply(token, &x, f)) {
                    let s = 1.0 / (1.0 + (-f64::from(*x)).exp());
                    let want = if reference == 0 { s } else { f64::from(*x) * s };
                    assert!(
                        (f64::from(y) - want).abs() <= 1e-6 * want.abs() + 1e-37,
                        "{f}({x}) = {y}, expected {want}"
                    );
                }
            }
        }
        let far =
            apply(token, &[-1e30, 1e30, -200.0, 200.0, 0.0, f32::NAN, 1., 1., 1., 1., 1., 1., 1., 1., 1., 1.], "silu");
        assert!(far[0].abs() < 1e-7 && far[1] == 1e30 && far[2].abs() < 1e-35 && far[3] == 200.0 && far[4] == 0.0);
        assert!(far[5].is_nan());
    }

    #[test]
    fn every_isa_gives_the_same_bits() {
        let want: Vec<_> =
            inputs().map(|x| apply(Token::new(Isa::Scalar).unwrap(), &x, "silu").map(f32::to_bits)).collect();
        for isa in Isa::ALL {
            let Ok(token) = Token::new(isa) else {
                println!("skipped: {isa} is not available on this machine");
                continue;
            };
            for (x, want) in inputs().zip(&want) {
                assert_eq!(apply(token, &x, "silu").map(f32::to_bits), *want, "{isa}");
            }
        }
    }

    #[test]
    fn sixteen_bit_loads_are_exact_for_every_value() {
        use crate::simd::{load_bf16, load_f16};
        use half::{bf16, f16};
        for isa in Isa::ALL {
            let Ok(token) = Token::new(isa) else { continue };
            for base in (0..=u16::MAX).step_by(16) {
                let bits: [u16; 16] = std::array::from_fn(|i| base + i as u16);
                let (b, h) = (bits.map(bf16::from_bits), bits.map(f16::from_bits));
                let (mut from_b, mut from_h) = ([0.0; 16], [0.0; 16]);
                crate::with_simd!(token, s => {
                    store(load_bf16(s, &b), &mut from_b);
                    store(load_f16(s, &h), &mut from_h);
                });
                for i in 0..16 {
                    let same = |x: f32, y: f32| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan();
                    assert!(same(from_b[i], b[i].to_f32()) && same(from_h[i], h[i].to_f32()), "{isa} {:#x}", bits[i]);
                }
            }
        }
    }
}
