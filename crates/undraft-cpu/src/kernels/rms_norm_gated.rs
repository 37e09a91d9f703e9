//! `rms_norm_gated`: one head at a time.

use fearless_simd::Simd;
use undraft_core::ops::{GateActivation, RmsNormGatedArgs};
use undraft_core::{Checked, Rows};

use super::rows::{SharedRows, read_f32};
use crate::executor::Executor;
use crate::simd::{self, LANES, Token};
use crate::with_simd;

/// Elements of a head that are worked on at a time.
const BLOCK: usize = 256;

struct Call<'a> {
    head_dim: usize,
    x: Rows<'a>,
    z: Rows<'a>,
    weight: &'a [f32],
    eps: f32,
    activation: GateActivation,
    out: SharedRows<'a>,
}

pub(crate) fn rms_norm_gated(token: Token, executor: &dyn Executor, args: Checked<RmsNormGatedArgs<'_>>) {
    let args = args.into_inner();
    let call = Call {
        head_dim: args.head_dim,
        x: args.x,
        z: args.z,
        weight: args.weight,
        eps: args.eps,
        activation: args.activation,
        out: SharedRows::new(args.out),
    };
    executor.run(args.num_rows, &|row| {
        for head in 0..args.num_heads {
            with_simd!(token, s => call.head(s, row, head * args.head_dim));
        }
    });
}

impl Call<'_> {
    #[inline(always)]
    fn head<S: Simd>(&self, s: S, row: usize, column: usize) {
        let mut x = [0.0f32; BLOCK];
        let mut acc = [simd::zero(s); 2];
        for start in (0..self.head_dim).step_by(BLOCK) {
            let n = BLOCK.min(self.head_dim - start);
            self.read(&self.x, row, column + start, n, &mut x);
            for (i, chunk) in x[..n.next_multiple_of(LANES)].as_chunks::<LANES>().0.iter().enumerate() {
                let v = simd::load(s, chunk);
                acc[i & 1] = simd::fma(v, v, acc[i & 1]);
            }
        }
        let mean = simd::sum(acc[0] + acc[1]) / self.head_dim as f32;
        let factor = simd::splat(s, 1.0 / (mean + self.eps).sqrt());
        let (mut z, mut w) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
        for start in (0..self.head_dim).step_by(BLOCK) {
            let n = BLOCK.min(self.head_dim - start);
            if self.head_dim > BLOCK {
                self.read(&self.x, row, column + start, n, &mut x);
            }
            self.read(&self.z, row, column + start, n, &mut z);
            w[..n].copy_from_slice(&self.weight[start..start + n]);
            let vectors = n.div_ceil(LANES);
            let chunks = x.as_chunks_mut::<LANES>().0.iter_mut().zip(z.as_chunks::<LANES>().0);
            for ((x, z), w) in chunks.zip(w.as_chunks::<LANES>().0).take(vectors) {
                let z = simd::load(s, z);
                let gate = match self.activation {
                    GateActivation::Silu => simd::silu(s, z),
                    GateActivation::Sigmoid => simd::sigmoid(s, z),
                };
                simd::store(simd::load(s, x) * factor * simd::load(s, w) * gate, x);
            }
            // SAFETY: a row's heads belong to one task.
            unsafe { self.out.write(row, column + start, &x[..n]) };
        }
    }

    /// `n` elements, padded with zeros to a whole vector.
    #[inline(always)]
    fn read(&self, rows: &Rows<'_>, row: usize, column: usize, n: usize, to: &mut [f32; BLOCK]) {
        read_f32(rows, row, column, &mut to[..n]);
        to[n..n.next_multiple_of(LANES)].fill(0.0);
    }
}
