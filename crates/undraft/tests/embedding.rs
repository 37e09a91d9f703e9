//! The mappings of docs/embedding.md: states of other engines go into a pool, a window runs of which a part stays, and what
//! comes out is what the engine computes for those tokens. Each engine is a plain f64 loop with its own layouts, gates and
//! norms.

use undraft::{
    ConvDims, Device, GdnDims, GdnLayer, GdnLayerParams, HeadMap, LayerDims, LayerInputs, PoolConfig, QkNorm, Rows,
    RowsMut, StateLayout, StatePool, conv_state_to_channel_major, conv_state_to_time_major,
};

const H: usize = 2;
const HV: usize = 6;
const K: usize = 16;
const V: usize = 8;
const W: usize = 4;
const C: usize = 2 * H * K + HV * V;
/// The known token and three drafts, of which one is right.
const T: usize = 4;
const KEPT: usize = 2;

/// Values in -1..1 that follow from a seed.
fn values(seed: u64, len: usize) -> Vec<f32> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// What an engine has that others have in another way.
struct Engine {
    layout: StateLayout,
    k_head: fn(usize) -> usize,
    /// Of a key or query head: what it is divided by.
    norm: fn(f64) -> f64,
    /// Decay factor of `a`, `A_log` and `dt_bias`.
    decay: fn(f64, f64, f64) -> f64,
}

fn softplus(x: f64) -> f64 {
    x.exp().ln_1p()
}

/// Weights, the same for all engines, in `[C, W]`.
struct Weights {
    conv: Vec<f32>,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
}

struct Token {
    qkv: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Engine {
    fn index(&self, head: usize, i: usize, j: usize) -> usize {
        match self.layout {
            StateLayout::ValueMajor => (head * V + i) * K + j,
            StateLayout::KeyMajor => (head * K + j) * V + i,
        }
    }

    /// One token; `inputs` are the last `W - 1` before it, oldest first. Gives `[HV, V]`.
    fn step(&self, weights: &Weights, token: &Token, inputs: &[Vec<f32>], state: &mut [f64]) -> Vec<f64> {
        let conv = |c: usize| {
            let tap = |j: usize| f64::from(weights.conv[c * W + j]);
            let before: f64 = inputs.iter().enumerate().map(|(j, x)| tap(j) * f64::from(x[c])).sum();
            let y = before + tap(W - 1) * f64::from(token.qkv[c]);
            y / (1.0 + (-y).exp())
        };
        let head = |offset: usize| -> Vec<f64> {
            let x: Vec<f64> = (0..K).map(|j| conv(offset + j)).collect();
            let norm = (self.norm)(x.iter().map(|x| x * x).sum());
            x.iter().map(|x| x / norm).collect()
        };
        let mut out = vec![0.0; HV * V];
        for hv in 0..HV {
            let (q, k) = (head((self.k_head)(hv) * K), head(H * K + (self.k_head)(hv) * K));
            let [a, a_log, dt_bias] = [token.a[hv], weights.a_log[hv], weights.dt_bias[hv]].map(f64::from);
            let decay = (self.decay)(a, a_log, dt_bias);
            let beta = 1.0 / (1.0 + (-f64::from(token.b[hv])).exp());
            for i in 0..V {
                for j in 0..K {
                    state[self.index(hv, i, j)] *= decay;
                }
                let read: f64 = (0..K).map(|j| state[self.index(hv, i, j)] * k[j]).sum();
                let delta = (conv(2 * H * K + hv * V + i) - read) * beta;
                for j in 0..K {
                    state[self.index(hv, i, j)] += delta * k[j];
                }
                let o: f64 = (0..K).map(|j| state[self.index(hv, i, j)] * q[j]).sum();
                out[hv * V + i] = o / (K as f64).sqrt();
            }
        }
        out
    }
}

fn close(got: &[f32], expected: &[f64]) -> bool {
    got.len() == expected.len() && got.iter().zip(expected).all(|(&x, &y)| (f64::from(x) - y).abs() < 1e-5)
}

/// Runs the engine and a pool side by side. `import` and `export` convert the engine's convolution state, `last` inputs in time
/// order, as it stores it.
fn check(
    engine: &Engine,
    set: impl Fn(&mut GdnLayerParams<'_>),
    a_log: &[f32],
    store: impl Fn(&[Vec<f32>]) -> Vec<f32>,
    import: impl Fn(&[f32]) -> Vec<f32>,
) {
    let weights = Weights { conv: values(1, C * W), a_log: values(2, HV), dt_bias: values(3, HV) };
    let dims = GdnDims::new(H, HV, K, V).unwrap();
    let mut params = GdnLayerParams::new(dims, W, &weights.conv, a_log, &weights.dt_bias);
    set(&mut params);
    let layer = GdnLayer::new(params).unwrap();
    let layers = vec![LayerDims { gdn: dims, conv_width: W }];
    let mut pool = StatePool::new(&Device::cpu(), PoolConfig::new(layers, 1, T)).unwrap();
    let slot = pool.alloc().unwrap();

    let given = values(4, HV * V * K);
    let mut inputs: Vec<Vec<f32>> = (0..W as u64 - 1).map(|t| values(10 + t, C)).collect();
    pool.import_recurrent(0, slot, engine.layout, &given).unwrap();
    pool.import_conv(0, slot, &import(&store(&inputs))).unwrap();

    let tokens: Vec<Token> =
        (0..T as u64).map(|t| Token { qkv: values(20 + t, C), a: values(30 + t, HV), b: values(40 + t, HV) }).collect();
    let all = |of: fn(&Token) -> &[f32]| tokens.iter().flat_map(|t| of(t).to_vec()).collect::<Vec<f32>>();
    let (qkv, a, b) = (all(|t| &t.qkv), all(|t| &t.a), all(|t| &t.b));
    let mut out = vec![f32::NAN; T * HV * V];
    let mut round = pool.begin(&[slot], &[T]).unwrap();
    let read = LayerInputs { layer: &layer, mixed_qkv: Rows::new(&qkv[..], C), a: &a, b: &b };
    round.verify(0, read, RowsMut::new(&mut out[..], HV * V)).unwrap();
    round.commit(&[KEPT]).unwrap();

    let mut state: Vec<f64> = given.iter().map(|&x| f64::from(x)).collect();
    for (t, token) in tokens[..KEPT].iter().enumerate() {
        let expected = engine.step(&weights, token, &inputs, &mut state);
        assert!(close(&out[t * HV * V..(t + 1) * HV * V], &expected), "outputs of token {t}");
        inputs.remove(0);
        inputs.push(token.qkv.clone());
    }
    let mut exported = vec![0.0; given.len()];
    pool.export_recurrent(0, slot, engine.layout, &mut exported).unwrap();
    assert!(close(&exported, &state), "the recurrent state");
    assert!(pool.conv_state(0, slot).unwrap() == import(&store(&inputs)), "the convolution's state");
}

fn conv_dims() -> ConvDims {
    ConvDims::new(C, W).unwrap()
}

fn time_major(channel_major: &[f32]) -> Vec<f32> {
    let mut ours = vec![0.0; channel_major.len()];
    conv_state_to_time_major(&conv_dims(), channel_major, &mut ours).unwrap();
    let mut back = vec![0.0; ours.len()];
    conv_state_to_channel_major(&conv_dims(), &ours, &mut back).unwrap();
    assert_eq!(back, channel_major);
    ours
}

/// `[C, inputs]`.
fn channel_major(inputs: &[Vec<f32>]) -> Vec<f32> {
    (0..C).flat_map(|c| inputs.iter().map(move |x| x[c])).collect()
}

const GATE: fn(f64, f64, f64) -> f64 = |a, a_log, dt_bias| (-a_log.exp() * softplus(a + dt_bias)).exp();

#[test]
fn transformers() {
    let engine = Engine {
        layout: StateLayout::KeyMajor,
        k_head: |hv| hv / (HV / H),
        norm: |sum| (sum + 1e-6).sqrt(),
        decay: GATE,
    };
    // One column more than is read, the oldest.
    let store = |inputs: &[Vec<f32>]| {
        let oldest = vec![f32::NAN; C];
        channel_major(&[&[oldest], inputs].concat())
    };
    let import = |stored: &[f32]| {
        let newest: Vec<f32> = stored.chunks_exact(W).flat_map(|inputs| &inputs[1..]).copied().collect();
        time_major(&newest)
    };
    check(&engine, |_| (), &values(2, HV), store, import);
}

#[test]
fn vllm_with_speculative_rows() {
    let engine = Engine {
        layout: StateLayout::ValueMajor,
        k_head: |hv| hv / (HV / H),
        norm: |sum| (sum + 1e-6).sqrt(),
        decay: GATE,
    };
    let num_accepted_tokens = 3;
    // `[W - 1 + S, C]`: what was taken back lies behind, what is past before.
    let store = |inputs: &[Vec<f32>]| {
        let stale = vec![vec![f32::NAN; C]; num_accepted_tokens - 1];
        let rejected = vec![vec![f32::NAN; C]; T - num_accepted_tokens];
        [&stale[..], inputs, &rejected[..]].concat().concat()
    };
    let import = |stored: &[f32]| {
        let first = num_accepted_tokens - 1;
        stored[first * C..(first + W - 1) * C].to_vec()
    };
    check(&engine, |_| (), &values(2, HV), store, import);
}

#[test]
fn llama_cpp() {
    let engine =
        Engine { layout: StateLayout::ValueMajor, k_head: |hv| hv % H, norm: |sum| sum.sqrt().max(1e-6), decay: GATE };
    let set = |params: &mut GdnLayerParams<'_>| {
        params.head_map = HeadMap::Tiled;
        params.qk_norm = QkNorm::L2Norm { eps: 1e-6 * 1e-6 };
    };
    // The file has `ssm_a`.
    let ssm_a: Vec<f32> = values(2, HV).iter().map(|x| -x.exp()).collect();
    let a_log: Vec<f32> = ssm_a.iter().map(|x| (-x).ln()).collect();
    check(&engine, set, &a_log, channel_major, time_major);
}

#[test]
fn mlx_lm() {
    let engine = Engine {
        layout: StateLayout::ValueMajor,
        k_head: |hv| hv / (HV / H),
        // `K^-0.5 * x / sqrt(mean(x^2) + eps)`.
        norm: |sum| (sum / K as f64 + 1e-6).sqrt() * (K as f64).sqrt(),
        decay: GATE,
    };
    let set = |params: &mut GdnLayerParams<'_>| params.qk_norm = QkNorm::L2Norm { eps: K as f32 * 1e-6 };
    check(&engine, set, &values(2, HV), |inputs| inputs.concat(), <[f32]>::to_vec);
}

#[test]
#[should_panic(expected = "outputs of token 0")]
fn a_wrong_head_map_is_seen() {
    let engine =
        Engine { layout: StateLayout::ValueMajor, k_head: |hv| hv % H, norm: |sum| (sum + 1e-6).sqrt(), decay: GATE };
    check(&engine, |_| (), &values(2, HV), |inputs| inputs.concat(), <[f32]>::to_vec);
}
