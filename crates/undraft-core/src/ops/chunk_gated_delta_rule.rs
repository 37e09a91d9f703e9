//! The matrix form of the recurrence, for prefill.

use super::Checked;
use super::fused_recurrent_gated_delta_rule::{DeltaRuleInputs, check_states, check_tree};
use crate::capture::Capture;
use crate::error::{Error, Result, check_range};
use crate::rows::{DataMut, RowsMut};

/// States on the way, for prefix caches.
#[derive(Debug)]
pub struct CheckpointsMut<'a> {
    /// `[num_checkpoints, HV, V, K]` in the dtype of the states: a sequence of n tokens has `n / every` (rounded down), its
    /// states after `every`, `2 * every`, .. tokens; sequences one after the other. Those of padding are not written.
    pub states: DataMut<'a>,
    /// Tokens from one checkpoint to the next, at least 1. Chunks are cut there: with a multiple of 64 nothing else changes.
    pub every: usize,
}

/// Arguments of `chunk_gated_delta_rule`: 64 tokens at a time in matrix form, f32 accumulation.
///
/// | name | shape | dtype | direction |
/// | --- | --- | --- | --- |
/// | `state` | `[num_slots, HV, V, K]`, initial, then final | f32, bf16, f16 | in, out |
/// | `checkpoints` | see [`CheckpointsMut`] | as the states | out |
/// | `out` | `[num_tokens, HV, V]` | f32, bf16, f16 | out |
///
/// Deterministic, close to the recurrence (see the tolerance table) and not bit-equal to it. Decay factors up to 1 (that
/// is, `g <= 0`) cannot overflow, however small they are. The state is carried in f32; a 16-bit state is rounded where it is
/// stored. Draft trees (`inputs.parents`) are refused.
#[derive(Debug)]
pub struct ChunkGatedDeltaRuleArgs<'a> {
    /// What is read.
    pub inputs: DeltaRuleInputs<'a>,
    /// Number of slots in `state`.
    pub num_slots: usize,
    /// States.
    pub state: DataMut<'a>,
    /// States on the way.
    pub checkpoints: Option<CheckpointsMut<'a>>,
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
        check_tree(&seqs, self.inputs.parents, Capture::Final)?;
        if let Some(checkpoints) = &self.checkpoints {
            check_range("checkpoints.every", checkpoints.every, 1, usize::MAX)?;
            let count = (0..seqs.num_seqs()).map(|seq| seqs.range(seq).len() / checkpoints.every).sum();
            check_states("checkpoints.states", checkpoints.states.len(), &[("num_checkpoints", count)], &dims)?;
            let (got, expected) = (checkpoints.states.dtype(), self.state.dtype());
            if got != expected {
                return Err(Error::DType { arg: "checkpoints.states", got, of_arg: "state", expected });
            }
        }
        Ok(Checked::new(self))
    }
}
