//! Cases of the gate.

use undraft_core::DType;

use super::{normals, seed, widen};
use crate::oracle::fused_gdn_gating::Gating;

/// One call, as plain arrays.
#[derive(Clone, Debug)]
pub struct GatingCase {
    /// Dtype of a and b.
    pub io: DType,
    /// Tokens.
    pub num_tokens: usize,
    /// Value heads.
    pub num_v_heads: usize,
    /// `[T, HV]`.
    pub a: Vec<f32>,
    /// `[T, HV]`.
    pub b: Vec<f32>,
    /// `[HV]`.
    pub a_log: Vec<f32>,
    /// `[HV]`.
    pub dt_bias: Vec<f32>,
}

/// Cases of one dtype.
pub const NUM_CASES: usize = 24;

impl GatingCase {
    /// Case `index`; one element in eight is an extreme.
    pub fn nth(io: DType, index: usize) -> Self {
        let mut rng = seed("fused_gdn_gating", io, index);
        let num_tokens = [1, 3, 0, 17, 8, 2][index % 6];
        let num_v_heads = [4, 1, 48, 9, 3, 33, 6][index % 7];
        let len = num_tokens * num_v_heads;
        let mut a = normals(&mut rng, io, len, 3.0);
        let mut b = normals(&mut rng, io, len, 4.0);
        for x in a.iter_mut().chain(&mut b) {
            if rng.one_in(8) {
                *x = io.round(rng.pick(&[0.0, -0.0, 30.0, -30.0, 88.0, -88.0, 500.0, -500.0, 1e-6]));
            }
        }
        let a_log = (0..num_v_heads).map(|_| (1e-3 + 16.0 * rng.uniform()).ln() as f32).collect();
        let dt_bias = normals(&mut rng, DType::F32, num_v_heads, 3.0);
        Self { io, num_tokens, num_v_heads, a, b, a_log, dt_bias }
    }

    /// What the error messages call it.
    pub fn label(&self) -> String {
        format!("{} T={} HV={}", self.io.name(), self.num_tokens, self.num_v_heads)
    }

    /// The same for the oracle.
    pub fn oracle(&self) -> Gating {
        Gating {
            num_tokens: self.num_tokens,
            num_v_heads: self.num_v_heads,
            a: widen(&self.a),
            b: widen(&self.b),
            a_log: widen(&self.a_log),
            dt_bias: widen(&self.dt_bias),
        }
    }

    /// Token `t` alone.
    pub fn token(&self, t: usize) -> Self {
        let row = t * self.num_v_heads..(t + 1) * self.num_v_heads;
        Self { num_tokens: 1, a: self.a[row.clone()].to_vec(), b: self.b[row].to_vec(), ..self.clone() }
    }
}
