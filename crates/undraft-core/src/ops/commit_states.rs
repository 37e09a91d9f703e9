//! Replay of a delta log into the states.

use super::Checked;
use super::fused_recurrent_gated_delta_rule::check_states;
use crate::capture::{DeltaLogMut, check_path};
use crate::dims::GdnDims;
use crate::error::{Error, Result, check_len};
use crate::rows::DataMut;
use crate::seqlens::StateIndices;

/// Arguments of `commit_states`: the first `num_kept[s]` tokens of each slot's log, or a path through a draft tree, go into
/// its state.
///
/// | name | shape | dtype | direction |
/// | --- | --- | --- | --- |
/// | `state` | `[num_slots, HV, V, K]` | f32, bf16, f16 | in, out |
/// | `log` | see [`DeltaLogMut`] | f32 | in |
/// | `state_indices` | `[num_seqs]`, -1 = padding | i32 | in |
/// | `num_kept` | `[num_seqs]`, `0..=max_tokens` | u32 | in |
/// | `path` | `[num_seqs, log.max_tokens]` or empty | u32 | in |
///
/// `S = S * decay`, then `S = fma(delta, k, S)` (a 16-bit state is then rounded), in token order: bit for bit the state
/// that decoding those tokens one by one would have left.
#[derive(Debug)]
pub struct CommitStatesArgs<'a> {
    /// Sizes.
    pub dims: GdnDims,
    /// Which key head a value head reads; as in the call that wrote the log.
    pub head_map: crate::HeadMap,
    /// Number of slots in `state`.
    pub num_slots: usize,
    /// States.
    pub state: DataMut<'a>,
    /// The log.
    pub log: DeltaLogMut<'a>,
    /// Slots.
    pub state_indices: &'a [i32],
    /// Tokens that stay.
    pub num_kept: &'a [u32],
    /// Which log entries those are, rising; empty: the first ones.
    pub path: &'a [u32],
}

impl<'a> CommitStatesArgs<'a> {
    /// Checks shapes, slots and counts.
    ///
    /// # Errors
    /// [`Error`] naming the argument; nothing was touched.
    pub fn check(self) -> Result<Checked<Self>> {
        let num_seqs = self.state_indices.len();
        StateIndices::new(self.state_indices, num_seqs, self.num_slots)?;
        check_states("state", self.state.len(), &[("num_slots", self.num_slots)], &self.dims)?;
        self.log.check(&self.dims, self.num_slots)?;
        check_len("num_kept", self.num_kept.len(), &[("num_seqs", num_seqs)])?;
        for (seq, &kept) in self.num_kept.iter().enumerate() {
            if self.state_indices[seq] != crate::PAD_SLOT && kept as usize > self.log.max_tokens {
                return Err(Error::OverCapacity {
                    arg: "num_kept",
                    seq,
                    got: kept as usize,
                    capacity: self.log.max_tokens,
                });
            }
        }
        check_path("path", self.path, self.state_indices, self.num_kept, self.log.max_tokens)?;
        Ok(Checked::new(self))
    }
}
