//! Cases of the gated norm.

use undraft_core::DType;
use undraft_core::ops::GateActivation;

use super::{normals, seed, widen};
use crate::coverage::{Axis, Options};
use crate::harness::Memory;
use crate::oracle::rms_norm_gated::Norm;

/// One call, as plain arrays.
#[derive(Clone, Debug)]
pub struct NormCase {
    /// Dtype of x, z and out.
    pub io: DType,
    /// Rows.
    pub num_rows: usize,
    /// Heads of a row.
    pub num_heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// `[rows, heads, D]`.
    pub x: Vec<f32>,
    /// `[rows, heads, D]`.
    pub z: Vec<f32>,
    /// `[D]`.
    pub weight: Vec<f32>,
    /// Added to the mean of squares.
    pub eps: f32,
    /// What is done to `z`.
    pub activation: GateActivation,
}

/// Cases of one dtype.
pub const NUM_CASES: usize = 44;

impl NormCase {
    /// Case `index`.
    pub fn nth(io: DType, index: usize) -> Self {
        let mut rng = seed("rms_norm_gated", io, index);
        let num_rows = [1, 3, 0, 17, 8, 2][index % 6];
        let num_heads = [4, 1, 6, 9, 2][index % 5];
        let head_dim = [128, 1, 17, 96, 3, 64, 256, 33, 192, 31, 250][index % 11];
        let len = num_rows * num_heads * head_dim;
        // 3e-4 is the size of a recurrence's outputs, where eps has a say.
        let magnitude = [1.0, 3e-4, 50.0][index % 3];
        let mut z = normals(&mut rng, io, len, 2.0);
        for x in &mut z {
            if rng.one_in(16) {
                *x = io.round(rng.pick(&[0.0, -0.0, 30.0, -30.0, 100.0, -100.0]));
            }
        }
        Self {
            io,
            num_rows,
            num_heads,
            head_dim,
            x: normals(&mut rng, io, len, magnitude),
            z,
            weight: normals(&mut rng, DType::F32, head_dim, 1.0),
            eps: rng.pick(&[1e-6, 1e-5, 1e-3, 0.0]),
            activation: if (index / 2).is_multiple_of(2) { GateActivation::Silu } else { GateActivation::Sigmoid },
        }
    }

    /// What the error messages call it.
    pub fn label(&self) -> String {
        let Self { num_rows, num_heads, head_dim, eps, activation, .. } = self;
        format!("{} rows={num_rows} heads={num_heads} D={head_dim} eps={eps:e} {activation:?}", self.io.name())
    }

    /// Options of a call.
    pub fn options(&self, memory: Memory) -> Options {
        Options::new(self.io.name()).with(Axis::Memory, memory.name())
    }

    /// The same for the oracle.
    pub fn oracle(&self) -> Norm {
        Norm {
            num_rows: self.num_rows,
            num_heads: self.num_heads,
            head_dim: self.head_dim,
            x: widen(&self.x),
            z: widen(&self.z),
            weight: widen(&self.weight),
            eps: f64::from(self.eps),
            activation: self.activation,
        }
    }

    /// Row `row` alone.
    pub fn row(&self, row: usize) -> Self {
        let len = self.num_heads * self.head_dim;
        let range = row * len..(row + 1) * len;
        Self { num_rows: 1, x: self.x[range.clone()].to_vec(), z: self.z[range].to_vec(), ..self.clone() }
    }
}
