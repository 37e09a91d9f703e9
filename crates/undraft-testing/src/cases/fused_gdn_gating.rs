//! Cases of the gate.

use undraft_core::{DType, DecayShape};

use super::{decay_shape_name, normals, seed, widen};
use crate::coverage::{Axis, Options};
use crate::harness::Memory;
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
    /// Decays of a value head, 1 or `K`.
    pub decay_dim: usize,
    /// `[T, HV, decay_dim]`.
    pub a: Vec<f32>,
    /// `[T, HV]`.
    pub b: Vec<f32>,
    /// `[HV]`.
    pub a_log: Vec<f32>,
    /// `[HV, decay_dim]`.
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
        let decay_dim = [1, 3, 1, 64, 17][index % 5];
        let mut a = normals(&mut rng, io, num_tokens * num_v_heads * decay_dim, 3.0);
        let mut b = normals(&mut rng, io, num_tokens * num_v_heads, 4.0);
        for x in a.iter_mut().chain(&mut b) {
            if rng.one_in(8) {
                *x = io.round(rng.pick(&[0.0, -0.0, 30.0, -30.0, 88.0, -88.0, 500.0, -500.0, 1e-6]));
            }
        }
        let a_log = (0..num_v_heads).map(|_| (1e-3 + 16.0 * rng.uniform()).ln() as f32).collect();
        let dt_bias = normals(&mut rng, DType::F32, num_v_heads * decay_dim, 3.0);
        Self { io, num_tokens, num_v_heads, decay_dim, a, b, a_log, dt_bias }
    }

    /// What the error messages call it.
    pub fn label(&self) -> String {
        let Self { io, num_tokens, num_v_heads, decay_dim, .. } = self;
        format!("{} T={num_tokens} HV={num_v_heads} decay_dim={decay_dim}", io.name())
    }

    /// Options of a call.
    pub fn options(&self, memory: Memory) -> Options {
        let decay_shape = if self.decay_dim == 1 { DecayShape::PerHead } else { DecayShape::PerChannel };
        Options::new(self.io.name())
            .with(Axis::Memory, memory.name())
            .with(Axis::DecayShape, decay_shape_name(decay_shape))
    }

    /// The same for the oracle.
    pub fn oracle(&self) -> Gating {
        Gating {
            num_tokens: self.num_tokens,
            num_v_heads: self.num_v_heads,
            decay_dim: self.decay_dim,
            a: widen(&self.a),
            b: widen(&self.b),
            a_log: widen(&self.a_log),
            dt_bias: widen(&self.dt_bias),
        }
    }

    /// Token `t` alone.
    pub fn token(&self, t: usize) -> Self {
        let row = |values: &[f32], len: usize| values[t * len..(t + 1) * len].to_vec();
        let (hv, decays) = (self.num_v_heads, self.num_v_heads * self.decay_dim);
        Self { num_tokens: 1, a: row(&self.a, decays), b: row(&self.b, hv), ..self.clone() }
    }
}
