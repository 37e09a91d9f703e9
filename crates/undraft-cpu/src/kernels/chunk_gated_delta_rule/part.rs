//! A sequence's tokens over some panels of columns, chunk after chunk.

use std::ops::Range;

use undraft_core::HeadMap;
use undraft_core::MAX_HEAD_DIM;
use undraft_core::ops::DeltaRuleInputs;

use super::super::channel_decay::channel_decay;
use super::super::matmul::{Lanes, transpose};
use super::super::rows::SharedRows;
use super::ahead::Ahead;
use super::panel::{self, Columns, Factors, PANEL, TokenFactors};
use super::per_channel::{self, Buffers};
use super::scratch::{Scratch, Sizes};
use super::{CHUNK, keys, per_head};
use crate::simd::{LANES, Token};

/// What all parts share.
pub(super) struct Call<'a> {
    pub(super) token: Token,
    pub(super) sizes: Sizes,
    pub(super) inputs: &'a DeltaRuleInputs<'a>,
    /// Rows of K, `[num_slots, HV, V]` of them.
    pub(super) state: SharedRows<'a>,
    /// Rows of K, `[num_checkpoints, HV, V]` of them.
    pub(super) checkpoints: Option<SharedRows<'a>>,
    /// Tokens between two checkpoints.
    pub(super) every: usize,
    pub(super) out: SharedRows<'a>,
}

/// One sequence.
pub(super) struct Sequence {
    pub(super) tokens: Range<usize>,
    /// `None` for padding.
    pub(super) slot: Option<usize>,
    pub(super) first_checkpoint: usize,
}

/// The panels of one value head that a part holds.
#[derive(Clone, Copy)]
struct HeadPanels {
    k_head: usize,
    v_head: usize,
    /// Columns of the value head.
    first_column: usize,
    end_column: usize,
    /// Where they lie among the part's states.
    first_panel: usize,
}

impl HeadPanels {
    fn num_blocks(&self) -> usize {
        (self.end_column - self.first_column).div_ceil(LANES)
    }
}

impl Call<'_> {
    /// Runs a sequence over panels `panels` of the value heads, counted key head by key head.
    ///
    /// # Safety
    /// No other thread touches the states, checkpoints and outputs of these columns meanwhile.
    pub(super) unsafe fn run(&self, sequence: &Sequence, panels: Range<usize>, scratch: &mut Scratch<'_>) {
        let heads = || self.heads(panels.clone());
        let Some(slot) = sequence.slot else {
            for (head, t) in heads().flat_map(|head| sequence.tokens.clone().map(move |t| (head, t))) {
                let (column, width) = self.out_columns(&head);
                // SAFETY: the caller's promise.
                unsafe { self.out.write(t, column, &[0.0; MAX_HEAD_DIM][..width]) };
            }
            return;
        };
        if sequence.tokens.is_empty() {
            return;
        }
        for head in heads() {
            // SAFETY: the caller's promise.
            unsafe { self.load(&self.state, slot, &head, scratch) };
        }
        let (mut first, start) = (sequence.tokens.start, sequence.tokens.start);
        while first < sequence.tokens.end {
            let until_checkpoint = self.every - (first - start) % self.every;
            let tokens = first..sequence.tokens.end.min(first + CHUNK.min(until_checkpoint));
            first = tokens.end;
            let mut k_head = None;
            let mut rest = heads().peekable();
            while let Some(head) = rest.next() {
                if k_head.replace(head.k_head) != Some(head.k_head) {
                    self.keys(head.k_head, tokens.clone(), scratch);
                }
                let next = match rest.peek() {
                    Some(next) => Some((*next, tokens.clone())),
                    None => heads().next().map(|next| (next, first..sequence.tokens.end.min(first + CHUNK))),
                };
                let mut ahead = self.ahead(&head, tokens.clone(), next);
                // SAFETY: the caller's promise.
                unsafe { self.chunk(&head, tokens.clone(), &mut ahead, scratch) };
            }
            if let Some(checkpoints) = &self.checkpoints
                && (first - start).is_multiple_of(self.every)
            {
                let checkpoint = sequence.first_checkpoint + (first - start) / self.every - 1;
                for head in heads() {
                    // SAFETY: the caller's promise.
                    unsafe { self.store(checkpoints, checkpoint, &head, scratch) };
                }
            }
        }
        for head in heads() {
            // SAFETY: the caller's promise.
            unsafe { self.store(&self.state, slot, &head, scratch) };
        }
    }

    /// The panels, value head by value head.
    fn heads(&self, panels: Range<usize>) -> impl Iterator<Item = HeadPanels> {
        let (dims, per_head) = (self.inputs.dims, self.sizes.panels_per_head);
        let per_key_head = dims.num_v_heads() / dims.num_k_heads();
        let head_map = self.inputs.head_map;
        (panels.start / per_head..panels.end.div_ceil(per_head)).map(move |i| {
            let of_head = panels.start.max(i * per_head)..panels.end.min((i + 1) * per_head);
            let column = |panel: usize| dims.head_v_dim().min((panel - i * per_head) * PANEL * LANES);
            let (k_head, nth) = (i / per_key_head, i % per_key_head);
            HeadPanels {
                k_head,
                v_head: match head_map {
                    HeadMap::Grouped => i,
                    HeadMap::Tiled => nth * dims.num_k_heads() + k_head,
                },
                first_column: column(of_head.start),
                end_column: column(of_head.end),
                first_panel: of_head.start - panels.start,
            }
        })
    }

    /// Where the head's columns lie in a row of v or of the outputs, and how many they are.
    fn out_columns(&self, head: &HeadPanels) -> (usize, usize) {
        (head.v_head * self.inputs.dims.head_v_dim() + head.first_column, head.end_column - head.first_column)
    }

    /// First block of a value head among the part's states.
    fn states<'s>(&self, head: &HeadPanels, states: &'s mut [Lanes]) -> &'s mut [Lanes] {
        let start = head.first_panel * PANEL * self.sizes.kp;
        &mut states[start..][..head.num_blocks() * self.sizes.kp]
    }

    /// Reads the head's columns of a state, transposed.
    ///
    /// # Safety
    /// No other thread writes them meanwhile.
    unsafe fn load(&self, from: &SharedRows<'_>, index: usize, head: &HeadPanels, scratch: &mut Scratch<'_>) {
        let dims = &self.inputs.dims;
        let (kp, k_dim) = (self.sizes.kp, dims.head_k_dim());
        let first_row = (index * dims.num_v_heads() + head.v_head) * dims.head_v_dim();
        let states = self.states(head, scratch.states);
        for (first, block) in (head.first_column..head.end_column).step_by(LANES).zip(states.chunks_exact_mut(kp)) {
            for (i, row) in scratch.rows.chunks_exact_mut(kp / LANES).enumerate() {
                let (values, padding) = row.as_flattened_mut().split_at_mut(k_dim);
                if first + i < head.end_column {
                    // SAFETY: the caller's promise.
                    unsafe { from.read(first_row + first + i, 0, values) };
                } else {
                    values.fill(0.0);
                }
                padding.fill(0.0);
            }
            for (i, to) in block.as_chunks_mut().0.iter_mut().enumerate() {
                transpose(self.token, &scratch.rows[i..], kp / LANES, to);
            }
        }
    }

    /// Writes the head's columns of a state, transposed.
    ///
    /// # Safety
    /// No other thread touches them meanwhile.
    unsafe fn store(&self, to: &SharedRows<'_>, index: usize, head: &HeadPanels, scratch: &mut Scratch<'_>) {
        let dims = &self.inputs.dims;
        let (kp, k_dim) = (self.sizes.kp, dims.head_k_dim());
        let first_row = (index * dims.num_v_heads() + head.v_head) * dims.head_v_dim();
        let states = self.states(head, scratch.states);
        for (first, block) in (head.first_column..head.end_column).step_by(LANES).zip(states.chunks_exact(kp)) {
            for (i, channels) in block.as_chunks::<LANES>().0.iter().enumerate() {
                let mut values = [[0.0; LANES]; LANES];
                transpose(self.token, channels, 1, &mut values);
                for (row, values) in scratch.rows.chunks_exact_mut(kp / LANES).zip(values) {
                    row[i] = values;
                }
            }
            let num_rows = LANES.min(head.end_column - first);
            for (i, row) in scratch.rows.chunks_exact(kp / LANES).take(num_rows).enumerate() {
                // SAFETY: the caller's promise.
                unsafe { to.write(first_row + first + i, 0, &row.as_flattened()[..k_dim]) };
            }
        }
    }

    /// Reads the chunk's queries and keys; where all value heads decay them alike, also lays them out and multiplies them.
    fn keys(&self, k_head: usize, tokens: Range<usize>, scratch: &mut Scratch<'_>) {
        let (token, inputs, kp, n) = (self.token, self.inputs, self.sizes.kp, tokens.len());
        let (k_dim, row_len) = (inputs.dims.head_k_dim(), kp / LANES);
        for (rows, to) in [(&inputs.q, &mut *scratch.q), (&inputs.k, &mut *scratch.k)] {
            keys::read(rows, tokens.clone(), k_head * k_dim, k_dim, to, row_len);
            keys::normalise(token, inputs, &mut to[..n * row_len], row_len);
        }
        if self.sizes.per_channel {
            return;
        }
        keys::token_minor(token, n, scratch.q, row_len, scratch.q_t);
        keys::token_minor(token, n, scratch.k, row_len, scratch.k_t);
        keys::channel_blocks(token, &scratch.k[..n * row_len], row_len, scratch.k_blocks);
        for block in 0..n.div_ceil(LANES) {
            let here = block * kp..(block + 1) * kp;
            let operands = keys::Operands {
                k_s: &scratch.k_t[..here.end],
                k_t: &scratch.k_t[here.clone()],
                q_t: &scratch.q_t[here],
                k_dim,
            };
            let at = block * CHUNK;
            keys::products(token, &operands, &mut scratch.kk[at..], &mut scratch.qk[at..]);
        }
    }

    /// What a chunk of `head` writes, and what the next one reads.
    fn ahead(&self, head: &HeadPanels, tokens: Range<usize>, next: Option<(HeadPanels, Range<usize>)>) -> Ahead {
        let (inputs, n) = (self.inputs, tokens.len());
        let mut ahead = Ahead::new();
        if let Some((next, next_tokens)) = next {
            let (column, width) = self.out_columns(&next);
            ahead.add_input(&inputs.v, next_tokens.clone(), column, width);
            if next.k_head != head.k_head || next_tokens != tokens {
                let k_dim = inputs.dims.head_k_dim();
                for rows in [&inputs.q, &inputs.k] {
                    ahead.add_input(rows, next_tokens.clone(), next.k_head * k_dim, k_dim);
                }
            }
        }
        let (column, width) = self.out_columns(head);
        ahead.add_output(&self.out, tokens, column, width);
        ahead.share_out(panel::num_tiles(n, self.sizes.kp) * head.num_blocks().div_ceil(PANEL));
        ahead
    }

    /// One chunk of a value head.
    ///
    /// # Safety
    /// No other thread touches the outputs of its columns meanwhile.
    unsafe fn chunk(&self, head: &HeadPanels, tokens: Range<usize>, ahead: &mut Ahead, scratch: &mut Scratch<'_>) {
        let (inputs, n, first) = (self.inputs, tokens.len(), tokens.start);
        let (dims, kp) = (&inputs.dims, self.sizes.kp);
        let (hv, row_len) = (dims.num_v_heads(), head.num_blocks());
        let (column, width) = self.out_columns(head);
        keys::read(&inputs.v, tokens.clone(), column, width, scratch.values, row_len);
        let round_to = keys::round_to(inputs);
        let mut factors =
            TokenFactors { beta: [0.0; CHUNK], from_start: [0.0; CHUNK], minus: [0.0; CHUNK], to_end: [0.0; CHUNK] };
        for (beta, t) in factors.beta.iter_mut().zip(tokens.clone()) {
            *beta = round_to.round(inputs.beta.value(t * hv + head.v_head));
        }
        if self.sizes.per_channel {
            for (i, t) in tokens.enumerate() {
                let mut alpha = [[1.0; LANES]; MAX_HEAD_DIM / LANES];
                let to = &mut alpha.as_flattened_mut()[..kp];
                channel_decay(self.token, dims, &inputs.decay, t, head.v_head, to);
                scratch.alpha[i * kp / LANES..][..kp / LANES].copy_from_slice(&alpha[..kp / LANES]);
            }
            let mut buffers = Buffers {
                alpha: scratch.alpha,
                rows: scratch.decayed,
                k_s: scratch.k_s,
                k_t: scratch.k_t,
                q_t: scratch.q_t,
                k: scratch.k_blocks,
                w_k: scratch.w_k,
                w_q: scratch.w_q,
                carry: scratch.carry,
            };
            let rows = [&*scratch.q, &*scratch.k];
            per_channel::weights(self.token, n, dims.head_k_dim(), rows, &mut buffers, &mut factors);
        } else {
            let mut alpha = [1.0; CHUNK];
            for (alpha, t) in alpha.iter_mut().zip(tokens) {
                *alpha = inputs.decay.factor(dims, t, head.v_head, 0);
            }
            let products = [&*scratch.kk, &*scratch.qk];
            let weights = [&mut *scratch.w_k, &mut *scratch.w_q];
            let decay = per_head::weights(self.token, n, &alpha, products, weights, &mut factors);
            scratch.carry.fill(decay);
        }
        let factors = Factors {
            n,
            k_dim: dims.head_k_dim(),
            q_t: scratch.q_t,
            k_t: scratch.k_t,
            k: scratch.k_blocks,
            w_k: scratch.w_k,
            w_q: scratch.w_q,
            tokens: &factors,
            carry: scratch.carry,
            scale: inputs.scale,
        };
        let states = self.states(head, scratch.states);
        for (i, state) in states.chunks_mut(PANEL * kp).enumerate() {
            let (values, delta) = (&mut *scratch.values, &mut *scratch.delta);
            panel::run(self.token, &factors, &mut Columns { state, values, row_len, first: i * PANEL, delta, ahead });
        }
        for (t, row) in (first..first + n).zip(scratch.values.chunks_exact(row_len)) {
            // SAFETY: the caller's promise.
            unsafe { self.out.write(t, column, &row.as_flattened()[..width]) };
        }
    }
}
