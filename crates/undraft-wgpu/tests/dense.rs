//! The dense parts against loops in f64, and the law: a row's values are the same bits whichever rows come with it.

mod common;

use undraft_core::{bf16, f16};
use undraft_testing::Rng;
use undraft_wgpu::dense::{
    ArgmaxBuffers, ArgmaxParams, AttentionBuffers, AttentionParams, DenseNormBuffers, DenseNormParams, EmbedBuffers,
    EmbedParams, INVALID, LinearBuffers, LinearParams, MoeBuffers, MoeParams, RotateBuffers, RotateParams,
    SiluMulBuffers, SiluMulParams, argmax_parts, attention_segments,
};
use undraft_wgpu::raw::Elements;
use undraft_wgpu::{Batch, Binding, Device, DeviceOptions, wgpu};

fn device() -> Option<Device> {
    common::first_device(&DeviceOptions::default()).map(|backend| backend.device().clone())
}

fn upload<T: Into<f32> + Copy>(device: &Device, data: &[T]) -> wgpu::Buffer {
    let data: Vec<f32> = data.iter().map(|&x| x.into()).collect();
    device.buffer_from("data", &data).unwrap()
}

/// Runs what `add` adds and reads `len` words.
fn run(device: &Device, out: &wgpu::Buffer, len: usize, add: impl FnOnce(&mut Batch<'_>)) -> Vec<u32> {
    let mut batch = Batch::new(device);
    add(&mut batch);
    let read = batch.finish().unwrap().run(&[Binding::part(out, 0..4 * len as u64)]).unwrap();
    read[0].as_chunks::<4>().0.iter().map(|&word| u32::from_le_bytes(word)).collect()
}

fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().map(|&word| f32::from_bits(word)).collect()
}

#[track_caller]
fn near(got: &[u32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(1e-30, |max: f64, x| max.max(x.abs()));
    for (i, (got, want)) in floats(got).iter().zip(want).enumerate() {
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

#[test]
fn linear_of_any_rows_and_types() {
    let Some(device) = device() else { return };
    let mut rng = Rng::new(1);
    for (in_features, out_features) in [(4, 1), (96, 37), (132, 9), (512, 64), (1000, 5)] {
        const ROWS: usize = 17;
        let weights: Vec<bf16> =
            random(&mut rng, in_features * out_features).iter().map(|&x| bf16::from_f32(x)).collect();
        // A stride and a start of their own.
        let stride = in_features + 8;
        let x = random(&mut rng, 4 + ROWS * stride);
        let mut want = Vec::new();
        for t in 0..ROWS {
            for row in weights.chunks_exact(in_features) {
                let x = &x[4 + t * stride..][..in_features];
                want.push(row.iter().zip(x).map(|(w, x)| w.to_f64() * f64::from(*x)).sum::<f64>());
            }
        }
        let of_x = upload(&device, &x);
        let halves: Vec<u16> = weights.iter().map(|w| w.to_bits()).collect();
        // bf16 with so few bits of mantissa that f16 has them as well.
        let as_f16: Vec<f16> = weights.iter().map(|w| f16::from_f32(w.to_f32())).collect();
        let exact = weights.iter().zip(&as_f16).all(|(a, b)| a.to_f32() == b.to_f32());
        let buffers = [
            (Elements::Bf16, device.buffer_from("weight", &halves).unwrap()),
            (Elements::F32, upload(&device, &weights)),
            (
                Elements::F16,
                device.buffer_from("weight", &as_f16.iter().map(|w| w.to_bits()).collect::<Vec<_>>()).unwrap(),
            ),
        ];
        let mut bits: Option<Vec<u32>> = None;
        for (dtype, weight) in &buffers {
            for step in [ROWS, 1, 3, 4, 5, 8] {
                let y = device.buffer("y", 4 * (ROWS * out_features) as u64).unwrap();
                let got = run(&device, &y, ROWS * out_features, |batch| {
                    for first in (0..ROWS).step_by(step) {
                        let params = LinearParams {
                            x_first: 4 + (first * stride) as u32,
                            y_first: (first * out_features) as u32,
                            x_stride: stride as u32,
                            y_stride: out_features as u32,
                            num_rows: (ROWS - first).min(step) as u32,
                            in_features: in_features as u32,
                            out_features: out_features as u32,
                            rows_per_x: 1,
                            ..LinearParams::default()
                        };
                        let buffers =
                            LinearBuffers { weight: weight.into(), x: (&of_x).into(), experts: None, y: (&y).into() };
                        batch.dense_linear(&buffers, &params, *dtype).unwrap();
                    }
                });
                near(&got, &want, 1e-5);
                if *dtype != Elements::F16 || exact {
                    assert!(*bits.get_or_insert_with(|| got.clone()) == got, "{dtype:?}, {step} rows at a time");
                }
            }
        }
    }
}

#[test]
fn linear_of_experts() {
    let Some(device) = device() else { return };
    let mut rng = Rng::new(2);
    const EXPERTS: [u32; 6] = [2, 0, 1, 2, 2, 1];
    let (in_features, out_features) = (20, 7);
    let weights = random(&mut rng, 3 * in_features * out_features);
    let x = random(&mut rng, 3 * in_features);
    let mut want = Vec::new();
    for (row, &expert) in EXPERTS.iter().enumerate() {
        let matrix = &weights[expert as usize * in_features * out_features..][..in_features * out_features];
        let x = &x[row / 2 * in_features..][..in_features];
        want.extend(
            matrix
                .chunks_exact(in_features)
                .map(|w| w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>()),
        );
    }
    let (weight, x) = (upload(&device, &weights), upload(&device, &x));
    let experts = device.buffer_from("experts", &EXPERTS).unwrap();
    let y = device.buffer("y", 4 * want.len() as u64).unwrap();
    let params = LinearParams {
        x_stride: in_features as u32,
        y_stride: out_features as u32,
        num_rows: EXPERTS.len() as u32,
        in_features: in_features as u32,
        out_features: out_features as u32,
        rows_per_x: 2,
        ..LinearParams::default()
    };
    let got = run(&device, &y, want.len(), |batch| {
        let experts = Some((&experts).into());
        let buffers = LinearBuffers { weight: (&weight).into(), x: (&x).into(), experts, y: (&y).into() };
        batch.dense_linear(&buffers, &params, Elements::F32).unwrap();
    });
    near(&got, &want, 1e-5);
}

#[test]
fn norms_with_and_without_a_delta() {
    let Some(device) = device() else { return };
    let mut rng = Rng::new(3);
    for len in [1, 96, 128, 300] {
        let (x, delta) = (random(&mut rng, 3 * len), random(&mut rng, 3 * len));
        let factor = random(&mut rng, len);
        for has_delta in [0, 1] {
            let mut want = Vec::new();
            for row in 0..3 {
                let row: Vec<f64> = (row * len..(row + 1) * len)
                    .map(|i| f64::from(if has_delta == 1 { x[i] + delta[i] } else { x[i] }))
                    .collect();
                let mean = row.iter().map(|x| x * x).sum::<f64>() / len as f64;
                want.extend(row.iter().zip(&factor).map(|(x, f)| x / (mean + 1e-6).sqrt() * f64::from(*f)));
            }
            let of_x = upload(&device, &x);
            let (of_delta, of_factor) = (upload(&device, &delta), upload(&device, &factor));
            let out = device.buffer("out", 12 * len as u64).unwrap();
            let params = DenseNormParams {
                x_stride: len as u32,
                delta_stride: len as u32,
                out_stride: len as u32,
                has_delta,
                num_rows: 3,
                len: len as u32,
                eps: 1e-6,
                ..DenseNormParams::default()
            };
            let buffers = DenseNormBuffers {
                x: (&of_x).into(),
                delta: (&of_delta).into(),
                factor: (&of_factor).into(),
                out: (&out).into(),
            };
            near(&run(&device, &out, 3 * len, |batch| batch.dense_rms_norm(&buffers, &params).unwrap()), &want, 1e-6);
            let sum = run(&device, &of_x, 3 * len, |_| {});
            for (i, got) in floats(&sum).into_iter().enumerate() {
                assert_eq!(got, if has_delta == 1 { x[i] + delta[i] } else { x[i] });
            }
        }
    }
}

#[test]
fn embedding_and_silu() {
    let Some(device) = device() else { return };
    let mut rng = Rng::new(4);
    let table: Vec<bf16> = random(&mut rng, 5 * 7).iter().map(|&x| bf16::from_f32(x)).collect();
    let halves: Vec<u16> = table.iter().map(|x| x.to_bits()).collect();
    let (table_buffer, tokens) =
        (device.buffer_from("table", &halves).unwrap(), device.buffer_from("tokens", &[9u32, 3, 0, 4, 77]).unwrap());
    let out = device.buffer("out", 4 * 28).unwrap();
    let params = EmbedParams {
        tokens_first: 1,
        len: 7,
        num_tokens: 4,
        vocab_size: 5,
        dtype: Elements::Bf16.word(),
        ..EmbedParams::default()
    };
    let buffers = EmbedBuffers { table: (&table_buffer).into(), tokens: (&tokens).into(), out: (&out).into() };
    let got = floats(&run(&device, &out, 28, |batch| batch.dense_embed(&buffers, &params).unwrap()));
    let want: Vec<f32> =
        [3, 0, 4, 4].iter().flat_map(|&row| &table[7 * row..7 * row + 7]).map(|x| x.to_f32()).collect();
    assert_eq!(got, want);

    let gate_up: Vec<f32> = random(&mut rng, 3 * 2 * 50).iter().map(|x| 20.0 * x).collect();
    let want: Vec<f64> = (0..150)
        .map(|i| {
            let at = i / 50 * 100 + i % 50;
            let (gate, up) = (f64::from(gate_up[at]), f64::from(gate_up[at + 50]));
            gate * sigmoid(gate) * up
        })
        .collect();
    let of_gate_up = upload(&device, &gate_up);
    let out = device.buffer("out", 600).unwrap();
    let buffers = SiluMulBuffers { gate_up: (&of_gate_up).into(), out: (&out).into() };
    let params = SiluMulParams { num_rows: 3, len: 50 };
    near(&run(&device, &out, 150, |batch| batch.dense_silu_mul(&buffers, &params).unwrap()), &want, 1e-6);
}

#[test]
fn the_largest_of_a_row() {
    let Some(device) = device() else { return };
    let mut rng = Rng::new(5);
    for len in [1usize, 63, 1024, 3000] {
        let mut rows: Vec<Vec<f32>> = (0..7).map(|_| random(&mut rng, len)).collect();
        let mut want: Vec<u32> = rows
            .iter()
            .map(|row| (0..len).reduce(|best, i| if row[i] > row[best] { i } else { best }).unwrap() as u32)
            .collect();
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
        let x = upload(&device, &rows.concat());
        let parts = device.buffer("parts", 8 * (7 * argmax_parts(len)) as u64).unwrap();
        let out = device.buffer("out", 4 * 8).unwrap();
        let buffers = ArgmaxBuffers { x: (&x).into(), parts: (&parts).into(), out: (&out).into() };
        let params = ArgmaxParams { out_first: 1, len: len as u32, num_rows: 7, num_parts: argmax_parts(len) as u32 };
        let got = run(&device, &out, 8, |batch| batch.dense_argmax(&buffers, &params).unwrap());
        assert_eq!(got[1..], want, "{len} elements");
    }
}

/// Rotation and attention of tokens behind some positions, token by token and all together.
#[test]
fn attention_over_a_cache() {
    let Some(device) = device() else { return };
    let mut rng = Rng::new(6);
    const HEADS: usize = 4;
    const KV: usize = 2;
    const ROTARY: usize = 8;
    let (d, capacity, held, n) = (20, 300, 125, 6);
    let row = (2 * HEADS + 2 * KV) * d;
    let qkv = random(&mut rng, n * row);
    let (q_factor, k_factor) = (random(&mut rng, d), random(&mut rng, d));
    let rope = random(&mut rng, capacity * ROTARY);
    let (mut keys, mut values) = (random(&mut rng, capacity * KV * d), random(&mut rng, capacity * KV * d));
    let buffers = [&qkv, &q_factor, &k_factor, &rope].map(|data| upload(&device, data));
    let [of_qkv, of_q, of_k, of_rope] = &buffers;
    let scale = (d as f64).sqrt().recip();
    let segments = attention_segments(capacity);

    let turned = |x: &[f32], factor: &[f32], position: usize| -> Vec<f64> {
        let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / d as f64;
        let y: Vec<f64> =
            x.iter().zip(factor).map(|(x, f)| f64::from(*x) / (mean + 1e-6).sqrt() * f64::from(*f)).collect();
        let half = ROTARY / 2;
        let angle = |i: usize| f64::from(rope[position * ROTARY + i]);
        (0..d)
            .map(|i| match i {
                i if i < half => y[i] * angle(i) - y[i + half] * angle(half + i),
                i if i < ROTARY => y[i] * angle(i - half) + y[i - half] * angle(i),
                i => y[i],
            })
            .collect()
    };
    let mut queries = Vec::new();
    let (of_keys, of_values) = (upload(&device, &keys), upload(&device, &values));
    for t in 0..n {
        for head in 0..KV {
            let x = &qkv[t * row + (2 * HEADS + head) * d..][..d];
            let at = ((held + t) * KV + head) * d;
            for (i, y) in turned(x, &k_factor, held + t).into_iter().enumerate() {
                keys[at + i] = y as f32;
            }
            values[at..at + d].copy_from_slice(&qkv[t * row + (2 * HEADS + KV + head) * d..][..d]);
        }
        for head in 0..HEADS {
            let x = &qkv[t * row + 2 * head * d..][..d];
            queries.push(turned(x, &q_factor, held + t).into_iter().map(|x| x * scale).collect::<Vec<_>>());
        }
    }
    let mut want = Vec::new();
    for (unit, query) in queries.iter().enumerate() {
        let (t, head) = (unit / HEADS, unit % HEADS);
        let at = |j: usize| (j * KV + head / (HEADS / KV)) * d;
        let weights: Vec<f64> = (0..=held + t)
            .map(|j| query.iter().zip(&keys[at(j)..]).map(|(q, k)| q * f64::from(*k)).sum::<f64>().exp())
            .collect();
        let sum: f64 = weights.iter().sum();
        for i in 0..d {
            let value: f64 = weights.iter().enumerate().map(|(j, w)| w * f64::from(values[at(j) + i])).sum();
            want.push(value / sum * sigmoid(f64::from(qkv[t * row + (2 * head + 1) * d + i])));
        }
    }

    let mut bits: Option<Vec<u32>> = None;
    for step in [n, 1, 4] {
        let (query, out) =
            (upload(&device, &vec![0.0f32; n * HEADS * d]), upload(&device, &vec![0.0f32; n * HEADS * d]));
        let parts = device.buffer("parts", 4 * (n * HEADS * segments * (d + 2)) as u64).unwrap();
        let words = device.buffer_from("words", &[7u32, held as u32]).unwrap();
        let got = run(&device, &out, n * HEADS * d, |batch| {
            let rotate = RotateBuffers {
                qkv: of_qkv.into(),
                q_factor: of_q.into(),
                k_factor: of_k.into(),
                rope: of_rope.into(),
                words: (&words).into(),
                query: (&query).into(),
                keys: (&of_keys).into(),
                values: (&of_values).into(),
            };
            let params = RotateParams {
                len_at: 1,
                offset: 0,
                num_tokens: n as u32,
                num_heads: HEADS as u32,
                num_kv_heads: KV as u32,
                head_dim: d as u32,
                rotary_dim: ROTARY as u32,
                eps: 1e-6,
                scale: scale as f32,
            };
            batch.dense_rotate(&rotate, &params).unwrap();
            for first in (0..n).step_by(step) {
                let attention = AttentionBuffers {
                    query: (&query).into(),
                    keys: (&of_keys).into(),
                    values: (&of_values).into(),
                    words: (&words).into(),
                    parts: (&parts).into(),
                    gate: of_qkv.into(),
                    out: (&out).into(),
                };
                let params = AttentionParams {
                    query_first: (first * HEADS * d) as u32,
                    gate_first: (first * row + d) as u32,
                    out_first: (first * HEADS * d) as u32,
                    gate_stride: row as u32,
                    len_at: 1,
                    offset: first as u32,
                    num_tokens: (n - first).min(step) as u32,
                    num_heads: HEADS as u32,
                    num_kv_heads: KV as u32,
                    head_dim: d as u32,
                    num_segments: segments as u32,
                    ..AttentionParams::default()
                };
                batch.dense_attention(&attention, &params).unwrap();
            }
        });
        near(&got, &want, 1e-5);
        assert!(*bits.get_or_insert_with(|| got.clone()) == got, "{step} tokens at a time");
    }
}

#[test]
fn experts_are_chosen_and_added_up() {
    let Some(device) = device() else { return };
    let mut rng = Rng::new(7);
    let (n, num_experts, top_k, len) = (5, 70, 3, 9);
    let mut logits: Vec<f32> = random(&mut rng, n * (num_experts + 1)).iter().map(|x| 4.0 * x).collect();
    // Equal ones: the lower numbers.
    logits[..num_experts].fill(0.5);
    let (results, shared) = (random(&mut rng, n * top_k * len), random(&mut rng, n * len));
    for norm_topk_prob in [0, 1] {
        let (mut chosen, mut weights, mut want) = (Vec::new(), Vec::new(), Vec::new());
        for t in 0..n {
            let row = &logits[t * (num_experts + 1)..][..num_experts];
            let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
            let mut order: Vec<usize> = (0..num_experts).collect();
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
            let mut best = order[..top_k].to_vec();
            best.sort_unstable();
            let mut probabilities: Vec<f64> = best.iter().map(|&e| f64::from(row[e]).exp() / sum).collect();
            if norm_topk_prob == 1 {
                let total: f64 = probabilities.iter().sum();
                probabilities.iter_mut().for_each(|p| *p /= total);
            }
            let gate = sigmoid(f64::from(logits[t * (num_experts + 1) + num_experts]));
            for j in 0..len {
                let experts: f64 =
                    (0..top_k).map(|s| probabilities[s] * f64::from(results[(t * top_k + s) * len + j])).sum();
                want.push(experts + gate * f64::from(shared[t * len + j]));
            }
            chosen.extend(best.iter().map(|&e| e as u32));
            weights.extend(probabilities);
        }
        let [of_logits, of_results, of_shared] = [&logits, &results, &shared].map(|data| upload(&device, data));
        let experts = device.buffer("experts", 4 * (n * top_k) as u64).unwrap();
        let of_weights = device.buffer("weights", 4 * (n * top_k) as u64).unwrap();
        let out = device.buffer("out", 4 * (n * len) as u64).unwrap();
        let buffers = MoeBuffers {
            logits: (&of_logits).into(),
            experts: (&experts).into(),
            weights: (&of_weights).into(),
            results: (&of_results).into(),
            shared: (&of_shared).into(),
            out: (&out).into(),
        };
        let params = MoeParams {
            len: len as u32,
            num_tokens: n as u32,
            num_experts: num_experts as u32,
            top_k: top_k as u32,
            norm_topk_prob,
        };
        let got = run(&device, &experts, n * top_k, |batch| batch.dense_moe_route(&buffers, &params).unwrap());
        assert_eq!(got, chosen);
        near(&run(&device, &of_weights, n * top_k, |_| {}), &weights, 1e-6);
        near(&run(&device, &out, n * len, |batch| batch.dense_moe_sum(&buffers, &params).unwrap()), &want, 1e-6);
    }
}
