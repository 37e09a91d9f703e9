//! The matrix form of the recurrence, for prefill.

use super::Checked;
use super::fused_recurrent_gated_delta_rule::{DeltaRuleInputs, check_states};
use crate::error::Result;
use crate::rows::RowsMut;

/// Arguments of `chunk_gated_delta_rule`: 64 tokens at a time in matrix form, f32 accumulation.
///
/// | name | shape | dtype | direction |
/// | --- | --- | --- | --- |
/// | `state` | `[num_slots, HV, V, K]`, initial, then final | f32 | in, out |
/// | `out` | `[num_tokens, HV, V]` | f32, bf16, f16 | out |
///
/// Deterministic, close to the recurrence (see the tolerance table) and not bit-equal to it. Decay factors up to 1 (that
/// is, `g <= 0`) cannot overflow, however small they are.
#[derive(Debug)]
pub struct ChunkGatedDeltaRuleArgs<'a> {
    /// What is read.
    pub inputs: DeltaRuleInputs<'a>,
    /// Number of slots in `state`.
    pub num_slots: usize,
    /// States.
    pub state: &'a mut [f32],
    /// Outputs.
    pub out: RowsMut<'a>,
}

impl<'a> ChunkGatedDeltaRuleArgs<'a> {
    /// Checks shapes, sequences and slots.
    ///
    /// Facts for kernels: every sequence's tokens lie in q, k, v, decay, beta and out; every slot lies in `state` and
    /// stands once.
    ///
    /// # Errors
    /// [`crate::Error`] naming the argument; nothing was touched.
    pub fn check(self) -> Result<Checked<Self>> {
        let dims = self.inputs.dims;
        let seqs = self.inputs.check(self.num_slots)?;
        self.out.check("out", seqs.num_tokens(), dims.value_dim())?;
        check_states("state", self.state.len(), &[("num_slots", self.num_slots)], &dims)?;
        Ok(Checked::new(self))
    }
}
