//! The gated MLP.

use undraft::cpu::simd::{self, LANES};
use undraft::cpu::{SharedMut, with_simd};

use super::matmul::forward_joint;
use super::{AlignedBuffer, Compute, Linear, lanes};

/// `down(silu(gate x) * up x)`.
#[derive(Clone, Debug)]
pub struct Mlp {
    /// `[inner, hidden]`.
    pub gate: Linear,
    /// `[inner, hidden]`.
    pub up: Linear,
    /// `[hidden, inner]`.
    pub down: Linear,
}

/// Scratch memory of [`Mlp::forward`].
#[derive(Debug, Default)]
pub struct MlpScratch {
    gate: AlignedBuffer,
    up: AlignedBuffer,
}

impl Mlp {
    /// `out[t] = mlp(x[t])`; both are `[n, hidden]`.
    ///
    /// # Panics
    /// If the buffers are not rows of these sizes.
    pub fn forward(&self, compute: &Compute, x: &[f32], scratch: &mut MlpScratch, out: &mut [f32]) {
        let inner = self.gate.out_features();
        let num_tokens = x.len() / self.gate.in_features();
        let gate = scratch.gate.resized(num_tokens * inner);
        let up = scratch.up.resized(num_tokens * inner);
        forward_joint(compute, x, [(&self.gate, gate), (&self.up, up)]);
        silu_mul(compute, inner, gate, up);
        self.down.forward(compute, gate, out);
    }

    /// Bytes of the weights.
    pub fn memory(&self) -> usize {
        self.gate.memory() + self.up.memory() + self.down.memory()
    }
}

/// `gate = silu(gate) * up`, `[n, inner]`.
fn silu_mul(compute: &Compute, inner: usize, gate: &mut [f32], up: &[f32]) {
    // About 16 instructions a vector, of which a division is the slowest.
    let work = gate.len() / LANES * 8;
    let num_rows = up.len() / inner.max(1);
    let gate = SharedMut::new(gate);
    compute.run(num_rows, work, &|t| {
        let row = t * inner..(t + 1) * inner;
        // SAFETY: a task writes its own row alone.
        let gate = unsafe { gate.part(row.clone()) };
        with_simd!(compute.token(), s => lanes::zip(s, gate, &up[row], #[inline(always)] |gate, up| simd::silu(s, gate) * up));
    });
}
