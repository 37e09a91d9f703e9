//! Replay of a log: `S = S * decay + delta k^T`, token by token.

use super::fused_recurrent_gated_delta_rule::{Log, Sizes, key_head};
use super::round_state;
use undraft_core::{DType, HeadMap};

/// Inputs.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Sizes.
    pub sizes: Sizes,
    /// Key head of a value head.
    pub head_map: HeadMap,
    /// `[slots, HV, V, K]`.
    pub state: Vec<f64>,
    /// The state is rounded to this dtype after every token.
    pub state_dtype: DType,
    /// The log.
    pub log: Log,
    /// Slot of each sequence; `None` is padding.
    pub slots: Vec<Option<usize>>,
    /// Log entries of each sequence that stay, in order.
    pub kept: Vec<Vec<usize>>,
}

impl Commit {
    /// `[slots, HV, V, K]`.
    pub fn solve(&self) -> Vec<f64> {
        let mut state = self.state.clone();
        let how = Replay { sizes: self.sizes, head_map: self.head_map, state_dtype: self.state_dtype };
        for (seq, slot) in self.slots.iter().enumerate() {
            if let Some(slot) = *slot {
                replay(&how, &self.log, slot, &self.kept[seq], &mut state);
            }
        }
        state
    }
}

/// How a log is replayed.
pub(super) struct Replay {
    pub(super) sizes: Sizes,
    pub(super) head_map: HeadMap,
    pub(super) state_dtype: DType,
}

/// Puts entries of a slot's log into its state.
pub(super) fn replay(how: &Replay, log: &Log, slot: usize, entries: &[usize], state: &mut [f64]) {
    let Sizes { h, hv: num_v_heads, k, v, decay: num_factors } = how.sizes;
    for &t in entries {
        let entry = slot * log.max_tokens + t;
        for hv in 0..num_v_heads {
            let kh = key_head(how.head_map, hv, h, num_v_heads);
            for i in 0..v {
                for j in 0..k {
                    let s = &mut state[((slot * num_v_heads + hv) * v + i) * k + j];
                    let factor = log.decay[(entry * num_v_heads + hv) * num_factors + j.min(num_factors - 1)];
                    let delta = log.delta[(entry * num_v_heads + hv) * v + i];
                    *s = round_state(how.state_dtype, *s * factor + delta * log.k[(entry * h + kh) * k + j]);
                }
            }
        }
    }
}
