//! Ugly inputs, the same on every run: odd sizes, ragged batches, extremes, values already rounded to the I/O dtype.

pub mod causal_conv1d_update;
pub mod commit_states;
pub mod fused_gdn_gating;
pub mod fused_recurrent_gated_delta_rule;
pub mod rms_norm_gated;
mod windows;

pub use windows::Windows;
pub(crate) use windows::gather;

use undraft_core::DType;

use crate::Rng;

/// Seed of case `index` of an operation.
pub(crate) fn seed(op: &str, io: DType, index: usize) -> Rng {
    let text = op.bytes().chain(io.name().bytes());
    let hash = text.fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    Rng::new(hash ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Normal numbers times `scale`, rounded to the I/O dtype.
pub(crate) fn normals(rng: &mut Rng, io: DType, len: usize, scale: f64) -> Vec<f32> {
    (0..len).map(|_| io.round((rng.normal() * scale) as f32)).collect()
}

/// f32 as f64.
pub(crate) fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}
