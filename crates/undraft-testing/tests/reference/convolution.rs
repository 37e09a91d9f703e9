//! The convolution, of windows and of prompts.

use undraft_core::ops::{CausalConv1dFnArgs, CausalConv1dUpdateArgs};
use undraft_core::{Activation, Capture, CuSeqlens, Result, StateIndices};

use super::{Mutation, Reference, row, set_row, sigmoid};

impl Reference {
    /// One token's outputs from the `W - 1` inputs before it and its own.
    fn taps(
        &self,
        (weight, bias, activation): (&[f32], Option<&[f32]>, Activation),
        line: &[f32],
        x: &[f32],
    ) -> Vec<f32> {
        let c = x.len();
        let taps = line.len() / c + 1;
        let shift = usize::from(self.is(Mutation::ConvTapsShifted) && taps > 2);
        let one = |ch: usize| {
            let mut sum = match bias {
                Some(bias) if !self.is(Mutation::ConvBiasDropped) => bias[ch],
                _ => 0.0,
            };
            for j in 0..taps {
                if self.is(Mutation::ConvFnLastTapDropped) && j == 0 {
                    continue;
                }
                let from = if j == taps - 1 { x[ch] } else { line[(j + shift).min(taps - 2) * c + ch] };
                let tap = if self.is(Mutation::ConvTapsReversed) { taps - 1 - j } else { j };
                sum = weight[tap * c + ch].mul_add(from, sum);
            }
            let silu = activation == Activation::Silu && !self.is(Mutation::ConvNoActivation);
            if silu { sum * sigmoid(sum) } else { sum }
        };
        (0..c).map(one).collect()
    }

    pub(super) fn conv_update(&self, mut args: CausalConv1dUpdateArgs<'_>) -> Result<()> {
        let (c, taps) = (args.dims.channels(), args.dims.width());
        let seqs = CuSeqlens::new(args.cu_seqlens)?;
        let slots = StateIndices::new(args.state_indices, seqs.num_seqs(), args.num_slots)?;
        for seq in 0..seqs.num_seqs() {
            let Some(slot) = slots.slot(seq) else {
                seqs.range(seq).for_each(|t| set_row(&mut args.out, t, &vec![0.0; c]));
                continue;
            };
            let state = &mut args.state[slot * (taps - 1) * c..][..(taps - 1) * c];
            let pending = args.num_pending.get(seq).map_or(0, |&n| n as usize);
            if let Some(log) = args.log.as_ref().filter(|_| pending > 0 && !self.is(Mutation::ConvPendingIgnored)) {
                for n in 0..pending {
                    let entry = match args.pending_path {
                        [] => n,
                        _ if self.is(Mutation::ConvPathIgnored) => n,
                        path => path[seq * log.max_tokens + n] as usize,
                    };
                    state.rotate_left(c);
                    state[(taps - 2) * c..].copy_from_slice(&log.x[(slot * log.max_tokens + entry) * c..][..c]);
                }
            }
            // The inputs after each token, `[W - 1, C]`.
            let mut lines: Vec<Vec<f32>> = Vec::new();
            let range = seqs.range(seq);
            for (n, t) in range.clone().enumerate() {
                let x = row(&args.x, t, c);
                let parent = match args.parents {
                    [] => n.checked_sub(1),
                    _ if self.is(Mutation::ConvTreeTakenAsChain) => n.checked_sub(1),
                    parents => match usize::try_from(parents[t]).ok() {
                        Some(p) if self.is(Mutation::ConvTreeParentOffByOne) && p + 1 < n => Some(p + 1),
                        parent => parent,
                    },
                };
                let mut line = parent.map_or(&*state, |parent| &lines[parent]).to_vec();
                if self.is(Mutation::ConvTreeForgetsState) && !args.parents.is_empty() && parent.is_none() && n > 0 {
                    line.fill(0.0);
                }
                let y = self.taps((args.weight, args.bias, args.activation), &line, &x);
                line.rotate_left(c);
                let kept = if self.is(Mutation::ConvStateAfterActivation) { &y } else { &x };
                line[(taps - 2) * c..].copy_from_slice(kept);
                lines.push(line);
                let logged = !(self.is(Mutation::ConvLogKeptShort) && n + 1 == range.len());
                if let Some(log) = args.log.as_mut().filter(|_| args.capture == Capture::DeltaLog && logged) {
                    log.x[(slot * log.max_tokens + n) * c..][..c].copy_from_slice(&x);
                }
                set_row(&mut args.out, t, &y);
            }
            if let (Capture::Final, Some(line)) = (args.capture, lines.last()) {
                state.copy_from_slice(line);
            }
        }
        Ok(())
    }

    pub(super) fn conv_fn(&self, mut args: CausalConv1dFnArgs<'_>) -> Result<()> {
        let (c, taps) = (args.dims.channels(), args.dims.width());
        let seqs = CuSeqlens::new(args.cu_seqlens)?;
        let slots = StateIndices::new(args.state_indices, seqs.num_seqs(), args.num_slots)?;
        for seq in 0..seqs.num_seqs() {
            let Some(slot) = slots.slot(seq) else {
                seqs.range(seq).for_each(|t| set_row(&mut args.out, t, &vec![0.0; c]));
                continue;
            };
            let state = &mut args.state[slot * (taps - 1) * c..][..(taps - 1) * c];
            let mut line = state.to_vec();
            if self.is(Mutation::ConvFnStateIgnored) {
                line.fill(0.0);
            }
            for t in seqs.range(seq) {
                let x = row(&args.x, t, c);
                let y = self.taps((args.weight, args.bias, args.activation), &line, &x);
                line.rotate_left(c);
                line[(taps - 2) * c..].copy_from_slice(&x);
                set_row(&mut args.out, t, &y);
            }
            if !self.is(Mutation::ConvFnStateKept) && !seqs.range(seq).is_empty() {
                state.copy_from_slice(&line);
            }
        }
        Ok(())
    }
}
