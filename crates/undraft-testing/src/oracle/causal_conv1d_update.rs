//! Causal depthwise convolution: every output looks back over one list, state, pending entries, then the token's path.

use super::silu;
use undraft_core::Activation;

/// Inputs.
#[derive(Clone, Debug)]
pub struct Conv {
    /// Channels.
    pub channels: usize,
    /// Taps.
    pub width: usize,
    /// `[T, C]`, all sequences one after the other.
    pub x: Vec<f64>,
    /// `[W, C]`.
    pub weight: Vec<f64>,
    /// `[C]`.
    pub bias: Option<Vec<f64>>,
    /// What follows the sum.
    pub activation: Activation,
    /// Tokens of each sequence.
    pub lens: Vec<usize>,
    /// Slot of each sequence; `None` is padding.
    pub slots: Vec<Option<usize>>,
    /// `[slots, W - 1, C]`, oldest first.
    pub state: Vec<f64>,
    /// `[slots, max_tokens, C]`.
    pub log: Vec<f64>,
    /// Tokens of a slot's log.
    pub max_tokens: usize,
    /// `[T]`: the position in its window of the token that a token follows; `None`: it follows the state.
    pub parents: Vec<Option<usize>>,
    /// Log entries of each sequence that move into the state first, in order.
    pub pending: Vec<Vec<usize>>,
}

/// Outputs.
#[derive(Clone, Debug)]
pub struct ConvSolution {
    /// `[T, C]`; 0 at padding.
    pub out: Vec<f64>,
    /// State after the pending entries.
    pub state_before: Vec<f64>,
    /// State after the last token of each window.
    pub state_after: Vec<f64>,
}

impl Conv {
    /// Runs every sequence.
    pub fn solve(&self) -> ConvSolution {
        let (c, taps) = (self.channels, self.width);
        let mut out = vec![0.0; self.x.len()];
        let mut state_before = self.state.clone();
        let mut state_after = self.state.clone();
        let mut first_token = 0;
        for (seq, &len) in self.lens.iter().enumerate() {
            let Some(slot) = self.slots[seq] else {
                first_token += len;
                continue;
            };
            let mut line = Vec::new(); // [state | pending][C]
            for i in 0..taps - 1 {
                line.push(self.state[(slot * (taps - 1) + i) * c..][..c].to_vec());
            }
            for &t in &self.pending[seq] {
                line.push(self.log[(slot * self.max_tokens + t) * c..][..c].to_vec());
            }
            let mut last = line.clone();
            for t in 0..len {
                let mut path = vec![t];
                while let Some(parent) = self.parents[first_token + path[path.len() - 1]] {
                    path.push(parent);
                }
                let mut line = line.clone();
                for &t in path.iter().rev() {
                    line.push(self.x[(first_token + t) * c..][..c].to_vec());
                }
                for ch in 0..c {
                    let mut sum = self.bias.as_ref().map_or(0.0, |bias| bias[ch]);
                    for j in 0..taps {
                        sum += self.weight[j * c + ch] * line[line.len() - taps + j][ch];
                    }
                    out[(first_token + t) * c + ch] = match self.activation {
                        Activation::Silu => silu(sum),
                        Activation::None => sum,
                    };
                }
                last = line;
            }
            for i in 0..taps - 1 {
                for ch in 0..c {
                    let at = (slot * (taps - 1) + i) * c + ch;
                    state_before[at] = line[line.len() - (taps - 1) + i][ch];
                    state_after[at] = last[last.len() - (taps - 1) + i][ch];
                }
            }
            first_token += len;
        }
        ConvSolution { out, state_before, state_after }
    }
}
