//! `causal_conv1d_update`: settle the kept inputs, convolve the window, keep or move on the state.

use fearless_simd::Simd;
use undraft_core::ops::{CausalConv1dUpdateArgs, ConvLogMut};
use undraft_core::{Activation, Capture, Checked, MAX_CONV_WIDTH, Rows};

use super::rows::{SharedRows, read_f32};
use crate::executor::Executor;
use crate::shared::SharedMut;
use crate::simd::{self, LANES, Token};
use crate::with_simd;

/// Channels of one task.
const BLOCK: usize = 1024;

/// What all tasks share.
struct Call<'a> {
    channels: usize,
    width: usize,
    x: Rows<'a>,
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    activation: Activation,
    state: SharedMut<'a, f32>,
    log: Option<(SharedMut<'a, f32>, usize)>,
    capture: Capture,
    out: SharedRows<'a>,
}

pub(crate) fn causal_conv1d_update(token: Token, executor: &dyn Executor, args: Checked<CausalConv1dUpdateArgs<'_>>) {
    let args = args.into_inner();
    let call = Call {
        channels: args.dims.channels(),
        width: args.dims.width(),
        x: args.x,
        weight: args.weight,
        bias: args.bias,
        activation: args.activation,
        state: SharedMut::new(args.state),
        log: args.log.map(|ConvLogMut { x, max_tokens }| (SharedMut::new(x), max_tokens)),
        capture: args.capture,
        out: SharedRows::new(args.out),
    };
    let blocks = call.channels.div_ceil(BLOCK);
    executor.run(args.state_indices.len() * blocks, &|task| {
        let (seq, block) = (task / blocks, task % blocks);
        let tokens = args.cu_seqlens[seq] as usize..args.cu_seqlens[seq + 1] as usize;
        let channels = block * BLOCK..call.channels.min((block + 1) * BLOCK);
        match usize::try_from(args.state_indices[seq]) {
            Ok(slot) => {
                let num_pending = args.num_pending.get(seq).map_or(0, |&n| n as usize);
                call.settle(slot, num_pending, channels.clone());
                call.convolve(token, slot, tokens, channels);
            }
            Err(_) => {
                for t in tokens {
                    // SAFETY: this token's channels belong to this task alone.
                    unsafe { call.out.write(t, channels.start, &[0.0; BLOCK][..channels.len()]) };
                }
            }
        }
    });
}

impl Call<'_> {
    /// Channels `channels` of row `row` of the slot's state.
    #[allow(clippy::mut_from_ref)]
    fn state_row(&self, slot: usize, row: usize, channels: &std::ops::Range<usize>) -> &mut [f32] {
        let start = (slot * (self.width - 1) + row) * self.channels;
        // SAFETY: a slot stands once in a call (checked) and a task has its own channels; within the task a row is used
        // up before the next one is taken, except by `settle`, which takes two different rows.
        unsafe { self.state.part(start + channels.start..start + channels.end) }
    }

    /// Channels `channels` of entry `entry` of the slot's log.
    #[allow(clippy::mut_from_ref)]
    fn log_row(&self, slot: usize, entry: usize, channels: &std::ops::Range<usize>) -> Option<&mut [f32]> {
        let (log, max_tokens) = self.log?;
        let start = (slot * max_tokens + entry) * self.channels;
        // SAFETY: as for the state.
        Some(unsafe { log.part(start + channels.start..start + channels.end) })
    }

    /// Moves the state on by the first `n` inputs of the log.
    fn settle(&self, slot: usize, n: usize, channels: std::ops::Range<usize>) {
        if n == 0 {
            return;
        }
        let rows = self.width - 1;
        for row in 0..rows {
            // Sources never lie before their destination, so that going up overwrites nothing that is still needed.
            let to = self.state_row(slot, row, &channels);
            if row + n < rows {
                to.copy_from_slice(self.state_row(slot, row + n, &channels));
            } else if let Some(from) = self.log_row(slot, row + n - rows, &channels) {
                to.copy_from_slice(from);
            }
        }
    }

    fn convolve(&self, token: Token, slot: usize, tokens: std::ops::Range<usize>, channels: std::ops::Range<usize>) {
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
            let newest = (rows + i) % self.width;
            read_f32(&self.x, t, channels.start, &mut ring[newest][..n]);
            if self.capture == Capture::DeltaLog
                && let Some(to) = self.log_row(slot, i, &channels)
            {
                to.copy_from_slice(&ring[newest][..n]);
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

    /// One token's outputs: taps in rising order, one FMA each.
    #[inline(always)]
    fn taps<S: Simd>(
        &self,
        s: S,
        ring: &[[f32; BLOCK]; MAX_CONV_WIDTH],
        newest: usize,
        channels: std::ops::Range<usize>,
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
