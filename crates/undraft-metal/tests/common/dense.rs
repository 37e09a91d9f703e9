//! The dense parts against loops in f64, and the law: a row's values are the same bits whichever rows come with it.

use std::sync::Arc;

use undraft_core::{bf16, f16};
use undraft_metal::MetalBackend;
use undraft_metal::dense::{
    ArgmaxParams, AttentionParams, DenseNormParams, EmbedParams, INVALID, LinearParams, MoeParams, RotateParams,
    SiluMulParams, argmax_parts, attention_segments,
};
use undraft_metal::driver::{Commands, DeviceElement, Driver};
use undraft_metal::raw::{Elements, EncoderHandle, Launcher, Slice, Switch};
use undraft_metal::{DeviceBuffer, Result};
use undraft_testing::Rng;

type Floats = DeviceBuffer<f32>;

/// Names of the kernels.
pub const KERNELS: [&str; 19] = [
    "dense_argmax",
    "dense_argmax_parts",
    "dense_attention",
    "dense_attention_parts",
    "dense_embed",
    "dense_linear_bf16_t1",
    "dense_linear_bf16_t4",
    "dense_linear_bf16_t8",
    "dense_linear_f16_t1",
    "dense_linear_f16_t4",
    "dense_linear_f16_t8",
    "dense_linear_f32_t1",
    "dense_linear_f32_t4",
    "dense_linear_f32_t8",
    "dense_moe_route",
    "dense_moe_sum",
    "dense_rms_norm",
    "dense_rotate",
    "dense_silu_mul",
];

/// All checks of this file.
pub fn all(backend: &MetalBackend) {
    linear(backend);
    linear_of_experts(backend);
    norms_with_and_without_a_delta(backend);
    embedding_and_silu(backend);
    the_largest_of_a_row(backend);
    attention_over_a_cache(backend);
    experts_are_chosen_and_added_up(backend);
    words_are_written_in_their_turn(backend);
}

fn driver(backend: &MetalBackend) -> &Arc<dyn Driver> {
    backend.launcher().driver()
}

fn upload<T: DeviceElement>(backend: &MetalBackend, data: &[T]) -> DeviceBuffer<T> {
    DeviceBuffer::from_slice(driver(backend), data).unwrap()
}

/// Elements that nobody has written.
fn room<T: DeviceElement>(backend: &MetalBackend, len: usize) -> DeviceBuffer<T> {
    DeviceBuffer::uninit(driver(backend), len).unwrap()
}

fn run(backend: &MetalBackend, encode: impl FnOnce(&Launcher, EncoderHandle) -> Result<()>) {
    let commands = Commands::begin(driver(backend)).unwrap();
    encode(backend.launcher(), commands.encoder()).unwrap();
    commands.finish().unwrap();
}

fn read<T: DeviceElement + Default>(buffer: &DeviceBuffer<T>) -> Vec<T> {
    let mut values = vec![T::default(); buffer.len()];
    buffer.read(0, &mut values).unwrap();
    values
}

/// Elements from `element` on.
fn from<T: DeviceElement>(buffer: &DeviceBuffer<T>, element: usize) -> Slice {
    buffer.slice_from(element).unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[track_caller]
fn near(got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(1e-30, |max: f64, x| max.max(x.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs() / largest;
        assert!(error < tolerance, "element {i} is {got}, expected {want}");
    }
}

fn random(rng: &mut Rng, len: usize) -> Vec<f32> {
    (0..len).map(|_| (2.0 * rng.uniform() - 1.0) as f32).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Products of any number of rows, with weights of equal value in all types.
pub fn linear(backend: &MetalBackend) {
    let mut rng = Rng::new(1);
    for (in_features, out_features) in [(4, 1), (96, 37), (132, 9), (512, 64), (1000, 5)] {
        const ROWS: usize = 17;
        // Of few bits, so that all types have them.
        let weights: Vec<f32> = (0..in_features * out_features).map(|_| rng.below(255) as f32 / 128.0 - 1.0).collect();
        // A stride and a start of their own.
        let stride = in_features + 8;
        let x = random(&mut rng, 4 + ROWS * stride);
        let mut want = Vec::new();
        for t in 0..ROWS {
            for row in weights.chunks_exact(in_features) {
                let x = &x[4 + t * stride..][..in_features];
                want.push(row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>());
            }
        }
        let x = upload(backend, &x);
        let in_f32 = upload(backend, &weights);
        let in_bf16 = upload(backend, &weights.iter().map(|&w| bf16::from_f32(w)).collect::<Vec<_>>());
        let in_f16 = upload(backend, &weights.iter().map(|&w| f16::from_f32(w)).collect::<Vec<_>>());
        let mut first_bits: Option<Vec<u32>> = None;
        for (weight, elements) in
            [(in_bf16.slice(), Elements::Bf16), (in_f32.slice(), Elements::F32), (in_f16.slice(), Elements::F16)]
        {
            for step in [ROWS, 1, 3, 4, 5, 8] {
                let y: Floats = room(backend, ROWS * out_features);
                run(backend, |launcher, encoder| {
                    (0..ROWS).step_by(step).try_for_each(|first| {
                        let params = LinearParams {
                            weight,
                            x: from(&x, 4 + first * stride),
                            y: from(&y, first * out_features),
                            x_stride: stride as i64,
                            y_stride: out_features as i64,
                            num_rows: (ROWS - first).min(step) as i32,
                            in_features: in_features as i32,
                            out_features: out_features as i32,
                            rows_per_x: 1,
                            ..LinearParams::default()
                        };
                        // SAFETY: weight and rows have these sizes, and live until the work is done.
                        unsafe { launcher.dense_linear(encoder, &params, elements) }
                    })
                });
                let got = read(&y);
                near(&got, &want, 1e-5);
                let got = bits(&got);
                assert!(*first_bits.get_or_insert_with(|| got.clone()) == got, "{elements:?}, {step} rows at a time");
            }
        }
    }
}

/// A matrix of its own for each row, and rows that read the same input.
pub fn linear_of_experts(backend: &MetalBackend) {
    let mut rng = Rng::new(2);
    const EXPERTS: [u32; 6] = [2, 0, 1, 2, 2, 1];
    let (in_features, out_features) = (20, 7);
    let weights = random(&mut rng, 3 * in_features * out_features);
    let x = random(&mut rng, 3 * in_features);
    let mut want = Vec::new();
    for (row, &expert) in EXPERTS.iter().enumerate() {
        let matrix = &weights[expert as usize * in_features * out_features..][..in_features * out_features];
        let x = &x[row / 2 * in_features..][..in_features];
        let product = |w: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>();
        want.extend(matrix.chunks_exact(in_features).map(product));
    }
    let (weights, x, experts) = (upload(backend, &weights), upload(backend, &x), upload(backend, &EXPERTS));
    let y: Floats = room(backend, want.len());
    let params = LinearParams {
        weight: weights.slice(),
        x: x.slice(),
        experts: experts.slice(),
        y: y.slice(),
        x_stride: in_features as i64,
        y_stride: out_features as i64,
        expert_stride: (in_features * out_features) as i64,
        num_rows: EXPERTS.len() as i32,
        in_features: in_features as i32,
        out_features: out_features as i32,
        rows_per_x: 2,
    };
    // SAFETY: the buffers have these sizes, and live until the work is done.
    run(backend, |launcher, encoder| unsafe { launcher.dense_linear(encoder, &params, Elements::F32) });
    near(&read(&y), &want, 1e-5);
}

pub fn norms_with_and_without_a_delta(backend: &MetalBackend) {
    const ROWS: usize = 3;
    let mut rng = Rng::new(3);
    for len in [1, 96, 256, 600] {
        let (x, delta) = (random(&mut rng, ROWS * len), random(&mut rng, ROWS * len));
        let factor = random(&mut rng, len);
        for has_delta in [false, true] {
            let sums: Vec<f32> = x.iter().zip(&delta).map(|(x, d)| if has_delta { x + d } else { *x }).collect();
            let mut want = Vec::new();
            for row in sums.chunks_exact(len) {
                let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / len as f64;
                want.extend(row.iter().zip(&factor).map(|(x, f)| f64::from(*x) / (mean + 1e-6).sqrt() * f64::from(*f)));
            }
            let (of_x, of_delta, of_factor) = (upload(backend, &x), upload(backend, &delta), upload(backend, &factor));
            let out: Floats = room(backend, ROWS * len);
            let params = DenseNormParams {
                x: of_x.slice(),
                delta: if has_delta { of_delta.slice() } else { Slice::NONE },
                factor: of_factor.slice(),
                out: out.slice(),
                x_stride: len as i64,
                delta_stride: len as i64,
                out_stride: len as i64,
                num_rows: ROWS as i32,
                len: len as i32,
                eps: 1e-6,
            };
            // SAFETY: the buffers have these sizes, and live until the work is done.
            run(backend, |launcher, encoder| unsafe { launcher.dense_rms_norm(encoder, &params) });
            near(&read(&out), &want, 1e-6);
            assert_eq!(read(&of_x), sums);
        }
    }
}

pub fn embedding_and_silu(backend: &MetalBackend) {
    let mut rng = Rng::new(4);
    let table: Vec<bf16> = random(&mut rng, 5 * 7).iter().map(|&x| bf16::from_f32(x)).collect();
    let want: Vec<f32> = [3, 0, 4, 4].iter().flat_map(|&row| &table[7 * row..][..7]).map(|x| x.to_f32()).collect();
    // An id beyond the table reads its last row.
    let (table, tokens) = (upload(backend, &table), upload(backend, &[9u32, 3, 0, 4, 77]));
    let out: Floats = room(backend, want.len());
    let params = EmbedParams {
        table: table.slice(),
        tokens: from(&tokens, 1),
        out: out.slice(),
        len: 7,
        num_tokens: 4,
        vocab_size: 5,
        dtype: Elements::Bf16,
    };
    // SAFETY: the buffers have these sizes, and live until the work is done.
    run(backend, |launcher, encoder| unsafe { launcher.dense_embed(encoder, &params) });
    assert_eq!(read(&out), want);

    let (num_rows, len) = (3, 150);
    let gate_up: Vec<f32> = random(&mut rng, num_rows * 2 * len).iter().map(|x| 20.0 * x).collect();
    let silu_mul = |i: usize| {
        let at = i / len * 2 * len + i % len;
        let (gate, up) = (f64::from(gate_up[at]), f64::from(gate_up[at + len]));
        gate * sigmoid(gate) * up
    };
    let want: Vec<f64> = (0..num_rows * len).map(silu_mul).collect();
    let (gate_up, out) = (upload(backend, &gate_up), room::<f32>(backend, want.len()));
    let params =
        SiluMulParams { gate_up: gate_up.slice(), out: out.slice(), len: len as i64, num_rows: num_rows as i32 };
    // SAFETY: as above.
    run(backend, |launcher, encoder| unsafe { launcher.dense_silu_mul(encoder, &params) });
    near(&read(&out), &want, 1e-6);
}

pub fn the_largest_of_a_row(backend: &MetalBackend) {
    let mut rng = Rng::new(5);
    for len in [1usize, 63, 4096, 9000] {
        let mut rows: Vec<Vec<f32>> = (0..7).map(|_| random(&mut rng, len)).collect();
        let best = |row: &Vec<f32>| (0..len).reduce(|best, i| if row[i] > row[best] { i } else { best });
        let mut want: Vec<u32> = rows.iter().map(|row| best(row).unwrap() as u32).collect();
        rows[1] = vec![-3.0; len];
        want[1] = 0;
        rows[2] = vec![f32::NEG_INFINITY; len];
        want[2] = INVALID;
        rows[3][len / 2] = -f32::NAN;
        want[3] = INVALID;
        rows[4][len - 1] = f32::INFINITY;
        want[4] = INVALID;
        // Both zeros are equal.
        rows[5] = (0..len).map(|i| if i % 2 == 0 { -0.0 } else { 0.0 }).collect();
        want[5] = 0;
        rows[6][..len - 1].fill(f32::NEG_INFINITY);
        want[6] = len as u32 - 1;
        let x = upload(backend, &rows.concat());
        let (parts, out) = (room::<u32>(backend, 2 * 7 * argmax_parts(len)), upload(backend, &[5u32; 8]));
        let params = ArgmaxParams {
            x: x.slice(),
            parts: parts.slice(),
            out: from(&out, 1),
            len: len as i64,
            num_rows: 7,
            num_parts: argmax_parts(len) as i32,
        };
        // SAFETY: the buffers have these sizes, and live until the work is done.
        run(backend, |launcher, encoder| unsafe { launcher.dense_argmax(encoder, &params) });
        let got = read(&out);
        assert_eq!((got[0], &got[1..]), (5, &want[..]), "{len} elements");
    }
}

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const ROTARY: usize = 8;
const EPS: f64 = 1e-6;

/// A head behind its norm and its rotation.
fn turned(x: &[f32], factor: &[f32], angles: &[f32]) -> Vec<f64> {
    let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len() as f64;
    let y: Vec<f64> = x.iter().zip(factor).map(|(x, f)| f64::from(*x) / (mean + EPS).sqrt() * f64::from(*f)).collect();
    let pairs = ROTARY / 2;
    let angle = |i: usize| f64::from(angles[i]);
    let turn = |i| match i {
        i if i < pairs => y[i] * angle(i) - y[i + pairs] * angle(pairs + i),
        i if i < ROTARY => y[i] * angle(i - pairs) + y[i - pairs] * angle(i),
        i => y[i],
    };
    (0..x.len()).map(turn).collect()
}

/// Rotation and attention of tokens behind some positions, token by token and all together.
pub fn attention_over_a_cache(backend: &MetalBackend) {
    let mut rng = Rng::new(6);
    let (d, capacity, held, n) = (20, 300, 125, 6);
    let row = (2 * HEADS + 2 * KV_HEADS) * d;
    let qkv = random(&mut rng, n * row);
    let (q_factor, k_factor) = (random(&mut rng, d), random(&mut rng, d));
    let rope = random(&mut rng, capacity * ROTARY);
    let (mut keys, mut values) = (random(&mut rng, capacity * KV_HEADS * d), random(&mut rng, capacity * KV_HEADS * d));
    let (of_keys, of_values) = (upload(backend, &keys), upload(backend, &values));
    let scale = (d as f64).sqrt().recip();

    let mut queries = Vec::new();
    for t in 0..n {
        let angles = &rope[(held + t) * ROTARY..][..ROTARY];
        for head in 0..KV_HEADS {
            let x = &qkv[t * row + (2 * HEADS + head) * d..][..d];
            let at = ((held + t) * KV_HEADS + head) * d;
            let turned = turned(x, &k_factor, angles);
            keys[at..at + d].iter_mut().zip(turned).for_each(|(to, x)| *to = x as f32);
            values[at..at + d].copy_from_slice(&qkv[t * row + (2 * HEADS + KV_HEADS + head) * d..][..d]);
        }
        for head in 0..HEADS {
            let x = &qkv[t * row + 2 * head * d..][..d];
            queries.push(turned(x, &q_factor, angles).into_iter().map(|x| x * scale).collect::<Vec<_>>());
        }
    }
    let mut want = Vec::new();
    for (unit, query) in queries.iter().enumerate() {
        let (t, head) = (unit / HEADS, unit % HEADS);
        let at = |j: usize| (j * KV_HEADS + head / (HEADS / KV_HEADS)) * d;
        let score = |j| query.iter().zip(&keys[at(j)..]).map(|(q, k)| q * f64::from(*k)).sum::<f64>();
        let weights: Vec<f64> = (0..=held + t).map(|j| score(j).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for i in 0..d {
            let value: f64 = weights.iter().enumerate().map(|(j, w)| w * f64::from(values[at(j) + i])).sum();
            want.push(value / sum * sigmoid(f64::from(qkv[t * row + (2 * head + 1) * d + i])));
        }
    }

    let [qkv, q_factor, k_factor, rope] = [&qkv, &q_factor, &k_factor, &rope].map(|data| upload(backend, data));
    let words = upload(backend, &[7u32, held as u32]);
    let rotate = |query: &Floats| RotateParams {
        qkv: qkv.slice(),
        q_factor: q_factor.slice(),
        k_factor: k_factor.slice(),
        rope: rope.slice(),
        len_held: from(&words, 1),
        query: query.slice(),
        keys: of_keys.slice(),
        values: of_values.slice(),
        qkv_stride: row as i64,
        num_tokens: n as i32,
        num_heads: HEADS as i32,
        num_kv_heads: KV_HEADS as i32,
        head_dim: d as i32,
        rotary_dim: ROTARY as i32,
        offset: 0,
        eps: EPS as f32,
        scale: scale as f32,
    };
    let segments = attention_segments(capacity);
    let parts: Floats = room(backend, n * HEADS * segments * (d + 2));
    let attend = |query: &Floats, out: &Floats, first: usize, step: usize| AttentionParams {
        query: from(query, first * HEADS * d),
        keys: of_keys.slice(),
        values: of_values.slice(),
        len_held: from(&words, 1),
        parts: parts.slice(),
        gate: from(&qkv, first * row + d),
        out: from(out, first * HEADS * d),
        gate_stride: row as i64,
        num_tokens: (n - first).min(step) as i32,
        num_heads: HEADS as i32,
        num_kv_heads: KV_HEADS as i32,
        head_dim: d as i32,
        num_segments: segments as i32,
        offset: first as i32,
    };
    let mut first_bits: Option<Vec<u32>> = None;
    for step in [n, 1, 4] {
        let (query, out): (Floats, Floats) = (room(backend, n * HEADS * d), room(backend, n * HEADS * d));
        // SAFETY: the buffers have these sizes, and live until the work is done; all positions are below the capacity.
        run(backend, |launcher, encoder| unsafe {
            launcher.dense_rotate(encoder, &rotate(&query))?;
            (0..n)
                .step_by(step)
                .try_for_each(|first| launcher.dense_attention(encoder, &attend(&query, &out, first, step)))
        });
        let got = read(&out);
        near(&got, &want, 1e-5);
        let got = bits(&got);
        assert!(*first_bits.get_or_insert_with(|| got.clone()) == got, "{step} tokens at a time");
    }
    // The cache has the keys and values of the tokens, and is otherwise as it was.
    near(&read(&of_keys), &keys.iter().map(|&x| x.into()).collect::<Vec<_>>(), 1e-6);
    assert_eq!(read(&of_values), values);
}

pub fn experts_are_chosen_and_added_up(backend: &MetalBackend) {
    let mut rng = Rng::new(7);
    let (n, num_experts, top_k, len) = (5, 70, 3, 9);
    let mut logits: Vec<f32> = random(&mut rng, n * (num_experts + 1)).iter().map(|x| 4.0 * x).collect();
    // Equal ones: the lower numbers.
    logits[..num_experts].fill(0.5);
    let (results, shared) = (random(&mut rng, n * top_k * len), random(&mut rng, n * len));
    for norm_topk_prob in [false, true] {
        let (mut chosen, mut weights, mut want) = (Vec::new(), Vec::new(), Vec::new());
        for t in 0..n {
            let row = &logits[t * (num_experts + 1)..][..num_experts];
            let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
            let mut order: Vec<usize> = (0..num_experts).collect();
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
            let mut best = order[..top_k].to_vec();
            best.sort_unstable();
            let mut probabilities: Vec<f64> = best.iter().map(|&e| f64::from(row[e]).exp() / sum).collect();
            if norm_topk_prob {
                let total: f64 = probabilities.iter().sum();
                probabilities.iter_mut().for_each(|p| *p /= total);
            }
            let gate = sigmoid(f64::from(logits[t * (num_experts + 1) + num_experts]));
            for j in 0..len {
                let of_experts = (0..top_k).map(|s| probabilities[s] * f64::from(results[(t * top_k + s) * len + j]));
                want.push(of_experts.sum::<f64>() + gate * f64::from(shared[t * len + j]));
            }
            chosen.extend(best.iter().map(|&e| e as u32));
            weights.extend(probabilities);
        }
        let [of_logits, of_results, of_shared] = [&logits, &results, &shared].map(|data| upload(backend, data));
        let (experts, of_weights) = (room::<u32>(backend, n * top_k), room::<f32>(backend, n * top_k));
        let out: Floats = room(backend, n * len);
        let params = MoeParams {
            logits: of_logits.slice(),
            experts: experts.slice(),
            weights: of_weights.slice(),
            results: of_results.slice(),
            shared: of_shared.slice(),
            out: out.slice(),
            len: len as i64,
            num_tokens: n as i32,
            num_experts: num_experts as i32,
            top_k: top_k as i32,
            norm_topk_prob: if norm_topk_prob { Switch::On } else { Switch::Off },
        };
        // SAFETY: the buffers have these sizes, and live until the work is done.
        run(backend, |launcher, encoder| unsafe {
            launcher.dense_moe_route(encoder, &params)?;
            launcher.dense_moe_sum(encoder, &params)
        });
        assert_eq!(read(&experts), chosen);
        near(&read(&of_weights), &weights, 1e-6);
        near(&read(&out), &want, 1e-6);
    }
}

/// Words are written in their turn, and no others.
pub fn words_are_written_in_their_turn(backend: &MetalBackend) {
    let words: Vec<u32> = (0..3000).collect();
    let to = upload(backend, &[7u32; 3010]);
    // SAFETY: so many words lie in the buffer, which lives until the work is done.
    run(backend, |launcher, encoder| unsafe {
        launcher.write_words(encoder, from(&to, 3), &words)?;
        launcher.clear_words(encoder, from(&to, 1000), 500)?;
        launcher.write_words(encoder, from(&to, 1100), &[5, 6])
    });
    let want = |i: usize| match i {
        1100 => 5,
        1101 => 6,
        1000..1500 => 0,
        3..3003 => words[i - 3],
        _ => 7,
    };
    assert_eq!(read(&to), (0..3010).map(want).collect::<Vec<u32>>());
}
