//! What a window leaves behind so that it can be taken back.

use crate::conventions::DecayShape;
use crate::dims::GdnDims;
use crate::error::{Error, Result, check_len};
use crate::rows::DataMut;

/// What a window of tokens records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Capture {
    /// k, decay and delta of each token; the state itself stays as it was before the window.
    #[default]
    DeltaLog,
    /// The whole state after each token; the state itself stays as it was before the window.
    PerToken,
    /// Nothing: the state is overwritten and the window cannot be taken back.
    Final,
}

/// Where a recurrent call leaves its capture.
#[derive(Debug)]
pub enum CaptureMut<'a> {
    /// The slot's state is overwritten with the state after the last token.
    Final,
    /// State after each token; the slot's state keeps what it was before the window.
    PerToken {
        /// `[num_seqs, max_tokens, HV, V, K]` in the dtype of the states; entries of tokens that a sequence does not have
        /// are not written.
        states: DataMut<'a>,
        /// Tokens a sequence may have.
        max_tokens: usize,
    },
    /// The call's delta log takes the window's entries; the slot's state keeps what it was before the window.
    DeltaLog,
}

/// Shape of a delta log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaLogDims {
    /// Slots.
    pub num_slots: usize,
    /// Tokens a slot may hold.
    pub max_tokens: usize,
}

/// A delta log: per token the key, the decay factor and the delta that the recurrence used.
///
/// Replaying it is `S = S * decay`, then `S = fma(delta, k, S)`, and with 16-bit states the rounding, token by token: no
/// sum, hence the same bits under any tiling. In a draft tree an entry is a node, and a path of nodes is replayed.
#[derive(Debug)]
pub struct DeltaLogMut<'a> {
    /// `[num_slots, max_tokens, H, K]` f32, normalised as used.
    pub k: &'a mut [f32],
    /// `[num_slots, max_tokens, HV]` f32, the factor; `[num_slots, max_tokens, HV, K]` with
    /// [`crate::DecayShape::PerChannel`].
    pub decay: &'a mut [f32],
    /// `[num_slots, max_tokens, HV, V]` f32, `(v - S k) * beta`.
    pub delta: &'a mut [f32],
    /// Tokens a slot may hold.
    pub max_tokens: usize,
}

impl DeltaLogMut<'_> {
    pub(crate) fn check(&self, dims: &GdnDims, num_slots: usize) -> Result<()> {
        let (slots, tokens) = (("num_slots", num_slots), ("max_tokens", self.max_tokens));
        let (h, hv) = (("num_k_heads", dims.num_k_heads()), ("num_v_heads", dims.num_v_heads()));
        check_len("log.k", self.k.len(), &[slots, tokens, h, ("head_k_dim", dims.head_k_dim())])?;
        match dims.decay_shape() {
            DecayShape::PerHead => check_len("log.decay", self.decay.len(), &[slots, tokens, hv])?,
            DecayShape::PerChannel => {
                check_len("log.decay", self.decay.len(), &[slots, tokens, hv, ("head_k_dim", dims.head_k_dim())])?;
            }
        }
        check_len("log.delta", self.delta.len(), &[slots, tokens, hv, ("head_v_dim", dims.head_v_dim())])
    }
    /// The same log for a shorter time.
    pub fn reborrow(&mut self) -> DeltaLogMut<'_> {
        DeltaLogMut { k: self.k, decay: self.decay, delta: self.delta, max_tokens: self.max_tokens }
    }
}

/// Checks which log entries are replayed: `[num_seqs, max_tokens]`, of which the first `counts[s]` of a sequence count and
/// rise; or empty for the first entries.
pub(crate) fn check_path(
    arg: &'static str,
    path: &[u32],
    state_indices: &[i32],
    counts: &[u32],
    max_tokens: usize,
) -> Result<()> {
    if path.is_empty() {
        return Ok(());
    }
    check_len(arg, path.len(), &[("num_seqs", state_indices.len()), ("max_tokens", max_tokens)])?;
    for (seq, &slot) in state_indices.iter().enumerate() {
        let count = counts.get(seq).map_or(0, |&n| n as usize);
        if slot == crate::PAD_SLOT {
            continue;
        }
        let entries = &path[seq * max_tokens..(seq + 1) * max_tokens];
        let mut least = 0;
        // `counts` was checked against `max_tokens` before.
        for (position, &entry) in entries.iter().take(count).enumerate() {
            if entry < least || entry as usize >= max_tokens {
                return Err(Error::PathEntry { arg, seq, position, got: entry, least, num_entries: max_tokens });
            }
            least = entry + 1;
        }
    }
    Ok(())
}
