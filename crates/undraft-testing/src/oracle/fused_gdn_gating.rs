//! `g = -exp(A_log) * softplus(a + dt_bias)`, `beta = sigmoid(b)`.

use super::{sigmoid, softplus};

/// Inputs.
#[derive(Clone, Debug)]
pub struct Gating {
    /// Tokens.
    pub num_tokens: usize,
    /// Value heads.
    pub num_v_heads: usize,
    /// Decays of a value head: `D` in the shapes below.
    pub decay_dim: usize,
    /// `[T, HV, D]`.
    pub a: Vec<f64>,
    /// `[T, HV]`.
    pub b: Vec<f64>,
    /// `[HV]`.
    pub a_log: Vec<f64>,
    /// `[HV, D]`.
    pub dt_bias: Vec<f64>,
}

impl Gating {
    /// `(g, beta)`, `[T, HV, D]` and `[T, HV]`.
    pub fn solve(&self) -> (Vec<f64>, Vec<f64>) {
        let mut g = vec![0.0; self.num_tokens * self.num_v_heads * self.decay_dim];
        let mut beta = vec![0.0; self.num_tokens * self.num_v_heads];
        for t in 0..self.num_tokens {
            for hv in 0..self.num_v_heads {
                let i = t * self.num_v_heads + hv;
                for n in 0..self.decay_dim {
                    let j = i * self.decay_dim + n;
                    g[j] = log_decay(self.a[j], self.a_log[hv], self.dt_bias[hv * self.decay_dim + n]);
                }
                beta[i] = sigmoid(self.b[i]);
            }
        }
        (g, beta)
    }
}

/// `-exp(A_log) * softplus(a + dt_bias)`.
pub fn log_decay(a: f64, a_log: f64, dt_bias: f64) -> f64 {
    -(a_log.exp() * softplus(a + dt_bias))
}
