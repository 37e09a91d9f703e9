//! `chunk_gated_delta_rule`: the recurrence of 64 tokens at a time as matrix products and a triangular solve.
//!
//! With `D(t, s)` the product of the decay factors of the tokens after s up to t, and `D(t)` that of all up to t, the
//! deltas of a chunk that starts from state S0 satisfy
//!
//! ```text
//! delta_t = beta_t * (v_t - D(t) S0 k_t - sum_{s < t} D(t, s) (k_t . k_s) delta_s)
//! o_t     = scale * (D(t) S0 q_t + sum_{s <= t} D(t, s) (q_t . k_s) delta_s)
//! S1      = D(C) S0 + sum_s D(C, s) delta_s k_s^T
//! ```
//!
//! (the WY form of Yang et al., Gated Delta Networks, 2024). `D(t, s)` is built by products of factors `<= 1`, so that
//! nothing overflows, whatever the decay, and a factor of 0 is right as well.

use fearless_simd::Simd;
use undraft_core::ops::ChunkGatedDeltaRuleArgs;
use undraft_core::{Checked, GdnDims};

use super::matmul::{Matrix, matmul, transpose};
use super::prepare::{Window, Workspace, padded_k};
use super::rows::SharedRows;
use crate::executor::Executor;
use crate::shared::SharedMut;
use crate::simd::{LANES, Token};
use crate::with_simd;

/// Tokens of a chunk.
const CHUNK: usize = 64;

/// Sizes that the steps share: padded to whole vectors.
#[derive(Clone, Copy)]
struct Sizes {
    k_dim: usize,
    v_dim: usize,
    /// Elements between two tokens of the prepared q and k, `H * KP`.
    k_stride: usize,
    /// V, padded.
    vp: usize,
}

/// Scratch of one head.
struct Scratch<'a> {
    /// State, key-major `[K, VP]`.
    state: &'a mut [f32],
    /// Keys of the chunk, `[K, CHUNK]`.
    k_t: &'a mut [f32],
    /// `D(t, s)`, `[CHUNK, CHUNK]`, zero above the diagonal.
    decay: &'a mut [f32],
    /// `k_t . k_s` and later `D(t, s) (k_t . k_s)`.
    kk: &'a mut [f32],
    /// `q_t . k_s` and later `D(t, s) (q_t . k_s)`.
    qk: &'a mut [f32],
    /// `[CHUNK, VP]`.
    delta: &'a mut [f32],
    /// `[CHUNK, VP]`.
    out: &'a mut [f32],
}

impl Scratch<'_> {
    fn len(dims: &GdnDims) -> usize {
        let vp = dims.head_v_dim().next_multiple_of(LANES);
        dims.head_k_dim() * (vp + CHUNK) + 3 * CHUNK * CHUNK + 2 * CHUNK * vp
    }
    fn new<'a>(dims: &GdnDims, buffer: &'a mut [f32]) -> Scratch<'a> {
        let (k, vp) = (dims.head_k_dim(), dims.head_v_dim().next_multiple_of(LANES));
        let (state, rest) = buffer.split_at_mut(k * vp);
        let (k_t, rest) = rest.split_at_mut(k * CHUNK);
        let (decay, rest) = rest.split_at_mut(CHUNK * CHUNK);
        let (kk, rest) = rest.split_at_mut(CHUNK * CHUNK);
        let (qk, rest) = rest.split_at_mut(CHUNK * CHUNK);
        let (delta, out) = rest.split_at_mut(CHUNK * vp);
        Scratch { state, k_t, decay, kk, qk, delta, out }
    }
}

pub(crate) fn chunk_gated_delta_rule(
    token: Token,
    executor: &dyn Executor,
    workspace: &mut Workspace,
    args: Checked<ChunkGatedDeltaRuleArgs<'_>>,
) {
    let ChunkGatedDeltaRuleArgs { inputs, num_slots: _, state, checkpoints: _, out } = args.into_inner();
    let undraft_core::DataMut::F32(state) = state else { return };
    let dims = inputs.dims;
    let (h, hv, v_dim) = (dims.num_k_heads(), dims.num_v_heads(), dims.head_v_dim());
    let num_tokens = inputs.cu_seqlens[inputs.cu_seqlens.len() - 1] as usize;
    let Workspace { window, chunk, .. } = workspace;
    window.prepare(token, executor, &inputs, num_tokens);
    let window = &*window;

    let num_heads = inputs.state_indices.len() * hv;
    let groups = num_heads.min(4 * executor.num_threads());
    let scratch_len = Scratch::len(&dims);
    let scratch = SharedMut::new(chunk.resized(groups * scratch_len));
    let (state, out) = (SharedMut::new(state), SharedRows::new(out));
    executor.run(groups, &|group| {
        // SAFETY: each group has a part of the scratch of its own.
        let buffer = unsafe { scratch.part(group * scratch_len..(group + 1) * scratch_len) };
        for head in (group..num_heads).step_by(groups) {
            let (seq, v_head) = (head / hv, head % hv);
            let tokens = inputs.cu_seqlens[seq] as usize..inputs.cu_seqlens[seq + 1] as usize;
            let Ok(slot) = usize::try_from(inputs.state_indices[seq]) else {
                for t in tokens {
                    // SAFETY: the outputs of a sequence's head belong to one group.
                    unsafe { out.write(t, v_head * v_dim, &[0.0; 256][..v_dim]) };
                }
                continue;
            };
            let state_len = v_dim * dims.head_k_dim();
            let start = (slot * hv + v_head) * state_len;
            let sizes = Sizes {
                k_dim: dims.head_k_dim(),
                v_dim,
                k_stride: h * padded_k(dims.head_k_dim()),
                vp: v_dim.next_multiple_of(LANES),
            };
            let head = Head {
                token,
                sizes,
                window,
                hv,
                k_head: inputs.head_map.k_head(&dims, v_head),
                v_head,
                kp: padded_k(dims.head_k_dim()),
                scale: inputs.scale,
                out: &out,
            };
            // SAFETY: slots stand once in a call (checked) and a head belongs to one group.
            let state = unsafe { state.part(start..start + state_len) };
            head.run(tokens, state, Scratch::new(&dims, buffer));
        }
    });
}

/// One value head of one sequence.
struct Head<'a> {
    token: Token,
    sizes: Sizes,
    window: &'a Window,
    hv: usize,
    k_head: usize,
    v_head: usize,
    kp: usize,
    scale: f32,
    out: &'a SharedRows<'a>,
}

impl Head<'_> {
    fn run(&self, tokens: std::ops::Range<usize>, state: &mut [f32], mut scratch: Scratch<'_>) {
        let Sizes { k_dim, v_dim, vp, .. } = self.sizes;
        if tokens.is_empty() {
            return;
        }
        scratch.state.fill(0.0);
        transpose(v_dim, k_dim, (state, k_dim), (scratch.state, vp));
        for first in tokens.clone().step_by(CHUNK) {
            let n = CHUNK.min(tokens.end - first);
            with_simd!(self.token, s => self.chunk(s, first, n, &mut scratch));
            for t in 0..n {
                let row = &mut scratch.out[t * vp..t * vp + v_dim];
                row.iter_mut().for_each(|o| *o *= self.scale);
                // SAFETY: the outputs of a sequence's head belong to one group.
                unsafe { self.out.write(first + t, self.v_head * v_dim, row) };
            }
        }
        transpose(k_dim, v_dim, (scratch.state, vp), (state, k_dim));
    }

    /// Tokens `first .. first + n`.
    #[inline(always)]
    fn chunk<S: Simd>(&self, s: S, first: usize, n: usize, scratch: &mut Scratch<'_>) {
        let Sizes { k_dim, v_dim, k_stride, vp } = self.sizes;
        let Scratch { state, k_t, decay, kk, qk, delta, out } = scratch;
        let n_padded = n.next_multiple_of(LANES);
        let at = first * k_stride + self.k_head * self.kp;
        let q = Matrix { data: &self.window.q[at..], row: k_stride, col: 1 };
        let k = Matrix { data: &self.window.k[at..], row: k_stride, col: 1 };

        // D(t, s) row by row; `from_start[t]` is D(t).
        let alpha = |t: usize| self.window.decay[(first + t) * self.hv + self.v_head];
        let mut from_start = [1.0f32; CHUNK];
        decay[..n * CHUNK].fill(0.0);
        for t in 0..n {
            from_start[t] = alpha(t) * if t == 0 { 1.0 } else { from_start[t - 1] };
            let (before, row) = decay.split_at_mut(t * CHUNK);
            for i in 0..t {
                row[i] = before[(t - 1) * CHUNK + i] * alpha(t);
            }
            row[t] = 1.0;
        }

        transpose(n, k_dim, (k.data, k_stride), (k_t, CHUNK));
        for row in k_t.chunks_exact_mut(CHUNK) {
            row[n..n_padded].fill(0.0);
        }
        matmul(s, [n, n_padded, k_dim], k, (k_t, CHUNK), 0.0, (kk, CHUNK));
        matmul(s, [n, n_padded, k_dim], q, (k_t, CHUNK), 0.0, (qk, CHUNK));
        for (at, &d) in decay[..n * CHUNK].iter().enumerate() {
            if d == 0.0 {
                // Also above the diagonal, where the products are of no meaning.
                (kk[at], qk[at]) = (0.0, 0.0);
            } else {
                kk[at] *= d;
                qk[at] *= d;
            }
        }

        // delta_t, one row after the other.
        matmul(s, [n, vp, k_dim], k, (state, vp), 0.0, (delta, vp));
        for t in 0..n {
            let (before, row) = delta.split_at_mut(t * vp);
            let beta = self.window.beta[(first + t) * self.hv + self.v_head];
            let v = &self.window.v[((first + t) * self.hv + self.v_head) * v_dim..][..v_dim];
            let row = &mut row[..vp];
            for (x, v) in row.iter_mut().zip(v) {
                *x = v - from_start[t] * *x;
            }
            row[v_dim..].fill(0.0);
            let minus = {
                let weights = &mut kk[t * CHUNK..t * CHUNK + t];
                weights.iter_mut().for_each(|w| *w = -*w);
                Matrix { data: weights, row: 0, col: 1 }
            };
            matmul(s, [1, vp, t], minus, (before, vp), 1.0, (row, vp));
            row.iter_mut().for_each(|x| *x *= beta);
        }

        // o_t, without the scale.
        matmul(s, [n, vp, k_dim], q, (state, vp), 0.0, (out, vp));
        for t in 0..n {
            out[t * vp..(t + 1) * vp].iter_mut().for_each(|o| *o *= from_start[t]);
        }
        let qk = Matrix { data: qk, row: CHUNK, col: 1 };
        matmul(s, [n, vp, n], qk, (delta, vp), 1.0, (out, vp));

        // S1: the deltas weighted by D(C, s).
        for t in 0..n {
            let weight = decay[(n - 1) * CHUNK + t];
            delta[t * vp..(t + 1) * vp].iter_mut().for_each(|d| *d *= weight);
        }
        let k_t = Matrix { data: k_t, row: CHUNK, col: 1 };
        matmul(s, [k_dim, vp, n], k_t, (delta, vp), from_start[n - 1], (state, vp));
    }
}
