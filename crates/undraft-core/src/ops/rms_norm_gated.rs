//! RMS norm of each value head, then the gate.

use super::Checked;
use crate::error::{Error, Result, check_len, check_range};
use crate::rows::{Rows, RowsMut};

/// What is done to `z` before it multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GateActivation {
    /// `z * sigmoid(z)`: Qwen3-Next, Qwen3.5.
    #[default]
    Silu,
    /// `sigmoid(z)`: Kimi-Linear.
    Sigmoid,
}

/// Arguments of `rms_norm_gated`.
///
/// | name | shape | dtype | direction |
/// | --- | --- | --- | --- |
/// | `x`, `z` | `[num_rows, num_heads, D]`, heads contiguous in a row | f32, bf16, f16 | in |
/// | `weight` | `[D]`, plain (not zero-centred), shared by the heads | f32 | in |
/// | `out` | `[num_rows, num_heads, D]` | f32, bf16, f16 | out |
///
/// `out = x / sqrt(mean(x^2) + eps) * weight * act(z)`: norm first, then the gate.
#[derive(Debug)]
pub struct RmsNormGatedArgs<'a> {
    /// Rows.
    pub num_rows: usize,
    /// Heads of a row.
    pub num_heads: usize,
    /// Size of a head, `D`.
    pub head_dim: usize,
    /// Values.
    pub x: Rows<'a>,
    /// Gate.
    pub z: Rows<'a>,
    /// Weight.
    pub weight: &'a [f32],
    /// Added to the mean of squares.
    pub eps: f32,
    /// What is done to the gate.
    pub activation: GateActivation,
    /// Outputs.
    pub out: RowsMut<'a>,
}

impl<'a> RmsNormGatedArgs<'a> {
    /// Checks shapes and eps.
    ///
    /// # Errors
    /// [`Error`] naming the argument.
    pub fn check(self) -> Result<Checked<Self>> {
        check_range("num_heads", self.num_heads, 1, 1 << 16)?;
        check_range("head_dim", self.head_dim, 1, 1 << 16)?;
        let row = self.num_heads * self.head_dim;
        self.x.check("x", self.num_rows, row)?;
        self.z.check("z", self.num_rows, row)?;
        self.out.check("out", self.num_rows, row)?;
        check_len("weight", self.weight.len(), &[("head_dim", self.head_dim)])?;
        if !(self.eps.is_finite() && self.eps >= 0.0) {
            return Err(Error::Number { arg: "eps", got: self.eps, expected: "a finite number, at least 0" });
        }
        Ok(Checked::new(self))
    }
}
