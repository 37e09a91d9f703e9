//! What a window leaves behind so that it can be taken back.

use crate::dims::GdnDims;
use crate::error::{Result, check_len};

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
        /// `[num_seqs, max_tokens, HV, V, K]` f32; entries of tokens that a sequence does not have are not written.
        states: &'a mut [f32],
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
/// Replaying it is `S = S * decay`, then `S = fma(delta, k, S)`, token by token: no sum, hence the same bits under any
/// tiling.
#[derive(Debug)]
pub struct DeltaLogMut<'a> {
    /// `[num_slots, max_tokens, H, K]` f32, normalised as used.
    pub k: &'a mut [f32],
    /// `[num_slots, max_tokens, HV]` f32, the factor.
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
        check_len("log.decay", self.decay.len(), &[slots, tokens, hv])?;
        check_len("log.delta", self.delta.len(), &[slots, tokens, hv, ("head_v_dim", dims.head_v_dim())])
    }
    /// The same log for a shorter time.
    pub fn reborrow(&mut self) -> DeltaLogMut<'_> {
        DeltaLogMut { k: self.k, decay: self.decay, delta: self.delta, max_tokens: self.max_tokens }
    }
}
