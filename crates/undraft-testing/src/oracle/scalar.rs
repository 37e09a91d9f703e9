//! Functions of one number.

use undraft_core::DType;

/// `1 / (1 + e^-x)`, written so that no exponential overflows.
pub fn sigmoid(x: f64) -> f64 {
    if x < 0.0 {
        let e = x.exp();
        e / (1.0 + e)
    } else {
        1.0 / (1.0 + (-x).exp())
    }
}

/// `x * sigmoid(x)`.
pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// `ln(1 + e^x)`.
pub fn softplus(x: f64) -> f64 {
    if x > 100.0 { x } else { x.exp().ln_1p() }
}

/// Nearest value of the dtype, ties to even.
pub fn round_to(dtype: DType, x: f64) -> f64 {
    // Bits after the leading one, exponent of the smallest normal number, largest finite number.
    let (fraction, min_exponent, max) = match dtype {
        DType::F32 => (23, -126, f64::from(f32::MAX)),
        DType::Bf16 => (7, -126, 255.0 * 2f64.powi(120)),
        DType::F16 => (10, -14, 65504.0),
    };
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let unit = 2f64.powi(exponent.max(min_exponent) - fraction);
    let rounded = (x / unit).round_ties_even() * unit;
    if rounded.abs() > max { f64::INFINITY.copysign(x) } else { rounded }
}

/// What a state of the dtype keeps of `x`. An f32 state stands for the exact one: its rounding is part of the error that is
/// measured.
pub fn round_state(dtype: DType, x: f64) -> f64 {
    if dtype == DType::F32 { x } else { round_to(dtype, x) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_that_of_the_half_crate() {
        let mut rng = crate::Rng::new(1);
        for i in 0..200_000 {
            let magnitude = 2f64.powi(rng.below(60) as i32 - 40);
            let x = (rng.normal() * magnitude) as f32;
            // Every fourth number lies on or beside a tie.
            let x = if i % 4 == 0 { f32::from_bits(x.to_bits() & 0xffff_8000 | (rng.below(3) as u32)) } else { x };
            for dtype in [DType::F32, DType::Bf16, DType::F16] {
                let expected = f64::from(dtype.round(x));
                assert_eq!(round_to(dtype, f64::from(x)), expected, "{x:e} to {}", dtype.name());
            }
        }
    }

    #[test]
    fn worked_values() {
        assert_eq!(sigmoid(0.0), 0.5);
        assert!((sigmoid(3f64.ln()) - 0.75).abs() < 1e-15);
        assert!((sigmoid(-3f64.ln()) - 0.25).abs() < 1e-15);
        assert_eq!(sigmoid(-1e4), 0.0);
        assert!((softplus(0.0) - 2f64.ln()).abs() < 1e-15);
        assert!((softplus(-40.0) / (-40f64).exp() - 1.0).abs() < 1e-14);
        assert_eq!(softplus(500.0), 500.0);
        assert!((silu(3f64.ln()) - 0.75 * 3f64.ln()).abs() < 1e-15);
    }
}
