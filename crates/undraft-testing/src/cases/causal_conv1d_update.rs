//! Cases of the convolution.

use std::ops::Range;

use undraft_core::{Activation, Capture, ConvDims, DType};

use super::{Windows, capture_name, entries, gather, normals, paths, replay_name, seed, widen};
use crate::coverage::{Axis, Options};
use crate::harness::Memory;
use crate::oracle::causal_conv1d_update::Conv;

/// One call, as plain arrays.
#[derive(Clone, Debug)]
pub struct ConvCase {
    /// Sizes.
    pub dims: ConvDims,
    /// Dtype of x and out.
    pub io: DType,
    /// `[T, C]`.
    pub x: Vec<f32>,
    /// `[W, C]`.
    pub weight: Vec<f32>,
    /// `[C]`.
    pub bias: Option<Vec<f32>>,
    /// What follows the sum.
    pub activation: Activation,
    /// Sequences.
    pub windows: Windows,
    /// `[slots, W - 1, C]`.
    pub state: Vec<f32>,
    /// `[slots, max_tokens, C]`.
    pub log: Vec<f32>,
    /// Tokens of a slot's log.
    pub max_tokens: usize,
    /// Pending entries of each sequence; empty for none.
    pub num_pending: Vec<u32>,
    /// Which entries those are, `[num_seqs, max_tokens]`; empty for the first ones.
    pub pending_path: Vec<u32>,
}

/// Channels; 832 and 1024 are those of the test models.
const CHANNELS: [usize; 11] = [17, 1, 64, 3, 130, 96, 515, 8, 33, 832, 1024];
/// Cases of one dtype.
pub const NUM_CASES: usize = 77;

impl ConvCase {
    /// Case `index`; pending entries in half of them, draft trees in two of five.
    pub fn nth(io: DType, index: usize) -> Self {
        let mut rng = seed("causal_conv1d_update", io, index);
        let (channels, width) = (CHANNELS[index % CHANNELS.len()], 2 + index % 7);
        let dims = ConvDims::new(channels, width).unwrap_or_else(|e| panic!("the lists hold allowed sizes: {e}"));
        let turn = index / 2;
        let mut windows = Windows::batch(&mut rng, index);
        if matches!(turn % 5, 1 | 3) {
            // Of the list, these batches have windows that can branch.
            windows = Windows::batch(&mut rng, [1, 2, 6, 8, 12, 13, 18][(index + turn / 5) % 7]);
            windows.grow_trees(&mut rng);
        }
        let max_tokens = windows.longest() + rng.below(3) + index % 2;
        let log_scale = if index % 2 == 1 { 1.0 } else { 0.0 };
        let num_pending: Vec<u32> = match index % 2 {
            0 => Vec::new(),
            _ => {
                let pending = |&slot: &i32| if slot < 0 { u32::MAX } else { rng.below(max_tokens + 1) as u32 };
                windows.slots.iter().map(pending).collect()
            }
        };
        let has_path = index % 2 == 1 && (turn / 3).is_multiple_of(2);
        let pending_path = if has_path { paths(&mut rng, &windows, &num_pending, max_tokens) } else { Vec::new() };
        let magnitude = rng.pick(&[1.0, 0.05, 12.0]);
        Self {
            dims,
            io,
            x: normals(&mut rng, io, windows.num_tokens() * channels, magnitude),
            weight: normals(&mut rng, DType::F32, width * channels, 0.6),
            bias: (!index.is_multiple_of(3)).then(|| normals(&mut rng, DType::F32, channels, 0.5)),
            activation: if (index / 2).is_multiple_of(2) { Activation::Silu } else { Activation::None },
            state: normals(&mut rng, io, windows.num_slots * dims.state_len(), magnitude),
            log: normals(&mut rng, io, windows.num_slots * max_tokens * channels, magnitude * log_scale),
            max_tokens,
            num_pending,
            pending_path,
            windows,
        }
    }

    /// What the error messages call it.
    pub fn label(&self) -> String {
        format!(
            "{} C={} W={} bias={} {:?} lens={:?} slots={:?} parents={:?} pending={:?} path={:?}",
            self.io.name(),
            self.dims.channels(),
            self.dims.width(),
            self.bias.is_some(),
            self.activation,
            self.windows.lens,
            self.windows.slots,
            self.windows.parents,
            self.num_pending,
            self.pending_path,
        )
    }

    /// Options of a call of `causal_conv1d_update`.
    pub fn options(&self, capture: Capture, memory: Memory) -> Options {
        self.prompt_options(memory)
            .with(Axis::Capture, capture_name(capture))
            .with(Axis::Windows, self.windows.kind())
            .with(Axis::Replay, replay_name(&self.num_pending, &self.pending_path))
    }

    /// Options of a call of `causal_conv1d_fn`.
    pub fn prompt_options(&self, memory: Memory) -> Options {
        Options::new(self.io.name()).with(Axis::Memory, memory.name())
    }

    /// Pending entries of a sequence, 0 at padding.
    pub fn pending(&self, seq: usize) -> usize {
        if self.windows.slots[seq] < 0 { 0 } else { self.num_pending.get(seq).map_or(0, |&n| n as usize) }
    }

    /// The log entries that are pending, in order.
    pub fn pending_entries(&self, seq: usize) -> Vec<usize> {
        entries(&self.pending_path, seq, self.pending(seq), self.max_tokens)
    }

    /// The same for the oracle.
    pub fn oracle(&self) -> Conv {
        Conv {
            channels: self.dims.channels(),
            width: self.dims.width(),
            x: widen(&self.x),
            weight: widen(&self.weight),
            bias: self.bias.as_deref().map(widen),
            activation: self.activation,
            lens: self.windows.lens.clone(),
            slots: self.windows.optional_slots(),
            state: widen(&self.state),
            log: widen(&self.log),
            max_tokens: self.max_tokens,
            parents: (0..self.windows.num_seqs())
                .flat_map(|seq| (0..self.windows.lens[seq]).map(move |t| self.windows.parent(seq, t)))
                .collect(),
            pending: (0..self.windows.num_seqs()).map(|seq| self.pending_entries(seq)).collect(),
        }
    }

    /// Sequences `picked`, in that order, each cut to a range of its tokens; state, log and slots stay.
    pub fn pick(&self, picked: &[(usize, Range<usize>)]) -> Self {
        let (windows, tokens) = self.windows.pick(picked);
        let of_seqs = |values: &[u32], row: usize| -> Vec<u32> {
            let rows = picked.iter().flat_map(|&(seq, _)| &values[seq * row..][..row]);
            if values.is_empty() { Vec::new() } else { rows.copied().collect() }
        };
        Self {
            x: gather(&self.x, self.dims.channels(), &tokens),
            num_pending: of_seqs(&self.num_pending, 1),
            pending_path: of_seqs(&self.pending_path, self.max_tokens),
            windows,
            ..self.clone()
        }
    }

    /// The same sequences in other slots, each with its state and log.
    pub fn relocated(&self, slots: &[usize], num_slots: usize) -> Self {
        let to = self.windows.relocated(slots, num_slots);
        let state = self.windows.carry(&to, self.dims.state_len(), &self.state);
        let log = self.windows.carry(&to, self.max_tokens * self.dims.channels(), &self.log);
        Self { state, log, windows: to, ..self.clone() }
    }

    /// Overwrites the inputs of the tokens at position `from` and later of each sequence with NaN.
    pub fn spoil_from(&mut self, from: usize) {
        self.spoil(|_, t| t >= from);
    }

    /// Overwrites the inputs of the tokens (sequence, position) that are `wanted` with NaN.
    pub fn spoil(&mut self, wanted: impl Fn(usize, usize) -> bool) {
        let c = self.dims.channels();
        for (seq, tokens) in self.windows.ranges().into_iter().enumerate() {
            for t in tokens.clone().filter(|t| wanted(seq, t - tokens.start)) {
                self.x[t * c..(t + 1) * c].fill(f32::NAN);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_comes_with_and_without_bias_activation_and_pending() {
        let cases: Vec<ConvCase> = (0..NUM_CASES).map(|i| ConvCase::nth(DType::Bf16, i)).collect();
        for width in 2..=8 {
            for option in 0..8 {
                let found = cases.iter().filter(|c| c.dims.width() == width).any(|c| match option {
                    0 => c.bias.is_some(),
                    1 => c.bias.is_none(),
                    2 => c.activation == Activation::Silu,
                    3 => c.activation == Activation::None,
                    4 => !c.num_pending.is_empty() && c.windows.longest() > 0,
                    5 => c.windows.longest() >= width,
                    6 => c.windows.has_tree(),
                    _ => !c.pending_path.is_empty(),
                });
                assert!(found, "width {width}, option {option}");
            }
        }
    }
}
