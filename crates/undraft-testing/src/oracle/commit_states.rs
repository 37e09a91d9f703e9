//! Replay of a log: `S = S * decay + delta k^T`, token by token.

use super::fused_recurrent_gated_delta_rule::{Log, Sizes, key_head};
use undraft_core::HeadMap;

/// Inputs.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Sizes.
    pub sizes: Sizes,
    /// Key head of a value head.
    pub head_map: HeadMap,
    /// `[slots, HV, V, K]`.
    pub state: Vec<f64>,
    /// The log.
    pub log: Log,
    /// Slot of each sequence; `None` is padding.
    pub slots: Vec<Option<usize>>,
    /// Tokens of each sequence that stay.
    pub kept: Vec<usize>,
}

impl Commit {
    /// `[slots, HV, V, K]`.
    pub fn solve(&self) -> Vec<f64> {
        let mut state = self.state.clone();
        for (seq, slot) in self.slots.iter().enumerate() {
            if let Some(slot) = *slot {
                replay(&self.sizes, self.head_map, &self.log, slot, self.kept[seq], &mut state);
            }
        }
        state
    }
}

/// Puts the first `count` entries of a slot's log into its state.
pub(super) fn replay(sizes: &Sizes, head_map: HeadMap, log: &Log, slot: usize, count: usize, state: &mut [f64]) {
    let &Sizes { h, hv: num_v_heads, k, v } = sizes;
    for t in 0..count {
        let entry = slot * log.max_tokens + t;
        for hv in 0..num_v_heads {
            let kh = key_head(head_map, hv, h, num_v_heads);
            for i in 0..v {
                for j in 0..k {
                    let s = &mut state[((slot * num_v_heads + hv) * v + i) * k + j];
                    let delta = log.delta[(entry * num_v_heads + hv) * v + i];
                    *s = *s * log.decay[entry * num_v_heads + hv] + delta * log.k[(entry * h + kh) * k + j];
                }
            }
        }
    }
}
