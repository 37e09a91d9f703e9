//! Mixture of experts.

use undraft::cpu::simd;
use undraft::cpu::with_simd;

use super::mlp::MlpScratch;
use super::{AlignedBuffer, Compute, Linear, Mlp, lanes};

/// Routed experts of which each token takes a few, and one shared expert with a gate.
///
/// A token's result is the sum of its experts in the order of their numbers, then the shared expert: an order that no
/// other token changes. The experts' weights are read once for all tokens of a call that share them.
#[derive(Clone, Debug)]
pub struct Moe {
    /// `[num_experts, hidden]`.
    pub router: Linear,
    /// Routed experts.
    pub experts: Vec<Mlp>,
    /// The shared expert.
    pub shared_expert: Mlp,
    /// `[1, hidden]`.
    pub shared_expert_gate: Linear,
    /// Routed experts of a token, at most `experts.len()`.
    pub num_experts_per_tok: usize,
    /// Whether the chosen probabilities are divided by their sum.
    pub norm_topk_prob: bool,
}

/// Scratch memory of [`Moe::forward`].
#[derive(Debug, Default)]
pub struct MoeScratch {
    mlp: MlpScratch,
    logits: AlignedBuffer,
    gate: AlignedBuffer,
    /// Rows of the tokens that an expert takes, and what it makes of them.
    rows: AlignedBuffer,
    results: AlignedBuffer,
    /// `[n, num_experts_per_tok]`: expert and weight.
    routes: Vec<(u32, f32)>,
    /// One token's experts by falling probability.
    order: Vec<u32>,
    /// Tokens of one expert, with their weights.
    members: Vec<(u32, f32)>,
}

impl Moe {
    /// `out[t] = moe(x[t])`; both are `[n, hidden]`.
    ///
    /// # Panics
    /// If the buffers are not rows of these sizes.
    pub fn forward(&self, compute: &Compute, x: &[f32], scratch: &mut MoeScratch, out: &mut [f32]) {
        let hidden = self.router.in_features();
        let num_tokens = x.len() / hidden;
        self.route(compute, x, scratch);
        out.fill(0.0);
        for (number, expert) in self.experts.iter().enumerate() {
            scratch.members.clear();
            for (t, routes) in scratch.routes.chunks_exact(self.num_experts_per_tok).enumerate() {
                if let Some(&(_, weight)) = routes.iter().find(|(expert, _)| *expert as usize == number) {
                    scratch.members.push((t as u32, weight));
                }
            }
            if scratch.members.is_empty() {
                continue;
            }
            let rows = scratch.rows.resized(scratch.members.len() * hidden);
            for (row, &(t, _)) in rows.chunks_exact_mut(hidden).zip(&scratch.members) {
                row.copy_from_slice(&x[t as usize * hidden..][..hidden]);
            }
            let results = scratch.results.resized(rows.len());
            expert.forward(compute, rows, &mut scratch.mlp, results);
            for (result, &(t, weight)) in results.chunks_exact(hidden).zip(&scratch.members) {
                add_scaled(compute, &mut out[t as usize * hidden..][..hidden], result, weight);
            }
        }
        let results = scratch.results.resized(x.len());
        self.shared_expert.forward(compute, x, &mut scratch.mlp, results);
        let gate = scratch.gate.resized(num_tokens);
        self.shared_expert_gate.forward(compute, x, gate);
        for ((out, result), gate) in out.chunks_exact_mut(hidden).zip(results.chunks_exact(hidden)).zip(gate) {
            add_scaled(compute, out, result, 1.0 / (1.0 + (-*gate).exp()));
        }
    }

    /// Bytes of the weights.
    pub fn memory(&self) -> usize {
        let experts: usize = self.experts.iter().map(Mlp::memory).sum();
        self.router.memory() + experts + self.shared_expert.memory() + self.shared_expert_gate.memory()
    }

    /// Softmax over all experts, then the largest, equal ones in the order of their numbers.
    fn route(&self, compute: &Compute, x: &[f32], scratch: &mut MoeScratch) {
        let num_experts = self.experts.len();
        let logits = scratch.logits.resized(x.len() / self.router.in_features() * num_experts);
        self.router.forward(compute, x, logits);
        scratch.routes.clear();
        for logits in logits.chunks_exact_mut(num_experts) {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut sum = 0.0;
            for p in &mut *logits {
                *p = (*p - max).exp();
                sum += *p;
            }
            for p in &mut *logits {
                *p /= sum;
            }
            scratch.order.clear();
            scratch.order.extend(0..num_experts as u32);
            // Unstable sorting does not allocate; the number makes the order total.
            scratch.order.sort_unstable_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
            let chosen = &scratch.order[..self.num_experts_per_tok];
            let total: f32 = chosen.iter().map(|&e| logits[e as usize]).sum();
            let divisor = if self.norm_topk_prob { total } else { 1.0 };
            scratch.routes.extend(chosen.iter().map(|&e| (e, logits[e as usize] / divisor)));
        }
    }
}

/// `out += result * weight`.
fn add_scaled(compute: &Compute, out: &mut [f32], result: &[f32], weight: f32) {
    with_simd!(compute.token(), s => {
        let weight = simd::splat(s, weight);
        lanes::zip(s, out, result, #[inline(always)] |out, result| simd::fma(result, weight, out));
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::WeightData;
    use undraft::cpu::CpuBackend;
    use undraft_testing::Rng;

    const HIDDEN: usize = 40;
    const INNER: usize = 24;

    fn linear(rng: &mut Rng, out: usize, inner: usize) -> Linear {
        Linear::new(&WeightData::F32((0..out * inner).map(|_| rng.normal() as f32 * 0.3).collect()), out, inner)
    }

    fn mlp(rng: &mut Rng) -> Mlp {
        Mlp { gate: linear(rng, INNER, HIDDEN), up: linear(rng, INNER, HIDDEN), down: linear(rng, HIDDEN, INNER) }
    }

    fn moe(norm_topk_prob: bool) -> Moe {
        let mut rng = Rng::new(1);
        Moe {
            router: linear(&mut rng, 6, HIDDEN),
            experts: (0..6).map(|_| mlp(&mut rng)).collect(),
            shared_expert: mlp(&mut rng),
            shared_expert_gate: linear(&mut rng, 1, HIDDEN),
            num_experts_per_tok: 2,
            norm_topk_prob,
        }
    }

    fn forward(moe: &Moe, x: &[f32]) -> Vec<f32> {
        let mut out = vec![f32::NAN; x.len()];
        moe.forward(&Compute::new(&CpuBackend::new()), x, &mut MoeScratch::default(), &mut out);
        out
    }

    fn inputs(n: usize) -> Vec<f32> {
        let mut rng = Rng::new(2);
        (0..n * HIDDEN).map(|_| rng.normal() as f32).collect()
    }

    fn apply(linear: &Linear, x: &[f64]) -> Vec<f64> {
        let mut row = vec![0.0; linear.in_features()];
        let dot = |o| {
            linear.row(o, &mut row);
            row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()
        };
        (0..linear.out_features()).map(dot).collect()
    }

    fn apply_mlp(mlp: &Mlp, x: &[f64]) -> Vec<f64> {
        let (gate, up) = (apply(&mlp.gate, x), apply(&mlp.up, x));
        let inner: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
        apply(&mlp.down, &inner)
    }

    #[test]
    fn it_is_the_weighted_sum_of_the_largest() {
        for norm in [true, false] {
            let moe = moe(norm);
            let x = inputs(4);
            let out = forward(&moe, &x);
            for t in 0..4 {
                let x: Vec<f64> = x[t * HIDDEN..(t + 1) * HIDDEN].iter().map(|&x| f64::from(x)).collect();
                let p: Vec<f64> = apply(&moe.router, &x).iter().map(|l| l.exp()).collect();
                let sum: f64 = p.iter().sum();
                let mut order: Vec<usize> = (0..6).collect();
                order.sort_by(|&a, &b| p[b].total_cmp(&p[a]));
                let top: f64 = if norm { p[order[0]] + p[order[1]] } else { sum };
                let gate = 1.0 / (1.0 + (-apply(&moe.shared_expert_gate, &x)[0]).exp());
                let mut want: Vec<f64> = apply_mlp(&moe.shared_expert, &x).iter().map(|y| y * gate).collect();
                for &e in &order[..2] {
                    for (want, y) in want.iter_mut().zip(apply_mlp(&moe.experts[e], &x)) {
                        *want += p[e] / top * y;
                    }
                }
                for (got, want) in out[t * HIDDEN..].iter().zip(want) {
                    assert!((f64::from(*got) - want).abs() < 1e-5, "token {t}: {got} {want}");
                }
            }
        }
    }

    #[test]
    fn a_token_is_the_same_bits_alone_and_among_others() {
        let moe = moe(true);
        let x = inputs(9);
        let alone: Vec<f32> = x.chunks(HIDDEN).flat_map(|x| forward(&moe, x)).collect();
        assert_eq!(forward(&moe, &x), alone);
    }

    #[test]
    fn equal_probabilities_go_to_the_lower_numbers() {
        let mut moe = moe(true);
        moe.router = Linear::new(&WeightData::F32(vec![0.0; 6 * HIDDEN]), 6, HIDDEN);
        let mut scratch = MoeScratch::default();
        moe.route(&Compute::new(&CpuBackend::new()), &inputs(2), &mut scratch);
        assert_eq!(scratch.routes, [(0, 0.5), (1, 0.5), (0, 0.5), (1, 0.5)]);
    }
}
