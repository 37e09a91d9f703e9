//! `out = x / sqrt(mean(x^2) + eps) * weight * act(z)` per head.

use super::{sigmoid, silu};
use undraft_core::ops::GateActivation;

/// Inputs.
#[derive(Clone, Debug)]
pub struct Norm {
    /// Rows.
    pub num_rows: usize,
    /// Heads of a row.
    pub num_heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// `[rows, heads, D]`.
    pub x: Vec<f64>,
    /// `[rows, heads, D]`.
    pub z: Vec<f64>,
    /// `[D]`.
    pub weight: Vec<f64>,
    /// Added to the mean of squares.
    pub eps: f64,
    /// What is done to `z`.
    pub activation: GateActivation,
}

impl Norm {
    /// `[rows, heads, D]`.
    pub fn solve(&self) -> Vec<f64> {
        let d = self.head_dim;
        let mut out = vec![0.0; self.num_rows * self.num_heads * d];
        for row in 0..self.num_rows {
            for head in 0..self.num_heads {
                let at = |i: usize| (row * self.num_heads + head) * d + i;
                let mut squares = 0.0;
                for i in 0..d {
                    squares += self.x[at(i)] * self.x[at(i)];
                }
                let root = (squares / d as f64 + self.eps).sqrt();
                for i in 0..d {
                    let z = self.z[at(i)];
                    let gate = match self.activation {
                        GateActivation::Silu => silu(z),
                        GateActivation::Sigmoid => sigmoid(z),
                    };
                    out[at(i)] = self.x[at(i)] / root * self.weight[i] * gate;
                }
            }
        }
        out
    }
}
