//! Comparisons that say where the worst element is.

use crate::tolerance::Tolerance;

/// How far values lie from the oracle's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Deviation {
    /// RMS(error) / RMS(oracle).
    pub rel_rms: f64,
    /// Largest |error| / max(|oracle|, RMS(oracle)) of an element.
    pub worst: f64,
}

/// Names of a tensor's axes, outermost first, with their sizes.
pub type Axes<'a> = &'a [(&'static str, usize)];

/// Prints a flat index by axis: `[token 3, head 1, row 5]`.
fn place(mut index: usize, axes: Axes<'_>) -> String {
    let mut parts = Vec::new();
    for &(name, size) in axes.iter().rev() {
        parts.push(format!("{name} {}", index % size.max(1)));
        index /= size.max(1);
    }
    parts.reverse();
    format!("[{}]", parts.join(", "))
}

/// Compares with the oracle.
///
/// # Errors
/// The worst element, if the bound is passed or an element is not finite.
///
/// ```
/// use undraft_testing::{compare, tolerance::Tolerance};
/// let axes = [("token", 2), ("head", 2)];
/// let bound = Tolerance { rel_rms: 1e-3, worst: 1e-2 };
/// let near = compare::values("out", &[1.0, 2.0, 3.0, 4.0], &[1.0, 2.0, 3.0, 4.0], &axes, bound);
/// assert_eq!(near.unwrap().rel_rms, 0.0);
/// let far = compare::values("out", &[1.0, 2.0, 3.0, 9.0], &[1.0, 2.0, 3.0, 4.0], &axes, bound).unwrap_err();
/// assert!(far.contains("[token 1, head 1]"), "{far}");
/// ```
pub fn values(arg: &str, got: &[f32], oracle: &[f64], axes: Axes<'_>, bound: Tolerance) -> Result<Deviation, String> {
    same_length(arg, got.len(), oracle.len(), axes)?;
    let count = oracle.len().max(1) as f64;
    let rms = (oracle.iter().map(|o| o * o).sum::<f64>() / count).sqrt();
    let ratio = |x: f64, of: f64| if x == 0.0 { 0.0 } else { x / of };
    let (mut squares, mut worst) = (0.0, (0, 0.0f64));
    for (i, (&g, &o)) in got.iter().zip(oracle).enumerate() {
        let error = (f64::from(g) - o).abs();
        if !error.is_finite() {
            return Err(format!("`{arg}`{}: got {g}, expected {o}", place(i, axes)));
        }
        squares += error * error;
        let relative = ratio(error, o.abs().max(rms));
        if relative > worst.1 {
            worst = (i, relative);
        }
    }
    let deviation = Deviation { rel_rms: ratio((squares / count).sqrt(), rms), worst: worst.1 };
    if deviation.rel_rms <= bound.rel_rms && deviation.worst <= bound.worst {
        return Ok(deviation);
    }
    Err(format!(
        "`{arg}`: RMS(error)/RMS(oracle) is {:.3e}, expected at most {:.1e}; the worst element is {:.3e} off, expected at \
         most {:.1e}: {} got {}, expected {}",
        deviation.rel_rms,
        bound.rel_rms,
        deviation.worst,
        bound.worst,
        place(worst.0, axes),
        got[worst.0],
        oracle[worst.0],
    ))
}

/// Compares element by element, each relative to itself; numbers below the smallest normal f32 count as 0.
///
/// # Errors
/// The worst element, if the bound is passed.
pub fn each(arg: &str, got: &[f32], oracle: &[f64], axes: Axes<'_>, bound: f64) -> Result<f64, String> {
    same_length(arg, got.len(), oracle.len(), axes)?;
    let mut worst = (0, 0.0f64);
    for (i, (&g, &o)) in got.iter().zip(oracle).enumerate() {
        let difference = (f64::from(g) - o).abs();
        let floor = 2.0 * f64::from(f32::MIN_POSITIVE);
        let ratio = if difference <= floor { 0.0 } else { difference / o.abs() };
        if ratio.is_nan() {
            worst = (i, ratio);
            break;
        }
        if ratio > worst.1 {
            worst = (i, ratio);
        }
    }
    if worst.1 <= bound {
        return Ok(worst.1);
    }
    Err(format!(
        "`{arg}`{}: got {}, expected {}, relative error {:.3e}, expected at most {bound:.1e}",
        place(worst.0, axes),
        got[worst.0],
        oracle[worst.0],
        worst.1,
    ))
}

/// Compares bit for bit.
///
/// # Errors
/// The first element that differs, and how many do.
pub fn bits(arg: &str, got: &[f32], expected: &[f32], axes: Axes<'_>) -> Result<(), String> {
    same_length(arg, got.len(), expected.len(), axes)?;
    let differ = |&i: &usize| got[i].to_bits() != expected[i].to_bits();
    let Some(first) = (0..got.len()).find(differ) else { return Ok(()) };
    let count = (first..got.len()).filter(differ).count();
    let (g, e) = (got[first], expected[first]);
    Err(format!(
        "`{arg}`: {count} of {} elements differ, first at {}: got {g:e} ({:#010x}), expected {e:e} ({:#010x})",
        got.len(),
        place(first, axes),
        g.to_bits(),
        e.to_bits(),
    ))
}

fn same_length(arg: &str, got: usize, expected: usize, axes: Axes<'_>) -> Result<(), String> {
    let named: usize = axes.iter().map(|&(_, n)| n).product();
    if got == expected && got == named {
        return Ok(());
    }
    Err(format!("`{arg}` has {got} elements, expected {expected}, and {named} by its axes {axes:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Tolerance = Tolerance { rel_rms: 1e-6, worst: 1e-5 };

    #[test]
    fn one_wrong_element_among_many_is_found() {
        let oracle: Vec<f64> = (0..10_000).map(|i| f64::from(i % 7) - 3.0).collect();
        let mut got: Vec<f32> = oracle.iter().map(|&x| x as f32).collect();
        assert!(values("o", &got, &oracle, &[("token", 100), ("row", 100)], ANY).is_ok());
        got[4_321] += 0.001;
        let error = values("o", &got, &oracle, &[("token", 100), ("row", 100)], ANY).unwrap_err();
        assert!(error.contains("[token 43, row 21]"), "{error}");
    }

    #[test]
    fn nan_and_infinity_never_pass() {
        for bad in [f32::NAN, f32::INFINITY] {
            let wide = Tolerance { rel_rms: f64::INFINITY, worst: f64::INFINITY };
            assert!(values("o", &[1.0, bad], &[1.0, 1.0], &[("row", 2)], wide).is_err());
            assert!(each("o", &[1.0, bad], &[1.0, 1.0], &[("row", 2)], 1.0).is_err());
        }
        assert!(values("o", &[0.0], &[0.0], &[("row", 1)], ANY).is_ok());
        assert!(values("o", &[1e-30], &[0.0], &[("row", 1)], ANY).is_err(), "anything is infinitely far from zero");
    }

    #[test]
    fn bits_tell_zeros_apart_and_nans_alike() {
        assert!(bits("o", &[f32::NAN], &[f32::NAN], &[("row", 1)]).is_ok());
        let error = bits("o", &[1.0, -0.0, 2.0], &[1.0, 0.0, 3.0], &[("row", 3)]).unwrap_err();
        assert!(error.contains("2 of 3 elements differ, first at [row 1]"), "{error}");
        assert!(bits("o", &[1.0], &[1.0, 2.0], &[("row", 2)]).is_err());
    }
}
