//! Random values: extremes among them, none that the operation could not give or take.

use undraft_core::{DType, GdnDims, QkNorm};

use super::super::{normals, widen};
use super::{BetaForm, DecayForm, LogData, oracle};
use crate::Rng;

impl LogData {
    /// Zeros.
    pub fn zeros(dims: &GdnDims, num_slots: usize, max_tokens: usize) -> Self {
        let entries = num_slots * max_tokens;
        Self {
            k: vec![0.0; entries * dims.key_dim()],
            decay: vec![0.0; entries * dims.decay_len()],
            delta: vec![0.0; entries * dims.value_dim()],
            max_tokens,
        }
    }
    /// Unit keys, decays from 0 to 1 and normal deltas.
    pub fn random(rng: &mut Rng, dims: &GdnDims, num_slots: usize, max_tokens: usize) -> Self {
        let entries = num_slots * max_tokens;
        let factor = |rng: &mut Rng| match rng.below(12) {
            0 => 0.0,
            1 => 1.0,
            2 => 1e-38,
            _ => rng.uniform() as f32,
        };
        Self {
            k: keys(rng, DType::F32, entries * dims.num_k_heads(), dims.head_k_dim(), QkNorm::AsGiven, 1.0),
            decay: (0..entries * dims.decay_len()).map(|_| factor(rng)).collect(),
            delta: normals(rng, DType::F32, entries * dims.value_dim(), 1.0),
            max_tokens,
        }
    }
    /// The same for the oracle.
    pub fn oracle(&self) -> oracle::Log {
        oracle::Log {
            k: widen(&self.k),
            decay: widen(&self.decay),
            delta: widen(&self.delta),
            max_tokens: self.max_tokens,
        }
    }
}

/// Heads of q or k: unit length where nobody normalises them, anything (also zero) where the operation does.
pub(super) fn keys(rng: &mut Rng, io: DType, heads: usize, size: usize, qk_norm: QkNorm, magnitude: f64) -> Vec<f32> {
    let mut values = Vec::with_capacity(heads * size);
    for _ in 0..heads {
        let head: Vec<f64> = (0..size).map(|_| rng.normal()).collect();
        let length = head.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-3);
        let factor = match qk_norm {
            QkNorm::AsGiven => 1.0 / length,
            QkNorm::L2Norm { .. } if rng.one_in(40) => 0.0,
            QkNorm::L2Norm { .. } => magnitude,
        };
        values.extend(head.iter().map(|x| io.round((x * factor) as f32)));
    }
    values
}

/// Decays of one form; one in eight is an extreme.
pub(super) fn decays(rng: &mut Rng, form: usize, num_tokens: usize, dims: &GdnDims) -> (DecayForm, Vec<f32>) {
    let mut log = || {
        let extreme = [0.0, -20.0, -2661.0, -87.4, -1e-7];
        if rng.one_in(8) { rng.pick(&extreme) } else { -3.0 * rng.uniform() * rng.uniform() }
    };
    let count = num_tokens * dims.decay_len();
    match form {
        0 => (DecayForm::Log, (0..count).map(|_| log() as f32).collect()),
        1 => (DecayForm::NegLog, (0..count).map(|_| -log() as f32).collect()),
        2 => {
            let factor = |rng: &mut Rng| match rng.below(12) {
                0 => 0.0,
                1 => 1e-38,
                2 => 1.0,
                3 => f32::MIN_POSITIVE,
                _ => (1.0 - rng.uniform() * rng.uniform()) as f32,
            };
            (DecayForm::Linear, (0..count).map(|_| factor(rng)).collect())
        }
        _ => {
            let a_log = (0..dims.num_v_heads()).map(|_| (1.0 + 15.0 * rng.uniform()).ln() as f32).collect();
            let dt_bias = (0..dims.decay_len()).map(|_| (rng.normal() * 2.0 - 2.0) as f32).collect();
            let a = |rng: &mut Rng| match rng.below(16) {
                0 => 166.0,
                1 => -166.0,
                2 => -30.0,
                _ => (rng.normal() * 2.0) as f32,
            };
            (DecayForm::Gate { a_log, dt_bias }, (0..count).map(|_| a(rng)).collect())
        }
    }
}

pub(super) fn beta(rng: &mut Rng, form: BetaForm) -> f32 {
    match (form, rng.below(12)) {
        (BetaForm::Value, n @ 0..=2) => n as f32,
        (BetaForm::Value, _) => (2.0 * rng.uniform()) as f32,
        (BetaForm::Logit, 0) => -110.0,
        (BetaForm::Logit, 1) => 40.0,
        (BetaForm::Logit, _) => (3.0 * rng.normal()) as f32,
    }
}
