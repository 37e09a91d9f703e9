//! Trees, a decay per channel and 16-bit states: near a plain f64 loop, and bit for bit what decoding one token at a time gives.

use undraft_core::ops::{CausalConv1dUpdateArgs, CommitStatesArgs, ConvLogMut, DeltaRuleInputs, FusedRecurrentArgs};
use undraft_core::{
    Activation, Backend, Beta, Capture, CaptureMut, ConvDims, DType, DataMut, Decay, DecayShape, DeltaLogMut, GdnDims,
    HeadMap, QkNorm, Rounding, Rows, RowsMut, bf16, f16,
};
use undraft_testing::Rng;

/// States of any dtype.
#[derive(Clone, Debug, PartialEq)]
enum States {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

impl States {
    fn new(dtype: DType, values: &[f32]) -> Self {
        match dtype {
            DType::F32 => States::F32(values.to_vec()),
            DType::Bf16 => States::Bf16(values.iter().map(|&x| bf16::from_f32(x)).collect()),
            DType::F16 => States::F16(values.iter().map(|&x| f16::from_f32(x)).collect()),
        }
    }
    fn data(&mut self) -> DataMut<'_> {
        match self {
            States::F32(d) => DataMut::F32(d),
            States::Bf16(d) => DataMut::Bf16(d),
            States::F16(d) => DataMut::F16(d),
        }
    }
    fn f32(&self) -> Vec<f32> {
        match self {
            States::F32(d) => d.clone(),
            States::Bf16(d) => d.iter().map(|x| x.to_f32()).collect(),
            States::F16(d) => d.iter().map(|x| x.to_f32()).collect(),
        }
    }
}

#[derive(Clone)]
struct Log {
    k: Vec<f32>,
    decay: Vec<f32>,
    delta: Vec<f32>,
    max_tokens: usize,
}

impl Log {
    fn new(dims: &GdnDims, slots: usize, max_tokens: usize) -> Self {
        let n = slots * max_tokens;
        let of = |len: usize| vec![f32::NAN; n * len];
        Self { k: of(dims.key_dim()), decay: of(dims.decay_len()), delta: of(dims.value_dim()), max_tokens }
    }
    fn view(&mut self) -> DeltaLogMut<'_> {
        DeltaLogMut { k: &mut self.k, decay: &mut self.decay, delta: &mut self.delta, max_tokens: self.max_tokens }
    }
}

/// One sequence in slot 1 of 3.
#[derive(Clone)]
struct Case {
    dims: GdnDims,
    dtype: DType,
    head_map: HeadMap,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    a: Vec<f32>,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
    b: Vec<f32>,
    parents: Vec<i32>,
    tokens: usize,
}

const SLOT: usize = 1;
const SLOTS: usize = 3;

impl Case {
    fn new(rng: &mut Rng, dims: GdnDims, dtype: DType, parents: Vec<i32>) -> Self {
        let n = parents.len();
        let mut normal =
            |len: usize, scale: f64| -> Vec<f32> { (0..len).map(|_| (rng.normal() * scale) as f32).collect() };
        Self {
            dims,
            dtype,
            head_map: HeadMap::Grouped,
            q: normal(n * dims.key_dim(), 1.0),
            k: normal(n * dims.key_dim(), 1.0),
            v: normal(n * dims.value_dim(), 1.0),
            a: normal(n * dims.decay_len(), 1.0),
            a_log: normal(dims.num_v_heads(), 0.5),
            dt_bias: normal(dims.decay_len(), 0.5),
            b: normal(n * dims.num_v_heads(), 1.0),
            parents,
            tokens: n,
        }
    }
    /// These tokens, one after the other, as a chain.
    fn path(&self, tokens: &[usize]) -> Self {
        let gather = |x: &[f32], row: usize| tokens.iter().flat_map(|&t| x[t * row..(t + 1) * row].to_vec()).collect();
        let d = &self.dims;
        Self {
            q: gather(&self.q, d.key_dim()),
            k: gather(&self.k, d.key_dim()),
            v: gather(&self.v, d.value_dim()),
            a: gather(&self.a, d.decay_len()),
            b: gather(&self.b, d.num_v_heads()),
            parents: Vec::new(),
            tokens: tokens.len(),
            ..self.clone()
        }
    }
    fn run(
        &self,
        gpu: &dyn Backend,
        state: &mut States,
        log: Option<&mut Log>,
        pending: &[u32],
        capture: CaptureMut<'_>,
    ) -> Vec<f32> {
        let d = &self.dims;
        let mut out = vec![f32::NAN; self.tokens * d.value_dim()];
        let (cu, max) = ([0, self.tokens as i32], log.as_ref().map_or(0, |log| log.max_tokens));
        let mut path = vec![0; if pending.is_empty() { 0 } else { max }];
        path[..pending.len()].copy_from_slice(pending);
        let args = FusedRecurrentArgs {
            inputs: DeltaRuleInputs {
                dims: *d,
                q: Rows::new(&self.q[..], d.key_dim()),
                k: Rows::new(&self.k[..], d.key_dim()),
                v: Rows::new(&self.v[..], d.value_dim()),
                decay: Decay::Gate { a: &self.a, a_log: &self.a_log, dt_bias: &self.dt_bias },
                beta: Beta::Logit(&self.b),
                scale: DeltaRuleInputs::default_scale(d),
                head_map: self.head_map,
                qk_norm: QkNorm::L2Norm { eps: 1e-6 },
                rounding: Rounding::F32,
                cu_seqlens: &cu,
                state_indices: &[SLOT as i32],
                parents: &self.parents,
            },
            num_slots: SLOTS,
            state: state.data(),
            log: log.map(Log::view),
            num_pending: &[pending.len() as u32],
            pending_path: &path,
            capture,
            out: RowsMut::new(&mut out[..], d.value_dim()),
        };
        gpu.fused_recurrent_gated_delta_rule(args.check().unwrap()).unwrap();
        out
    }
    /// Tokens from the root to this one.
    fn ancestry(&self, token: usize) -> Vec<usize> {
        let mut path = vec![token];
        while let Ok(parent) = usize::try_from(self.parents[*path.last().unwrap()]) {
            path.push(parent);
        }
        path.reverse();
        path
    }
    /// The chain in f64, a 16-bit state rounded after each token: outputs and the slot's state.
    fn reference(&self, state: &States) -> (Vec<f64>, Vec<f64>) {
        let d = &self.dims;
        let (h, hv, kd, vd) = (d.num_k_heads(), d.num_v_heads(), d.head_k_dim(), d.head_v_dim());
        let mut s: Vec<f64> = state.f32()[SLOT * d.state_len()..][..d.state_len()].iter().map(|&x| x.into()).collect();
        let mut out = vec![0.0; self.tokens * d.value_dim()];
        for t in 0..self.tokens {
            for head in 0..hv {
                let kh = head / (hv / h);
                let unit = |x: &[f32]| -> Vec<f64> {
                    let x: Vec<f64> = x[(t * h + kh) * kd..][..kd].iter().map(|&x| x.into()).collect();
                    let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                    x.iter().map(|x| x / norm).collect()
                };
                let (q, k) = (unit(&self.q), unit(&self.k));
                let beta = 1.0 / (1.0 + (-f64::from(self.b[t * hv + head])).exp());
                let alpha = |j: usize| {
                    let c = if d.decay_dim() == 1 { 0 } else { j };
                    let at = head * d.decay_dim() + c;
                    let x = f64::from(self.a[t * d.decay_len() + at]) + f64::from(self.dt_bias[at]);
                    (-f64::from(self.a_log[head]).exp() * x.exp().ln_1p()).exp()
                };
                for i in 0..vd {
                    let row = &mut s[(head * vd + i) * kd..][..kd];
                    row.iter_mut().enumerate().for_each(|(j, x)| *x *= alpha(j));
                    let p: f64 = row.iter().zip(&k).map(|(s, k)| s * k).sum();
                    let delta = (f64::from(self.v[(t * hv + head) * vd + i]) - p) * beta;
                    row.iter_mut().zip(&k).for_each(|(s, k)| *s += delta * k);
                    let o: f64 = row.iter().zip(&q).map(|(s, q)| s * q).sum();
                    out[(t * hv + head) * vd + i] = o / (kd as f64).sqrt();
                    row.iter_mut().for_each(|x| *x = self.dtype.round(*x as f32).into());
                }
            }
        }
        (out, s)
    }
}

fn rel_rms(got: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let error: f64 = got.iter().zip(expected).map(|(&g, e)| (f64::from(g) - e).powi(2)).sum();
    (error / expected.iter().map(|e| e * e).sum::<f64>()).sqrt()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn trees(rng: &mut Rng) -> Vec<Vec<i32>> {
    let mut all = vec![
        vec![-1],
        vec![-1, 0, 1, 2],
        vec![-1, -1, -1],
        // Four levels of a tree, breadth first; then depth first.
        vec![-1, -1, 0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 6, 7, 8, 9],
        vec![-1, 0, 1, 2, 1, 0, 5, 6, 5, -1, 9, 10, 9, 12],
        // A comb, and a star.
        (0..24).map(|i| if i % 2 == 0 { i - 2 } else { i - 1 }.max(-1)).collect(),
        (0..20).map(|i| if i == 0 { -1 } else { 0 }).collect(),
    ];
    // More tokens than are held at a time.
    for n in [17, 40] {
        all.push((0..n).map(|i| rng.below(i + 1) as i32 - 1).collect());
    }
    all
}

fn cases(rng: &mut Rng) -> Vec<Case> {
    let sizes = [(128, 128), (64, 96), (17, 3), (128, 40), (96, 64), (256, 33), (32, 32), (100, 5), (192, 8)];
    let mut cases = Vec::new();
    for (i, parents) in trees(rng).into_iter().enumerate() {
        for n in 0..4 {
            let (k, v) = sizes[(i * 3 + n) % sizes.len()];
            let shape = if (i + n) % 2 == 0 { DecayShape::PerHead } else { DecayShape::PerChannel };
            let dims = GdnDims::new(2, 4, k, v).unwrap().with_decay_shape(shape);
            let dtype = [DType::F32, DType::Bf16, DType::F16][(i + n) % 3];
            cases.push(Case::new(rng, dims, dtype, parents.clone()));
        }
    }
    cases
}

fn initial(rng: &mut Rng, case: &Case) -> States {
    let values: Vec<f32> = (0..SLOTS * case.dims.state_len()).map(|_| (rng.normal() * 0.3) as f32).collect();
    States::new(case.dtype, &values)
}

pub fn nodes_equal_decoding_their_path(gpu: &dyn Backend) {
    let rng = &mut Rng::new(11);
    for (n, case) in cases(rng).into_iter().enumerate() {
        let (d, before) = (case.dims, initial(rng, &case));
        let label = format!("case {n}: {d:?} {:?} {:?}", case.dtype, case.parents);
        let mut log = Log::new(&d, SLOTS, case.tokens + 2);
        let mut state = before.clone();
        let out = case.run(gpu, &mut state, Some(&mut log), &[], CaptureMut::DeltaLog);
        assert!(state == before, "{label}: the state has changed under DeltaLog");
        let row = d.state_len();
        let mut states = States::new(case.dtype, &vec![f32::NAN; case.tokens * row]);
        let capture = CaptureMut::PerToken { states: states.data(), max_tokens: case.tokens };
        let again = case.run(gpu, &mut state, None, &[], capture);
        assert!(state == before, "{label}: the state has changed under PerToken");
        assert_eq!(bits(&again), bits(&out), "{label}: outputs under PerToken");
        for token in 0..case.tokens {
            let path = case.ancestry(token);
            let mut decoded = before.clone();
            let mut last = Vec::new();
            for &t in &path {
                last = case.path(&[t]).run(gpu, &mut decoded, None, &[], CaptureMut::Final);
            }
            let values = token * d.value_dim()..(token + 1) * d.value_dim();
            assert_eq!(bits(&last), bits(&out[values.clone()]), "{label}: token {token}");
            let slot = &decoded.f32()[SLOT * row..(SLOT + 1) * row];
            assert_eq!(bits(slot), bits(&states.f32()[token * row..(token + 1) * row]), "{label}: state {token}");
            let (expected, expected_state) = case.path(&path).reference(&before);
            let (near, near_state) = match case.dtype {
                DType::F32 => (3e-6, 3e-6),
                DType::Bf16 => (2e-2, 1e-2),
                DType::F16 => (3e-3, 1e-3),
            };
            let error = rel_rms(&last, &expected[(path.len() - 1) * d.value_dim()..]);
            assert!(error < near, "{label}: token {token} is {error:e} off");
            let error = rel_rms(slot, &expected_state);
            assert!(error < near_state, "{label}: state {token} is {error:e} off");

            // Committed at once, and by the next window on its way.
            let entries: Vec<u32> = path.iter().map(|&t| t as u32).collect();
            let mut committed = before.clone();
            commit(gpu, &case, &mut committed, &mut log.clone(), &entries);
            assert!(committed == decoded, "{label}: commit of {path:?}");
            let mut lazily = before.clone();
            let next = case.path(&[0, case.tokens / 2]);
            let mut own = log.clone();
            let out = next.run(gpu, &mut lazily, Some(&mut own), &entries, CaptureMut::DeltaLog);
            assert!(lazily == decoded, "{label}: lazy commit of {path:?}");
            let expected = next.run(gpu, &mut decoded.clone(), None, &[], CaptureMut::Final);
            assert_eq!(bits(&out), bits(&expected), "{label}: the window after {path:?}");
        }
    }
}

fn commit(gpu: &dyn Backend, case: &Case, state: &mut States, log: &mut Log, entries: &[u32]) {
    let mut path = vec![0; log.max_tokens];
    path[..entries.len()].copy_from_slice(entries);
    let args = CommitStatesArgs {
        dims: case.dims,
        head_map: case.head_map,
        num_slots: SLOTS,
        state: state.data(),
        log: log.view(),
        state_indices: &[SLOT as i32],
        num_kept: &[entries.len() as u32],
        path: &path,
    };
    gpu.commit_states(args.check().unwrap()).unwrap();
}

/// Two roundings an element, and that of a 16-bit state: computed here without the device.
pub fn a_replay_rounds_as_ieee_754_says(gpu: &dyn Backend) {
    let rng = &mut Rng::new(12);
    for case in cases(rng) {
        let d = case.dims;
        let mut state = initial(rng, &case);
        let mut expected = state.f32();
        let mut log = Log::new(&d, SLOTS, 9);
        for (x, scale) in [(&mut log.k, 0.2), (&mut log.decay, 0.0), (&mut log.delta, 1.0)] {
            x.iter_mut().for_each(|x| {
                *x = if scale == 0.0 { rng.uniform() as f32 } else { (rng.normal() * scale) as f32 };
            });
        }
        let entries = [0u32, 2, 3, 7];
        let (h, hv, kd, vd) = (d.num_k_heads(), d.num_v_heads(), d.head_k_dim(), d.head_v_dim());
        for &entry in &entries {
            let e = SLOT * log.max_tokens + entry as usize;
            for i in 0..d.state_len() {
                let (head, row, j) = (i / (vd * kd), i / kd % vd, i % kd);
                let c = if d.decay_dim() == 1 { 0 } else { j };
                let decay = log.decay[(e * hv + head) * d.decay_dim() + c];
                let k = log.k[(e * h + head / (hv / h)) * kd + j];
                let s = &mut expected[SLOT * d.state_len() + i];
                *s = case.dtype.round(log.delta[(e * hv + head) * vd + row].mul_add(k, *s * decay));
            }
        }
        commit(gpu, &case, &mut state, &mut log, &entries);
        assert_eq!(bits(&state.f32()), bits(&expected), "{d:?} {:?}", case.dtype);
    }
}

pub fn a_convolution_tree_equals_its_paths(gpu: &dyn Backend) {
    let rng = &mut Rng::new(13);
    for (n, parents) in trees(rng).into_iter().enumerate() {
        let (tokens, width) = (parents.len(), 2 + n % 4);
        let dims = ConvDims::new(200 + n, width).unwrap();
        let c = dims.channels();
        let mut normal = |len: usize| -> Vec<f32> { (0..len).map(|_| rng.normal() as f32).collect() };
        let (x, weight, bias) = (normal(tokens * c), normal(width * c), normal(c));
        let before = normal(SLOTS * dims.state_len());
        let run = |x: &[f32], parents: &[i32], state: &mut Vec<f32>, log: &mut Vec<f32>, pending: &[u32], capture| {
            let tokens = x.len() / c;
            let mut out = vec![f32::NAN; x.len()];
            let max_tokens = log.len() / (SLOTS * c);
            let mut path = vec![0; max_tokens];
            path[..pending.len()].copy_from_slice(pending);
            let args = CausalConv1dUpdateArgs {
                dims,
                x: Rows::new(x, c),
                weight: &weight,
                bias: Some(&bias),
                activation: Activation::Silu,
                cu_seqlens: &[0, tokens as i32],
                state_indices: &[SLOT as i32],
                num_slots: SLOTS,
                state,
                log: Some(ConvLogMut { x: log, max_tokens }),
                num_pending: &[pending.len() as u32],
                pending_path: &path,
                parents,
                capture,
                out: RowsMut::new(&mut out[..], c),
            };
            gpu.causal_conv1d_update(args.check().unwrap()).unwrap();
            out
        };
        let mut log = vec![f32::NAN; SLOTS * (tokens + 1) * c];
        let mut state = before.clone();
        let out = run(&x, &parents, &mut state, &mut log, &[], Capture::DeltaLog);
        assert_eq!(bits(&state), bits(&before));
        for token in 0..tokens {
            let mut path = vec![token];
            while let Ok(parent) = usize::try_from(parents[*path.last().unwrap()]) {
                path.push(parent);
            }
            path.reverse();
            let (mut decoded, mut last) = (before.clone(), Vec::new());
            for &t in &path {
                last = run(&x[t * c..(t + 1) * c], &[], &mut decoded, &mut log.clone(), &[], Capture::Final);
            }
            assert_eq!(bits(&last), bits(&out[token * c..(token + 1) * c]), "token {token} of {parents:?}");
            let entries: Vec<u32> = path.iter().map(|&t| t as u32).collect();
            let mut committed = before.clone();
            run(&[], &[], &mut committed, &mut log.clone(), &entries, Capture::DeltaLog);
            assert_eq!(bits(&committed), bits(&decoded), "commit of {path:?}");
        }
    }
}
