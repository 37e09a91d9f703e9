//! RMS norm with a zero-centred weight.

use undraft::cpu::simd::{self, LANES, Simd};
use undraft::cpu::{SharedMut, with_simd};

use super::Compute;
use super::lanes;

/// `x / sqrt(mean(x^2) + eps) * (1 + weight)`.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    /// `1 + weight`.
    factor: Vec<f32>,
    eps: f32,
}

impl RmsNorm {
    /// From the weight as stored, which is zero-centred.
    pub fn new(weight: &[f32], eps: f32) -> Self {
        Self { factor: weight.iter().map(|w| 1.0 + w).collect(), eps }
    }

    /// Elements of a row.
    pub fn len(&self) -> usize {
        self.factor.len()
    }

    /// Whether a row has no elements.
    pub fn is_empty(&self) -> bool {
        self.factor.is_empty()
    }

    /// Norms every row of `x` `[n, len]` into `out` `[n, len]`.
    ///
    /// # Panics
    /// If the buffers differ in length or are not whole rows.
    pub fn forward(&self, compute: &Compute, x: &[f32], out: &mut [f32]) {
        let len = self.len();
        let num_rows = num_rows(len, x, out);
        let out = SharedMut::new(out);
        compute.run(num_rows, x.len() / LANES, &|t| {
            let row = t * len..(t + 1) * len;
            // SAFETY: a task writes its own row alone.
            let out = unsafe { out.part(row.clone()) };
            with_simd!(compute.token(), s => self.row(s, &x[row.clone()], out));
        });
    }

    /// Adds `delta` to `x`, then norms every row of the sum into `out`; all `[n, len]`.
    ///
    /// # Panics
    /// If the buffers differ in length or are not whole rows.
    pub fn add_forward(&self, compute: &Compute, x: &mut [f32], delta: &[f32], out: &mut [f32]) {
        let len = self.len();
        let num_rows = num_rows(len, x, out);
        assert_eq!(x.len(), delta.len(), "`x` and `delta` differ in length");
        let work = x.len() / LANES;
        let (x, out) = (SharedMut::new(x), SharedMut::new(out));
        compute.run(num_rows, work, &|t| {
            let row = t * len..(t + 1) * len;
            // SAFETY: a task writes its own row of either buffer alone.
            let (x, out) = unsafe { (x.part(row.clone()), out.part(row.clone())) };
            let delta = &delta[row];
            with_simd!(compute.token(), s => {
                lanes::zip(s, x, delta, #[inline(always)] |x, d| x + d);
                self.row(s, x, out);
            });
        });
    }

    /// One row.
    #[inline(always)]
    pub(crate) fn row<S: Simd>(&self, s: S, x: &[f32], out: &mut [f32]) {
        let mean = sum_of_squares(s, x) / x.len() as f32;
        let scale = simd::splat(s, 1.0 / (mean + self.eps).sqrt());
        lanes::zip_into(
            s,
            x,
            &self.factor,
            out,
            #[inline(always)]
            |x, factor| x * scale * factor,
        );
    }
}

fn num_rows(len: usize, x: &[f32], out: &[f32]) -> usize {
    assert_eq!(x.len(), out.len(), "`x` and `out` differ in length");
    assert!(x.len().is_multiple_of(len), "`x` has {} elements, expected rows of {len}", x.len());
    x.len() / len
}

/// Four accumulators in turn, then `(0 + 1) + (2 + 3)`, then the lanes.
#[inline(always)]
fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let (vectors, rest) = x.as_chunks::<LANES>();
    let (groups, left) = vectors.as_chunks::<4>();
    let mut acc = [simd::zero(s); 4];
    for group in groups {
        for i in 0..4 {
            let v = simd::load(s, &group[i]);
            acc[i] = simd::fma(v, v, acc[i]);
        }
    }
    for vector in left {
        let v = simd::load(s, vector);
        acc[0] = simd::fma(v, v, acc[0]);
    }
    if !rest.is_empty() {
        let v = lanes::load_part(s, rest);
        acc[1] = simd::fma(v, v, acc[1]);
    }
    simd::sum((acc[0] + acc[1]) + (acc[2] + acc[3]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use undraft::cpu::{CpuBackend, Isa};

    #[test]
    fn it_is_the_formula_with_one_plus_w() {
        let compute = Compute::new(&CpuBackend::new());
        for len in [1, 5, 16, 96, 128, 250] {
            let x: Vec<f32> = (0..2 * len).map(|i| ((i * 7919) % 101) as f32 * 0.02 - 1.0).collect();
            let w: Vec<f32> = (0..len).map(|i| (i % 5) as f32 * 0.1 - 0.2).collect();
            let mut out = vec![f32::NAN; 2 * len];
            RmsNorm::new(&w, 1e-6).forward(&compute, &x, &mut out);
            for t in 0..2 {
                let row = &x[t * len..(t + 1) * len];
                let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / len as f64;
                for i in 0..len {
                    let want = f64::from(row[i]) / (mean + 1e-6).sqrt() * (1.0 + f64::from(w[i]));
                    assert!((f64::from(out[t * len + i]) - want).abs() < 1e-6 * want.abs().max(1.0), "{len} {i}");
                }
            }
        }
    }

    #[test]
    fn adding_first_is_the_same_bits_on_every_instruction_set() {
        let (x, d): (Vec<f32>, Vec<f32>) = (0..3 * 50).map(|i| (i as f32 * 0.37, 5.0 - i as f32)).unzip();
        let norm = RmsNorm::new(&[0.25; 50], 1e-6);
        let sum: Vec<f32> = x.iter().zip(&d).map(|(x, d)| x + d).collect();
        let mut want = vec![0.0; x.len()];
        norm.forward(&Compute::new(&CpuBackend::with_isa(Isa::Scalar).unwrap()), &sum, &mut want);
        for isa in Isa::ALL {
            let Ok(backend) = CpuBackend::with_isa(isa) else { continue };
            let (mut x, mut out) = (x.clone(), vec![0.0; x.len()]);
            norm.add_forward(&Compute::new(&backend), &mut x, &d, &mut out);
            assert_eq!((x, out), (sum.clone(), want.clone()), "{isa}");
        }
    }
}
