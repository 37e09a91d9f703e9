//! Log decay and beta from the raw gate projections.

use super::Checked;
use crate::conventions::{gate_log_decay, sigmoid};
use crate::dims::MAX_HEAD_DIM;
use crate::error::{Result, check_len, check_range, checked_product};
use crate::rows::Rows;

/// Arguments of `fused_gdn_gating`.
///
/// | name | shape | dtype | direction |
/// | --- | --- | --- | --- |
/// | `a` | `[num_tokens, HV, decay_dim]` | f32, bf16, f16 | in |
/// | `b` | `[num_tokens, HV]` | f32, bf16, f16 | in |
/// | `a_log` | `[HV]` | f32 | in |
/// | `dt_bias` | `[HV, decay_dim]` | f32 | in |
/// | `g` | `[num_tokens, HV, decay_dim]` | f32 | out |
/// | `beta` | `[num_tokens, HV]` | f32 | out |
///
/// `g = -exp(A_log) * softplus(a + dt_bias)`, `beta = sigmoid(b)` (the gate of Qwen3-Next, and with a `decay_dim` of `K`
/// that of Kimi Delta Attention; computed in f64, rounded once).
#[derive(Debug)]
pub struct FusedGdnGatingArgs<'a> {
    /// Tokens.
    pub num_tokens: usize,
    /// Value heads, `HV`.
    pub num_v_heads: usize,
    /// Decays of a value head: 1, or `K` with [`crate::DecayShape::PerChannel`]; [`crate::GdnDims::decay_dim`].
    pub decay_dim: usize,
    /// Gate projection.
    pub a: Rows<'a>,
    /// Beta logits.
    pub b: Rows<'a>,
    /// `A_log`.
    pub a_log: &'a [f32],
    /// `dt_bias`.
    pub dt_bias: &'a [f32],
    /// Log decay, `<= 0`.
    pub g: &'a mut [f32],
    /// Beta.
    pub beta: &'a mut [f32],
}

impl<'a> FusedGdnGatingArgs<'a> {
    /// Checks that every buffer has its shape.
    ///
    /// # Errors
    /// [`crate::Error`] naming the argument.
    pub fn check(self) -> Result<Checked<Self>> {
        check_range("decay_dim", self.decay_dim, 1, MAX_HEAD_DIM)?;
        let (n, hv) = (self.num_tokens, self.num_v_heads);
        let shape = [("num_tokens", n), ("num_v_heads", hv), ("decay_dim", self.decay_dim)];
        // One decay a head is no axis of its own.
        let of_decay = if self.decay_dim == 1 { &shape[..2] } else { &shape };
        self.a.check("a", n, checked_product("a", &of_decay[1..])?)?;
        self.b.check("b", n, hv)?;
        check_len("A_log", self.a_log.len(), &shape[1..2])?;
        check_len("dt_bias", self.dt_bias.len(), &of_decay[1..])?;
        check_len("g", self.g.len(), of_decay)?;
        check_len("beta", self.beta.len(), &shape[..2])?;
        Ok(Checked::new(self))
    }

    /// `(g, beta)` of one decay and its head; what every back end computes.
    pub fn element(a: f32, b: f32, a_log: f32, dt_bias: f32) -> (f32, f32) {
        (gate_log_decay(a, a_log, dt_bias) as f32, sigmoid(b) as f32)
    }
}
