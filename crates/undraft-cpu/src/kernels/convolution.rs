//! The causal depthwise convolution of one sequence and block of channels: one order of taps for windows, trees and prompts.

use std::ops::Range;

use fearless_simd::Simd;
use undraft_core::{Activation, Capture, MAX_CONV_WIDTH, Rows};

use super::rows::{SharedRows, read_f32};
use crate::executor::Executor;
use crate::shared::SharedMut;
use crate::simd::{self, LANES, Token};
use crate::with_simd;

/// Channels of one task.
const BLOCK: usize = 1024;

/// What all tasks share.
pub(super) struct Call<'a> {
    pub(super) channels: usize,
    pub(super) width: usize,
    pub(super) x: Rows<'a>,
    pub(super) weight: &'a [f32],
    pub(super) bias: Option<&'a [f32]>,
    pub(super) activation: Activation,
    pub(super) cu_seqlens: &'a [i32],
    pub(super) state_indices: &'a [i32],
    pub(super) state: SharedMut<'a, f32>,
    /// The log and its tokens a slot.
    pub(super) log: Option<(SharedMut<'a, f32>, usize)>,
    pub(super) capture: Capture,
    pub(super) out: SharedRows<'a>,
}

impl Call<'_> {
    /// Runs `task` for the slot, tokens and channels of every sequence and block; padding gets zeros instead.
    pub(super) fn run(&self, executor: &dyn Executor, task: impl Fn(usize, usize, Range<usize>, Range<usize>) + Sync) {
        let blocks = self.channels.div_ceil(BLOCK);
        executor.run(self.state_indices.len() * blocks, &|unit| {
            let (seq, block) = (unit / blocks, unit % blocks);
            let tokens = self.cu_seqlens[seq] as usize..self.cu_seqlens[seq + 1] as usize;
            let channels = block * BLOCK..self.channels.min((block + 1) * BLOCK);
            match usize::try_from(self.state_indices[seq]) {
                Ok(slot) => task(seq, slot, tokens, channels),
                Err(_) => {
                    for t in tokens {
                        // SAFETY: this token's channels belong to this task alone.
                        unsafe { self.out.write(t, channels.start, &[0.0; BLOCK][..channels.len()]) };
                    }
                }
            }
        });
    }

    /// Channels `channels` of row `row` of the slot's state.
    #[allow(clippy::mut_from_ref)]
    fn state_row(&self, slot: usize, row: usize, channels: &Range<usize>) -> &mut [f32] {
        let start = (slot * (self.width - 1) + row) * self.channels;
        // SAFETY: a slot stands once in a call (checked) and a task has its own channels; within the task a row is used
        // up before the next one is taken, except by `settle`, which takes two different rows.
        unsafe { self.state.part(start + channels.start..start + channels.end) }
    }

    /// Channels `channels` of entry `entry` of the slot's log.
    #[allow(clippy::mut_from_ref)]
    fn log_row(&self, slot: usize, entry: usize, channels: &Range<usize>) -> Option<&mut [f32]> {
        let (log, max_tokens) = self.log?;
        let start = (slot * max_tokens + entry) * self.channels;
        // SAFETY: as for the state.
        Some(unsafe { log.part(start + channels.start..start + channels.end) })
    }

    /// Moves the state on by the first `n` inputs of the log, or the `n` that `path` lists.
    pub(super) fn settle(&self, slot: usize, n: usize, path: &[u32], channels: &Range<usize>) {
        if n == 0 {
            return;
        }
        let entry = |position: usize| path.get(position).map_or(position, |&entry| entry as usize);
        let rows = self.width - 1;
        for row in 0..rows {
            // Sources never lie before their destination, so that going up overwrites nothing that is still needed.
            let to = self.state_row(slot, row, channels);
            if row + n < rows {
                to.copy_from_slice(self.state_row(slot, row + n, channels));
            } else if let Some(from) = self.log_row(slot, entry(row + n - rows), channels) {
                to.copy_from_slice(from);
            }
        }
    }

    /// The window's outputs; its inputs go into the log, or move the state on. `parents` is empty for a chain.
    pub(super) fn convolve(
        &self,
        token: Token,
        slot: usize,
        tokens: Range<usize>,
        parents: &[i32],
        channels: Range<usize>,
    ) {
        let rows = self.width - 1;
        // A ring of the last `width` inputs, as f32; slot of time i (state rows first) is i % width.
        let mut ring = [[0.0f32; BLOCK]; MAX_CONV_WIDTH];
        let mut out = [0.0f32; BLOCK];
        let n = channels.len();
        for row in 0..rows {
            ring[row][..n].copy_from_slice(self.state_row(slot, row, &channels));
        }
        let num_tokens = tokens.len();
        for (i, t) in tokens.enumerate() {
            let newest = if parents.is_empty() { (rows + i) % self.width } else { rows };
            read_f32(&self.x, t, channels.start, &mut ring[newest][..n]);
            if self.capture == Capture::DeltaLog
                && let Some(to) = self.log_row(slot, i, &channels)
            {
                to.copy_from_slice(&ring[newest][..n]);
            }
            if let Some(&parent) = parents.get(i) {
                self.gather_ancestors(slot, parent, parents, &channels, &mut ring);
            }
            with_simd!(token, s => self.taps(s, &ring, newest, channels.clone(), &mut out));
            // SAFETY: this token's channels belong to this task alone.
            unsafe { self.out.write(t, channels.start, &out[..n]) };
        }
        if self.capture == Capture::Final && num_tokens > 0 {
            for row in 0..rows {
                let from = &ring[(num_tokens + row) % self.width];
                self.state_row(slot, row, &channels).copy_from_slice(&from[..n]);
            }
        }
    }

    /// The inputs before a token of a tree, oldest first: its ancestors' from the log, before them those of the state.
    fn gather_ancestors(
        &self,
        slot: usize,
        parent: i32,
        parents: &[i32],
        channels: &Range<usize>,
        ring: &mut [[f32; BLOCK]; MAX_CONV_WIDTH],
    ) {
        let rows = self.width - 1;
        let (mut ancestor, mut from_state) = (parent, rows);
        for to in ring[..rows].iter_mut().rev() {
            let from = match usize::try_from(ancestor) {
                Ok(node) => {
                    ancestor = parents[node];
                    self.log_row(slot, node, channels)
                }
                Err(_) => {
                    from_state -= 1;
                    Some(self.state_row(slot, from_state, channels))
                }
            };
            if let Some(from) = from {
                to[..channels.len()].copy_from_slice(from);
            }
        }
    }

    /// One token's outputs: taps in rising order, one FMA each.
    #[inline(always)]
    fn taps<S: Simd>(
        &self,
        s: S,
        ring: &[[f32; BLOCK]; MAX_CONV_WIDTH],
        newest: usize,
        channels: Range<usize>,
        out: &mut [f32; BLOCK],
    ) {
        for c in (0..channels.len()).step_by(LANES) {
            let n = LANES.min(channels.len() - c);
            let at = channels.start + c;
            let load = |from: &[f32]| match from.first_chunk() {
                Some(whole) if n == LANES => simd::load(s, whole),
                _ => {
                    let mut padded = [0.0; LANES];
                    padded[..n].copy_from_slice(&from[..n]);
                    simd::load(s, &padded)
                }
            };
            let mut acc = self.bias.map_or(simd::zero(s), |bias| load(&bias[at..]));
            for tap in 0..self.width {
                let x = &ring[(newest + 1 + tap) % self.width][c..];
                acc = simd::fma(load(&self.weight[tap * self.channels + at..]), load(x), acc);
            }
            let y = match self.activation {
                Activation::Silu => simd::silu(s, acc),
                Activation::None => acc,
            };
            match out[c..].first_chunk_mut() {
                Some(to) => simd::store(y, to),
                None => unreachable!("BLOCK is a multiple of LANES"),
            }
        }
    }
}
