//! What the recurrence needs of each token, made once before the state is touched: q and k in f32, normalised and padded
//! to whole vectors, v in f32, decay factors and beta; and copies of the log entries to replay, since the window
//! overwrites them.

use fearless_simd::Simd;
use undraft_core::ops::DeltaRuleInputs;
use undraft_core::{DType, DecayShape, DeltaLogMut, GdnDims, PAD_SLOT, QkNorm, Rounding};

use super::channel_decay::channel_decay;
use super::rows::read_f32;
use super::tree::TreePlan;
use crate::aligned::AlignedBuffer;
use crate::executor::Executor;
use crate::shared::SharedMut;
use crate::simd::{self, LANES, Token};
use crate::with_simd;

/// Scratch memory of the recurrence; grows and stays.
#[derive(Default)]
pub(crate) struct Workspace {
    pub(super) window: Window,
    pub(super) pending: Pending,
    /// Outputs in f32 before they are rounded, `[num_tokens, HV, V]`.
    pub(super) out: AlignedBuffer,
    pub(super) tree: TreePlan,
    /// States of tokens that wait for a child: each task's `[num_buffers, rows of a block, KP]`.
    pub(super) tree_states: AlignedBuffer,
    /// Scratch of the chunked form.
    pub(super) chunk: AlignedBuffer,
    /// `cu_seqlens` of a call without tokens.
    pub(super) no_tokens: Vec<i32>,
}

/// The window's tokens.
#[derive(Default)]
pub(super) struct Window {
    /// `[num_tokens, H, KP]`.
    pub(super) q: AlignedBuffer,
    /// `[num_tokens, H, KP]`.
    pub(super) k: AlignedBuffer,
    /// `[num_tokens, HV, V]`.
    pub(super) v: AlignedBuffer,
    /// `[num_tokens, HV, decay_stride(dims)]`.
    pub(super) decay: AlignedBuffer,
    /// `[num_tokens, HV]`.
    pub(super) beta: AlignedBuffer,
}

/// Log entries to replay.
#[derive(Default)]
pub(super) struct Pending {
    /// First entry of each sequence, `[num_seqs + 1]`.
    pub(super) offsets: Vec<usize>,
    /// `[num_pending, H, KP]`.
    pub(super) k: AlignedBuffer,
    /// `[num_pending, HV, decay_stride(dims)]`.
    pub(super) decay: AlignedBuffer,
    /// Entries of the slot's log, `[num_pending]`.
    pub(super) entries: Vec<usize>,
}

/// Vectors that a row of K elements takes. A size of its own is compiled for each of these.
pub(super) fn num_chunks(head_k_dim: usize) -> usize {
    let chunks = head_k_dim.div_ceil(LANES);
    [1, 2, 4, 6, 8, 12, 16].into_iter().find(|&c| c >= chunks).unwrap_or(16)
}

/// Elements of a padded key, `KP`.
pub(super) fn padded_k(head_k_dim: usize) -> usize {
    num_chunks(head_k_dim) * LANES
}

/// Elements of a value head's prepared decay: 1, or `KP` where each channel has its own (padded with 1).
pub(super) fn decay_stride(dims: &GdnDims) -> usize {
    match dims.decay_shape() {
        DecayShape::PerHead => 1,
        DecayShape::PerChannel => padded_k(dims.head_k_dim()),
    }
}

/// Sum of squares of a padded vector, in the kernels' order.
#[inline(always)]
fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut acc = [simd::zero(s); 2];
    for (i, chunk) in x.as_chunks::<LANES>().0.iter().enumerate() {
        let v = simd::load(s, chunk);
        acc[i & 1] = simd::fma(v, v, acc[i & 1]);
    }
    simd::sum(acc[0] + acc[1])
}

/// One head of q or k: normalised as asked, rounded as asked. `x` is padded with zeros.
fn normalise(token: Token, x: &mut [f32], norm: QkNorm, round_to: DType) {
    if let QkNorm::L2Norm { eps } = norm {
        let sum = with_simd!(token, s => sum_of_squares(s, x));
        let factor = 1.0 / (sum + eps).sqrt();
        x.iter_mut().for_each(|x| *x *= factor);
    }
    if round_to != DType::F32 {
        x.iter_mut().for_each(|x| *x = round_to.round(*x));
    }
}

impl Window {
    /// Fills the buffers for the tokens of `inputs`.
    pub(super) fn prepare(
        &mut self,
        token: Token,
        executor: &dyn Executor,
        inputs: &DeltaRuleInputs<'_>,
        num_tokens: usize,
    ) {
        let dims = inputs.dims;
        let (h, hv, k_dim) = (dims.num_k_heads(), dims.num_v_heads(), dims.head_k_dim());
        let kp = padded_k(k_dim);
        let round_to = match inputs.rounding {
            Rounding::F32 => DType::F32,
            Rounding::Io => inputs.k.dtype(),
        };
        let q = SharedMut::new(self.q.resized(num_tokens * h * kp));
        let k = SharedMut::new(self.k.resized(num_tokens * h * kp));
        let v = SharedMut::new(self.v.resized(num_tokens * dims.value_dim()));
        let ds = decay_stride(&dims);
        let decay = SharedMut::new(self.decay.resized(num_tokens * hv * ds));
        let beta = SharedMut::new(self.beta.resized(num_tokens * hv));
        executor.run(num_tokens, &|t| {
            for (rows, to) in [(&inputs.q, &q), (&inputs.k, &k)] {
                // SAFETY: task t alone takes the parts of token t, each once at a time.
                let to = unsafe { to.part(t * h * kp..(t + 1) * h * kp) };
                for (head, to) in to.chunks_exact_mut(kp).enumerate() {
                    let (value, padding) = to.split_at_mut(k_dim);
                    read_f32(rows, t, head * k_dim, value);
                    padding.fill(0.0);
                    normalise(token, to, inputs.qk_norm, round_to);
                }
            }
            // SAFETY: as above.
            let (v, decay, beta) = unsafe {
                let heads = t * hv..(t + 1) * hv;
                let decay = decay.part(heads.start * ds..heads.end * ds);
                (v.part(t * dims.value_dim()..(t + 1) * dims.value_dim()), decay, beta.part(heads))
            };
            read_f32(&inputs.v, t, 0, v);
            for head in 0..hv {
                match dims.decay_shape() {
                    DecayShape::PerHead => decay[head] = inputs.decay.factor(&dims, t, head, 0),
                    DecayShape::PerChannel => {
                        let to = &mut decay[head * ds..(head + 1) * ds];
                        channel_decay(token, &dims, &inputs.decay, t, head, to);
                    }
                }
                beta[head] = round_to.round(inputs.beta.value(t * hv + head));
            }
        });
    }
}

impl Pending {
    /// Copies the `num_pending[s]` log entries of each sequence's slot that `path` lists, or the first ones.
    pub(super) fn prepare(
        &mut self,
        dims: &GdnDims,
        state_indices: &[i32],
        num_pending: &[u32],
        path: &[u32],
        log: Option<&DeltaLogMut<'_>>,
    ) {
        self.entries.clear();
        self.offsets.clear();
        self.offsets.push(0);
        let mut total = 0;
        for (seq, &slot) in state_indices.iter().enumerate() {
            total += if slot == PAD_SLOT { 0 } else { num_pending.get(seq).map_or(0, |&n| n as usize) };
            self.offsets.push(total);
        }
        let (Some(log), 1..) = (log, total) else { return };
        let (h, hv, k_dim) = (dims.num_k_heads(), dims.num_v_heads(), dims.head_k_dim());
        let kp = padded_k(k_dim);
        let k = self.k.resized(total * h * kp);
        let (d_dim, ds) = (dims.decay_dim(), decay_stride(dims));
        let decay = self.decay.resized(total * hv * ds);
        for (seq, &slot) in state_indices.iter().enumerate() {
            let range = self.offsets[seq]..self.offsets[seq + 1];
            let first = slot.max(0) as usize * log.max_tokens;
            for (position, to) in range.enumerate() {
                let entry = match path {
                    [] => position,
                    path => path[seq * log.max_tokens + position] as usize,
                };
                self.entries.push(entry);
                let entry = first + entry;
                let from = &log.k[entry * h * k_dim..(entry + 1) * h * k_dim];
                let to_k = &mut k[to * h * kp..(to + 1) * h * kp];
                for (from, to) in from.chunks_exact(k_dim).zip(to_k.chunks_exact_mut(kp)) {
                    to[..k_dim].copy_from_slice(from);
                    to[k_dim..].fill(0.0);
                }
                let from = log.decay[entry * hv * d_dim..(entry + 1) * hv * d_dim].chunks_exact(d_dim);
                for (from, to) in from.zip(decay[to * hv * ds..(to + 1) * hv * ds].chunks_exact_mut(ds)) {
                    to[..d_dim].copy_from_slice(from);
                    to[d_dim..].fill(1.0);
                }
            }
        }
    }
}
