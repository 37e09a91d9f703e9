//! The gated full-attention mixer.

use undraft::cpu::simd::{self, LANES};
use undraft::cpu::{SharedMut, with_simd};

use super::block::Pass;
use crate::dense::attention::attend;
use crate::dense::matmul::forward_joint;
use crate::dense::{AlignedBuffer, Compute, KvCache, Linear, RmsNorm, Rope, lanes};

/// Attention whose output is multiplied by the sigmoid of a gate before it is projected.
#[derive(Debug)]
pub(super) struct GatedAttention {
    /// `[num_heads, 2, head_dim]` rows: of each head the query, then the gate.
    pub(super) q_proj: Linear,
    /// `[num_kv_heads * head_dim, H]`.
    pub(super) k_proj: Linear,
    /// `[num_kv_heads * head_dim, H]`.
    pub(super) v_proj: Linear,
    /// `[H, num_heads * head_dim]`.
    pub(super) o_proj: Linear,
    /// Of one head.
    pub(super) q_norm: RmsNorm,
    /// Of one head.
    pub(super) k_norm: RmsNorm,
    pub(super) num_heads: usize,
    pub(super) num_kv_heads: usize,
    pub(super) head_dim: usize,
}

/// Scratch memory of [`GatedAttention::forward`].
#[derive(Debug, Default)]
pub(super) struct AttentionScratch {
    query_and_gate: AlignedBuffer,
    query: AlignedBuffer,
    key: AlignedBuffer,
    rotated_key: AlignedBuffer,
    value: AlignedBuffer,
    attended: AlignedBuffer,
}

impl GatedAttention {
    /// Appends the tokens' keys and values to `kv` and attends with the last `num_queries` of them.
    ///
    /// `x` is `[n, H]`, `out` `[num_queries, H]`. A query's result does not depend on `num_queries`.
    pub(super) fn forward(
        &self,
        pass: &mut Pass<'_>,
        x: &[f32],
        num_queries: usize,
        kv: &mut KvCache,
        scratch: &mut AttentionScratch,
        out: &mut [f32],
    ) {
        let n = x.len() / self.q_proj.in_features();
        let (q_row, kv_row) = (self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim);
        let skipped = n - num_queries;
        let query_and_gate = scratch.query_and_gate.resized(num_queries * 2 * q_row);
        let (key, value) = (scratch.key.resized(n * kv_row), scratch.value.resized(n * kv_row));
        let (query, rotated_key) =
            (scratch.query.resized(num_queries * q_row), scratch.rotated_key.resized(n * kv_row));
        let attended = scratch.attended.resized(num_queries * q_row);

        if skipped == 0 {
            forward_joint(
                pass.compute,
                x,
                [(&self.q_proj, &mut *query_and_gate), (&self.k_proj, key), (&self.v_proj, value)],
            );
        } else {
            forward_joint(pass.compute, x, [(&self.k_proj, &mut *key), (&self.v_proj, value)]);
            self.q_proj.forward(pass.compute, &x[skipped * self.q_proj.in_features()..], query_and_gate);
        }
        let rope = pass.rope;
        let rotary_dim = rope.len() / n;
        let keys = Rotation { norm: &self.k_norm, rope, rotary_dim, stride: self.head_dim, scale: 1.0 };
        keys.run(pass.compute, key, rotated_key);
        let rope = &rope[skipped * rotary_dim..];
        let scale = (self.head_dim as f32).sqrt().recip();
        let queries = Rotation { norm: &self.q_norm, rope, rotary_dim, stride: 2 * self.head_dim, scale };
        queries.run(pass.compute, query_and_gate, query);
        kv.append(rotated_key, value);
        attend(pass.compute, kv, pass.paths, self.num_heads, query, attended);
        gate(pass.compute, self.head_dim, query_and_gate, attended);
        self.o_proj.forward(pass.compute, attended, out);
    }

    /// Bytes of the weights.
    pub(super) fn memory(&self) -> usize {
        [&self.q_proj, &self.k_proj, &self.v_proj, &self.o_proj].iter().map(|linear| linear.memory()).sum()
    }
}

/// What is done to queries and keys before they meet: norm of each head, rotation, scale.
struct Rotation<'a> {
    norm: &'a RmsNorm,
    /// `[n, rotary_dim]`.
    rope: &'a [f32],
    rotary_dim: usize,
    /// Elements between the starts of two heads.
    stride: usize,
    scale: f32,
}

impl Rotation<'_> {
    /// From `[n, heads, stride]`, of which the first values of each head are read, to `[n, heads, head_dim]`.
    fn run(&self, compute: &Compute, from: &[f32], to: &mut [f32]) {
        let head_dim = self.norm.len();
        let num_tokens = self.rope.len() / self.rotary_dim;
        let num_heads = to.len() / head_dim / num_tokens.max(1);
        let work = to.len() / LANES * 2;
        let to = SharedMut::new(to);
        compute.run(num_tokens, work, &|t| {
            let rope = &self.rope[t * self.rotary_dim..(t + 1) * self.rotary_dim];
            for head in t * num_heads..(t + 1) * num_heads {
                let from = &from[head * self.stride..][..head_dim];
                // SAFETY: a task writes the heads of its own token alone, one after the other.
                let to = unsafe { to.part(head * head_dim..(head + 1) * head_dim) };
                with_simd!(compute.token(), s => self.norm.row(s, from, to));
                Rope::rotate(to, rope);
                to.iter_mut().for_each(|x| *x *= self.scale);
            }
        });
    }
}

/// `attended *= sigmoid(gate)`; `attended` is `[heads of all tokens, head_dim]`, the gates lie behind the queries.
fn gate(compute: &Compute, head_dim: usize, query_and_gate: &[f32], attended: &mut [f32]) {
    let num_heads = attended.len() / head_dim;
    let work = attended.len() / LANES * 8;
    let attended = SharedMut::new(attended);
    compute.run(num_heads, work, &|head| {
        // SAFETY: a task writes its own head alone.
        let attended = unsafe { attended.part(head * head_dim..(head + 1) * head_dim) };
        let gate = &query_and_gate[(2 * head + 1) * head_dim..][..head_dim];
        with_simd!(compute.token(), s => lanes::zip(s, attended, gate, #[inline(always)] |x, gate| x * simd::sigmoid(s, gate)));
    });
}
