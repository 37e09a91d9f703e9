//! The files agree with the oracle, and reject it where a convention is read wrongly.

use super::*;
use crate::cases::widen;
use crate::oracle::fused_recurrent_gated_delta_rule::{Beta, Decay, DeltaRule, Solution};
use crate::oracle::{causal_conv1d_update::Conv, fused_gdn_gating::Gating, rms_norm_gated::Norm};

/// A hundred times what a right result may be off.
const FAR: f64 = 100.0 * tolerance::GOLDEN.rel_rms;

fn open<T: Copy>(files: &[File<T>], name: &str) -> (Golden, T) {
    let file = files.iter().find(|file| file.name == format!("ops/{name}.safetensors")).expect("a file of that name");
    (Golden::from_bytes(file.name, file.bytes).expect("a safetensors file"), file.what)
}

fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&x| x as f32).collect()
}

/// RMS(error) / RMS of the source that lies nearest.
fn off(golden: &Golden, tensor: &str, got: &[f32]) -> f64 {
    let any = Tolerance { rel_rms: f64::INFINITY, worst: f64::INFINITY };
    let one = |(name, expected): (&str, &Tensor)| {
        let axes = [("element", got.len())];
        compare::values(name, got, expected.f64s().expect("floats"), &axes, any).expect("finite").rel_rms
    };
    results(golden, tensor).expect("a result").into_iter().map(one).fold(f64::INFINITY, f64::min)
}

/// RMS(error) / RMS of the output or of the state, the larger.
fn off_delta_rule(golden: &Golden, dims: &GdnDims, out: &[f64], state: &[f64]) -> f64 {
    let key_major = swapped(&narrow(state), dims.head_v_dim(), dims.head_k_dim());
    off(golden, "o", &narrow(out)).max(off(golden, "state", &key_major))
}

fn off_solution(golden: &Golden, dims: &GdnDims, Solution { out, state_after, .. }: &Solution) -> f64 {
    off_delta_rule(golden, dims, out, state_after)
}

/// q or k with eps where it does not belong, or nowhere.
fn normalised(values: &[f64], size: usize, length: impl Fn(f64) -> f64) -> Vec<f64> {
    let unit = |head: &[f64]| {
        let length = length(head.iter().map(|x| x * x).sum());
        head.iter().map(|x| x / length).collect::<Vec<f64>>()
    };
    values.chunks(size).flat_map(unit).collect()
}

#[test]
fn the_oracle_agrees() {
    for name in ["gdn_t1", "gdn_t5_given", "gdn_t67"] {
        let (golden, io) = open(&DELTA_RULES, name);
        for case in forms(&golden, &delta_rule(&golden, io).unwrap()).unwrap() {
            let off = off_solution(&golden, &case.dims, &case.oracle().solve(false));
            assert!(off < 1e-7, "{name}: {}: {off:.1e}", case.label());
        }
    }
    let (golden, io) = open(&DELTA_RULES, "gdn_t5_bf16");
    let case = delta_rule(&golden, io).unwrap();
    let solution = case.oracle().solve(false);
    let rounded: Vec<f64> = solution.out.iter().map(|&x| f64::from(io.round(x as f32))).collect();
    assert!(off_delta_rule(&golden, &case.dims, &rounded, &solution.state_after) < 1e-7);

    for File { name, bytes, what } in &CONVOLUTIONS {
        let golden = Golden::from_bytes(name, bytes).unwrap();
        let solution = conv(&golden, *what).unwrap().oracle().solve();
        assert!(off(&golden, "out", &narrow(&solution.out)) < 1e-7, "{name}");
    }
    for File { name, bytes, what } in &NORMS {
        let golden = Golden::from_bytes(name, bytes).unwrap();
        let out = norm(&golden, what).unwrap().oracle().solve();
        let rounded: Vec<f32> = out.iter().map(|&x| what.0.round(x as f32)).collect();
        assert!(off(&golden, "out", &rounded) < 1e-7, "{name}");
    }
    for File { name, bytes, what } in &GATES {
        let golden = Golden::from_bytes(name, bytes).unwrap();
        let (g, beta) = gating(&golden).unwrap().oracle().solve();
        assert!(off(&golden, "g", &narrow(&g)) < 1e-7, "{name}");
        if *what == DecayShape::PerHead {
            assert!(off(&golden, "beta", &narrow(&beta)) < 1e-7, "{name}");
        }
    }
}

#[test]
fn wrong_conventions_of_the_delta_rule_are_far_off() {
    let (golden, io) = open(&DELTA_RULES, "gdn_t67");
    let case = delta_rule(&golden, io).unwrap();
    let (k, v) = (case.dims.head_k_dim(), case.dims.head_v_dim());
    let right = case.oracle();
    let unnormalised = || DeltaRule { l2_norm_eps: None, ..right.clone() };
    let with_length = |length: &dyn Fn(f64) -> f64| DeltaRule {
        q: normalised(&right.q, k, length),
        k: normalised(&right.k, k, length),
        ..unnormalised()
    };
    let wrong = [
        ("tiled heads", DeltaRule { head_map: HeadMap::Tiled, ..right.clone() }),
        (
            "state read as value-major",
            DeltaRule { state: widen(&golden.get("state_before").unwrap().f32s().unwrap()), ..right.clone() },
        ),
        ("state left out", DeltaRule { state: vec![0.0; right.state.len()], ..right.clone() }),
        ("eps outside the root", with_length(&|sum| sum.sqrt() + 1e-6)),
        ("eps on the mean", with_length(&|sum| (sum + 1e-6 * k as f64).sqrt())),
        ("eps of 1e-5", DeltaRule { l2_norm_eps: Some(1e-5), ..right.clone() }),
        ("no eps", with_length(&f64::sqrt)),
        ("no norm", unnormalised()),
        ("no scale", DeltaRule { scale: 1.0, ..right.clone() }),
        ("scale of V", DeltaRule { scale: (v as f64).powf(-0.5), ..right.clone() }),
        ("q and k swapped", DeltaRule { q: right.k.clone(), k: right.q.clone(), ..right.clone() }),
    ];
    for (what, rule) in wrong {
        let off = off_solution(&golden, &case.dims, &rule.solve(false));
        assert!(off > FAR, "{what}: {off:.1e}");
    }
    let solution = right.solve(false);
    let as_given = off(&golden, "state", &narrow(&solution.state_after));
    assert!(as_given > FAR, "the state written value-major: {as_given:.1e}");

    let (golden, io) = open(&DELTA_RULES, "gdn_t5_bf16");
    let case = delta_rule(&golden, io).unwrap();
    let rounding = DeltaRuleCase { rounding: Rounding::Io, ..case.clone() }.oracle();
    let off = off_solution(&golden, &case.dims, &rounding.solve(false));
    assert!(off > FAR, "q and k rounded to bf16: {off:.1e}");
}

#[test]
fn wrong_forms_of_decay_and_beta_are_far_off() {
    // One token, since a factor above 1 would leave f32 in a few.
    let (golden, io) = open(&DELTA_RULES, "gdn_t1");
    let case = delta_rule(&golden, io).unwrap();
    let right = case.oracle();
    let tensor = |name: &str| widen(&golden.get(name).unwrap().f32s().unwrap());
    let factors = || widen(&case.decay).into_iter().map(f64::exp).collect();
    let wrong = [
        ("g taken as -g", DeltaRule { decay: Decay::NegLog(tensor("g")), ..right.clone() }),
        ("g taken as the factor", DeltaRule { decay: Decay::Linear(tensor("g")), ..right.clone() }),
        ("the factor taken as g", DeltaRule { decay: Decay::Log(factors()), ..right.clone() }),
        ("a taken as g", DeltaRule { decay: Decay::Log(tensor("a")), ..right.clone() }),
        ("beta taken as its logit", DeltaRule { beta: Beta::Logit(tensor("beta")), ..right.clone() }),
        ("the logit taken as beta", DeltaRule { beta: Beta::Value(tensor("b")), ..right.clone() }),
    ];
    for (what, rule) in wrong {
        let off = off_solution(&golden, &case.dims, &rule.solve(false));
        assert!(off > FAR, "{what}: {off:.1e}");
    }
}

/// The recurrence with a decay per channel, token by token; `factor` is of a token, value head and channel.
fn per_channel(case: &DeltaRuleCase, head_map: HeadMap, factor: &dyn Fn(usize, usize, usize) -> f64) -> [Vec<f64>; 2] {
    let d = &case.dims;
    let (h, k, v) = (d.num_k_heads(), d.head_k_dim(), d.head_v_dim());
    let unit = |values: &[f32]| match case.qk_norm {
        QkNorm::L2Norm { eps } => normalised(&widen(values), k, |sum| (sum + f64::from(eps)).sqrt()),
        QkNorm::AsGiven => widen(values),
    };
    let (q, keys, mut state, mut out) = (unit(&case.q), unit(&case.k), widen(&case.state), Vec::new());
    for t in 0..case.windows.num_tokens() {
        for hv in 0..d.num_v_heads() {
            let from = (t * h + head_map.k_head(d, hv)) * k;
            let (q, key) = (&q[from..from + k], &keys[from..from + k]);
            let at = t * d.num_v_heads() + hv;
            for i in 0..v {
                let row = &mut state[(hv * v + i) * k..][..k];
                row.iter_mut().enumerate().for_each(|(j, s)| *s *= factor(t, hv, j));
                let read: f64 = row.iter().zip(key).map(|(s, k)| s * k).sum();
                let delta = (f64::from(case.v[at * v + i]) - read) * f64::from(case.beta[at]);
                row.iter_mut().zip(key).for_each(|(s, k)| *s += delta * k);
                out.push(f64::from(case.scale) * row.iter().zip(q).map(|(s, q)| s * q).sum::<f64>());
            }
        }
    }
    [out, state]
}

#[test]
fn wrong_conventions_of_the_decay_per_channel_are_far_off() {
    for name in ["kda_t1", "kda_t5_given", "kda_t67"] {
        let (golden, io) = open(&DELTA_RULES, name);
        let case = delta_rule(&golden, io).unwrap();
        let (hv, k) = (case.dims.num_v_heads(), case.dims.head_k_dim());
        let g = |t: usize, head: usize, channel: usize| f64::from(case.decay[(t * hv + head) * k + channel]);
        let off = |map, factor: &dyn Fn(usize, usize, usize) -> f64| {
            let [out, state] = per_channel(&case, map, factor);
            off_delta_rule(&golden, &case.dims, &out, &state)
        };
        let right = off(HeadMap::Grouped, &|t, head, j| g(t, head, j).exp());
        assert!(right < 1e-7, "{name}: {right:.1e}");
        let transposed = |t: usize, head: usize, j: usize| f64::from(case.decay[t * hv * k + j * hv + head]).exp();
        let mean = |t: usize, head: usize, _: usize| ((0..k).map(|j| g(t, head, j)).sum::<f64>() / k as f64).exp();
        let wrong = [
            ("tiled heads", off(HeadMap::Tiled, &|t, head, j| g(t, head, j).exp())),
            ("g as [K, HV]", off(HeadMap::Grouped, &transposed)),
            ("one factor a head", off(HeadMap::Grouped, &mean)),
            ("channels reversed", off(HeadMap::Grouped, &|t, head, j| g(t, head, k - 1 - j).exp())),
            ("the next head's", off(HeadMap::Grouped, &|t, head, j| g(t, (head + 1) % hv, j).exp())),
        ];
        for (what, off) in wrong {
            assert!(off > FAR, "{name}: {what}: {off:.1e}");
        }
    }
}

#[test]
fn wrong_conventions_of_the_convolution_are_far_off() {
    let (golden, activation) = open(&CONVOLUTIONS, "conv_t5");
    let case = conv(&golden, activation).unwrap();
    let (c, right) = (case.dims.channels(), case.oracle());
    let whole = widen(&swapped(&golden.get("state_before").unwrap().f32s().unwrap(), c, case.dims.width()));
    let reversed = |values: &[f64]| values.chunks(c).rev().flatten().copied().collect::<Vec<f64>>();
    let wrong = [
        ("taps reversed", Conv { weight: reversed(&right.weight), ..right.clone() }),
        (
            "weight taken as tap-major",
            Conv { weight: widen(&golden.get("weight").unwrap().f32s().unwrap()), ..right.clone() },
        ),
        ("state newest first", Conv { state: reversed(&right.state), ..right.clone() }),
        ("the oldest input read", Conv { state: whole[..right.state.len()].to_vec(), ..right.clone() }),
        ("no bias", Conv { bias: None, ..right.clone() }),
        ("no activation", Conv { activation: Activation::None, ..right.clone() }),
    ];
    for (what, conv) in wrong {
        let off = off(&golden, "out", &narrow(&conv.solve().out));
        assert!(off > FAR, "{what}: {off:.1e}");
    }
}

#[test]
fn wrong_conventions_of_the_norm_are_far_off() {
    for name in ["norm_silu", "norm_sigmoid"] {
        let (golden, what) = open(&NORMS, name);
        let case = norm(&golden, &what).unwrap();
        let right = case.oracle();
        let (d, eps) = (right.head_dim, right.eps);
        let gated: Vec<f64> = right.z.iter().zip(&right.x).map(|(z, x)| x * z / (1.0 + (-z).exp())).collect();
        let outside = normalised(&right.x, d, |sum| (sum / d as f64).sqrt() + eps);
        let other = match what.1 {
            GateActivation::Silu => GateActivation::Sigmoid,
            GateActivation::Sigmoid => GateActivation::Silu,
        };
        // Where x is normalised already, an eps of 0 leaves it nearly so.
        let wrong = [
            ("eps outside the root", Norm { x: outside, eps: 0.0, ..right.clone() }),
            ("eps on the sum", Norm { eps: eps / d as f64, ..right.clone() }),
            ("no eps", Norm { eps: 0.0, ..right.clone() }),
            ("1 + weight", Norm { weight: right.weight.iter().map(|w| 1.0 + w).collect(), ..right.clone() }),
            ("the other gate", Norm { activation: other, ..right.clone() }),
            ("x gated first", Norm { x: gated, z: vec![40.0; right.z.len()], ..right.clone() }),
        ];
        for (what, norm) in wrong {
            let off = off(&golden, "out", &narrow(&norm.solve()));
            assert!(off > FAR, "{name}: {what}: {off:.1e}");
        }
    }
}

#[test]
fn wrong_conventions_of_the_gate_are_far_off() {
    let (golden, _) = open(&GATES, "gating_head");
    let right = gating(&golden).unwrap().oracle();
    let wrong = [
        ("a and b swapped", Gating { a: right.b.clone(), b: right.a.clone(), ..right.clone() }),
        ("no dt_bias", Gating { dt_bias: vec![0.0; right.dt_bias.len()], ..right.clone() }),
        ("A for A_log", Gating { a_log: right.a_log.iter().map(|a| a.exp()).collect(), ..right.clone() }),
    ];
    for (what, gating) in wrong {
        let off = off(&golden, "g", &narrow(&gating.solve().0));
        assert!(off > FAR, "{what}: {off:.1e}");
    }
}
