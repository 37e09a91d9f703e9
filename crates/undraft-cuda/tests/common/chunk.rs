//! The chunked form over many chunks, against the recurrence in f64.

use undraft_core::ops::{ChunkGatedDeltaRuleArgs, DeltaRuleInputs};
use undraft_core::{
    Backend, Beta, DType, Data, DataMut, Decay, GdnDims, HeadMap, QkNorm, Rounding, Rows, RowsMut, bf16,
};
use undraft_cuda::CudaBackend;
use undraft_testing::Rng;

/// One sequence; q and k in bf16 or f32, all else in f32.
struct Prompt {
    dims: GdnDims,
    keys_in: DType,
    num_tokens: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    alpha: Vec<f32>,
    beta: Vec<f32>,
    state: Vec<f32>,
}

const EPS: f32 = 1e-6;

impl Prompt {
    /// Every token decays the state by `alpha`.
    fn new(dims: GdnDims, keys_in: DType, num_tokens: usize, alpha: f32) -> Self {
        let rng = &mut Rng::new(num_tokens as u64);
        let mut normal =
            |n: usize, dtype: DType| -> Vec<f32> { (0..n).map(|_| dtype.round(rng.normal() as f32)).collect() };
        let q = normal(num_tokens * dims.key_dim(), keys_in);
        let k = normal(num_tokens * dims.key_dim(), keys_in);
        let v = normal(num_tokens * dims.value_dim(), DType::F32);
        let state = normal(dims.state_len(), DType::F32);
        let beta = (0..num_tokens * dims.num_v_heads()).map(|_| rng.uniform() as f32).collect();
        Self { dims, keys_in, num_tokens, q, k, v, alpha: vec![alpha; num_tokens * dims.num_v_heads()], beta, state }
    }

    /// Outputs and the final state.
    fn run(&self, gpu: &CudaBackend) -> (Vec<f32>, Vec<f32>) {
        let d = &self.dims;
        let [q16, k16] = [&self.q, &self.k].map(|x| x.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>());
        let keys = |x32, x16| match self.keys_in {
            DType::Bf16 => Rows { data: Data::Bf16(x16), row_stride: d.key_dim() },
            _ => Rows { data: Data::F32(x32), row_stride: d.key_dim() },
        };
        let (mut out, mut state) = (vec![f32::NAN; self.v.len()], self.state.clone());
        let args = ChunkGatedDeltaRuleArgs {
            inputs: DeltaRuleInputs {
                dims: *d,
                q: keys(&self.q, &q16),
                k: keys(&self.k, &k16),
                v: Rows::new(&self.v[..], d.value_dim()),
                decay: Decay::Linear(&self.alpha),
                beta: Beta::Value(&self.beta),
                scale: DeltaRuleInputs::default_scale(d),
                head_map: HeadMap::Grouped,
                qk_norm: QkNorm::L2Norm { eps: EPS },
                rounding: Rounding::F32,
                cu_seqlens: &[0, self.num_tokens as i32],
                state_indices: &[0],
                parents: &[],
            },
            num_slots: 1,
            state: DataMut::F32(&mut state),
            checkpoints: None,
            out: RowsMut::new(&mut out[..], d.value_dim()),
        };
        gpu.chunk_gated_delta_rule(args.check().unwrap()).unwrap();
        (out, state)
    }

    fn recurrence(&self) -> (Vec<f64>, Vec<f64>) {
        let d = &self.dims;
        let (h, hv, kd, vd) = (d.num_k_heads(), d.num_v_heads(), d.head_k_dim(), d.head_v_dim());
        let unit = |x: &[f32], t: usize, head: usize| -> Vec<f64> {
            let x: Vec<f64> = x[(t * h + head) * kd..][..kd].iter().map(|&x| x.into()).collect();
            let norm = (x.iter().map(|x| x * x).sum::<f64>() + f64::from(EPS)).sqrt();
            x.iter().map(|x| x / norm).collect()
        };
        let mut state: Vec<f64> = self.state.iter().map(|&x| x.into()).collect();
        let mut out = vec![0.0; self.v.len()];
        for (t, head) in (0..self.num_tokens).flat_map(|t| (0..hv).map(move |head| (t, head))) {
            let (q, k) = (unit(&self.q, t, head / (hv / h)), unit(&self.k, t, head / (hv / h)));
            let (alpha, beta) = (f64::from(self.alpha[t * hv + head]), f64::from(self.beta[t * hv + head]));
            for (i, row) in state[head * vd * kd..(head + 1) * vd * kd].chunks_exact_mut(kd).enumerate() {
                let at = (t * hv + head) * vd + i;
                row.iter_mut().for_each(|s| *s *= alpha);
                let delta = beta * (f64::from(self.v[at]) - dot(row, &k));
                row.iter_mut().zip(&k).for_each(|(s, k)| *s += delta * k);
                out[at] = dot(row, &q) / (kd as f64).sqrt();
            }
        }
        (out, state)
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn rel_rms(got: &[f32], expected: &[f64]) -> f64 {
    let error: f64 = got.iter().zip(expected).map(|(&g, e)| (f64::from(g) - e).powi(2)).sum();
    (error / expected.iter().map(|e| e * e).sum::<f64>()).sqrt()
}

/// Errors do not pile up from chunk to chunk, not even where nothing decays.
pub fn long_prompts_are_near_the_recurrence(gpu: &CudaBackend, num_tokens: usize) {
    for (k, v, keys_in) in
        [(128, 40, DType::Bf16), (64, 32, DType::Bf16), (100, 33, DType::Bf16), (128, 32, DType::F32)]
    {
        for alpha in [1.0, 0.999, 0.5] {
            let prompt = Prompt::new(GdnDims::new(1, 2, k, v).unwrap(), keys_in, num_tokens, alpha);
            let ((out, state), (expected_out, expected_state)) = (prompt.run(gpu), prompt.recurrence());
            let (of_out, of_state) = (rel_rms(&out, &expected_out), rel_rms(&state, &expected_state));
            let name = keys_in.name();
            println!("K={k} V={v} {name} q and k, alpha {alpha}: out {of_out:.1e}, state {of_state:.1e} off");
            // On tensor cores what reaches outputs alone is a sum of two bf16.
            let bound = if keys_in == DType::Bf16 { 6e-6 } else { 2e-6 };
            assert!(of_out < bound && of_state < 2e-6, "K={k} V={v} {name}, alpha {alpha}: {of_out:e}, {of_state:e}");
        }
    }
}
