//! Single operations against what public implementations compute: transformers, flash-linear-attention and mlx-lm.
//!
//! `tools/golden/make_ops.py` writes the files. A result is a tensor `NAME.SOURCE_PRECISION`, such as `o.fla_f64`, and every
//! one is compared. States are key-major there and the convolution's arrays channel-major; they are turned here.

use undraft_core::ops::GateActivation;
use undraft_core::{
    Activation, Backend, Capture, ConvDims, DType, DecayShape, GdnDims, HeadMap, Op, QkNorm, Rounding, Support,
};

use super::super::Tally;
use super::Ran;
use crate::cases::Windows;
use crate::cases::causal_conv1d_update::ConvCase;
use crate::cases::commit_states::CommitCase;
use crate::cases::fused_gdn_gating::GatingCase;
use crate::cases::fused_recurrent_gated_delta_rule::{BetaForm, DecayForm, DeltaRuleCase, LogData};
use crate::cases::rms_norm_gated::NormCase;
use crate::compare;
use crate::golden::{Golden, Tensor};
use crate::harness::chunk_gated_delta_rule::ChunkOutcome;
use crate::harness::{self, Memory};
use crate::tolerance::{self, Tolerance};

/// A file, and what its tensors do not tell.
struct File<T> {
    name: &'static str,
    bytes: &'static [u8],
    what: T,
}

macro_rules! file {
    ($name:literal, $what:expr) => {{
        let (name, bytes) = embedded!(concat!("ops/", $name, ".safetensors"));
        File { name, bytes, what: $what }
    }};
}

/// Dtype of q, k, v and o.
const DELTA_RULES: [File<DType>; 7] = [
    file!("gdn_t1", DType::F32),
    file!("gdn_t5_given", DType::F32),
    file!("gdn_t67", DType::F32),
    file!("gdn_t5_bf16", DType::Bf16),
    file!("kda_t1", DType::F32),
    file!("kda_t5_given", DType::F32),
    file!("kda_t67", DType::F32),
];
const CONVOLUTIONS: [File<Activation>; 3] =
    [file!("conv_t1", Activation::None), file!("conv_t5", Activation::Silu), file!("conv_t67", Activation::Silu)];
const NORMS: [File<(DType, GateActivation)>; 3] = [
    file!("norm_silu", (DType::F32, GateActivation::Silu)),
    file!("norm_sigmoid", (DType::F32, GateActivation::Sigmoid)),
    file!("norm_sigmoid_bf16", (DType::Bf16, GateActivation::Sigmoid)),
];
const GATES: [File<DecayShape>; 2] =
    [file!("gating_head", DecayShape::PerHead), file!("gating_channel", DecayShape::PerChannel)];

/// Checks `op` in each file that has it.
pub(super) fn run(backend: &dyn Backend, op: Op, tally: &mut Tally) -> Result<(), String> {
    match op {
        Op::CausalConv1dUpdate => each(&CONVOLUTIONS, backend, tally, check_conv_update),
        Op::CausalConv1dFn => each(&CONVOLUTIONS, backend, tally, check_conv_fn),
        Op::FusedGdnGating => each(&GATES, backend, tally, check_gating),
        Op::FusedRecurrentGatedDeltaRule => each(&DELTA_RULES, backend, tally, check_recurrent),
        Op::ChunkGatedDeltaRule => each(&DELTA_RULES, backend, tally, check_chunk),
        Op::CommitStates => each(&DELTA_RULES, backend, tally, check_commit),
        Op::RmsNormGated => each(&NORMS, backend, tally, check_norm),
    }
}

type Check<T> = fn(&dyn Backend, &Golden, &T, &mut Tally) -> Ran<()>;

fn each<T>(files: &[File<T>], backend: &dyn Backend, tally: &mut Tally, check: Check<T>) -> Result<(), String> {
    for File { name, bytes, what } in files {
        let ran = check(backend, &Golden::from_bytes(name, bytes)?, what, tally).map_err(|e| format!("{name}: {e}"))?;
        tally.case(ran.is_some());
    }
    Ok(())
}

/// The results of a tensor, one of each source that has it; at least one.
fn results<'a>(golden: &'a Golden, tensor: &str) -> Result<Vec<(&'a str, &'a Tensor)>, String> {
    let of = |name: &&str| name.split_once('.').is_some_and(|(stem, _)| stem == tensor);
    let found: Vec<_> =
        golden.names().filter(of).map(|name| Ok((name, golden.get(name)?))).collect::<Result<_, String>>()?;
    if found.is_empty() { Err(format!("no result `{tensor}.SOURCE`")) } else { Ok(found) }
}

/// Compares with every source.
fn near(golden: &Golden, tally: &mut Tally, tensor: &str, got: &[f32], bound: Tolerance) -> Result<(), String> {
    for (name, expected) in results(golden, tensor)? {
        let axes = [("row", expected.shape[0]), ("element", expected.row_len())];
        tally.deviation(compare::values(name, got, expected.f64s()?, &axes, bound)?, bound);
    }
    Ok(())
}

/// An input that some files lack.
fn optional(golden: &Golden, tensor: &str) -> Result<Option<Vec<f32>>, String> {
    golden.names().any(|name| name == tensor).then(|| golden.get(tensor)?.f32s()).transpose()
}

fn scalar(golden: &Golden, tensor: &str) -> Result<f32, String> {
    golden.get(tensor)?.f32s()?.first().copied().ok_or_else(|| format!("`{tensor}` is empty"))
}

/// The last two axes of `[.., rows, columns]` in the other order.
fn swapped(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let len = rows * columns;
    (0..values.len()).map(|i| values[i / len * len + i % rows * columns + i % len / rows]).collect()
}

fn one_sequence(num_tokens: usize) -> Windows {
    Windows::chains(vec![num_tokens], vec![0], 1)
}

/// The file's call, with its state turned value-major and the decay given as `g`.
fn delta_rule(golden: &Golden, io: DType) -> Result<DeltaRuleCase, String> {
    let (q, v, g) = (&golden.get("q")?.shape, &golden.get("v")?.shape, golden.get("g")?);
    let decay_shape = if g.shape.len() == 3 { DecayShape::PerChannel } else { DecayShape::PerHead };
    let dims = GdnDims::new(q[1], v[1], q[2], v[2]).map_err(|e| e.to_string())?.with_decay_shape(decay_shape);
    let state = golden.get("state_before")?.f32s()?;
    let decay = g.f32s()?;
    Ok(DeltaRuleCase {
        dims,
        io,
        head_map: HeadMap::Grouped,
        qk_norm: match optional(golden, "l2_norm_eps")? {
            Some(_) => QkNorm::L2Norm { eps: scalar(golden, "l2_norm_eps")? },
            None => QkNorm::AsGiven,
        },
        rounding: Rounding::F32,
        scale: scalar(golden, "scale")?,
        q: golden.get("q")?.f32s()?,
        k: golden.get("k")?.f32s()?,
        v: golden.get("v")?.f32s()?,
        decay_form: DecayForm::Log,
        decay,
        beta_form: BetaForm::Value,
        beta: golden.get("beta")?.f32s()?,
        windows: one_sequence(v[0]),
        state: swapped(&state, dims.head_k_dim(), dims.head_v_dim()),
        state_dtype: DType::F32,
        log: LogData::zeros(&dims, 1, v[0]),
        num_pending: Vec::new(),
        pending_path: Vec::new(),
    })
}

/// The same call in every form in which decay and beta can be given.
fn forms(golden: &Golden, case: &DeltaRuleCase) -> Result<Vec<DeltaRuleCase>, String> {
    let given = |decay_form, of: &dyn Fn(f64) -> f64| {
        let decay = case.decay.iter().map(|&g| of(f64::from(g)) as f32).collect();
        DeltaRuleCase { decay_form, decay, ..case.clone() }
    };
    let gate = DecayForm::Gate { a_log: golden.get("A_log")?.f32s()?, dt_bias: golden.get("dt_bias")?.f32s()? };
    let mut raw = DeltaRuleCase { decay_form: gate, decay: golden.get("a")?.f32s()?, ..case.clone() };
    if let Some(b) = optional(golden, "b")? {
        (raw.beta_form, raw.beta) = (BetaForm::Logit, b);
    }
    Ok(vec![case.clone(), given(DecayForm::Linear, &f64::exp), given(DecayForm::NegLog, &|g| -g), raw])
}

/// Whether the back end knows this shape of the decay.
fn knows(backend: &dyn Backend, op: Op, dims: &GdnDims) -> bool {
    let asked = Support::new(op, dims.head_k_dim(), dims.head_v_dim());
    backend.caps().decay_shapes.contains(&dims.decay_shape()) || backend.caps().supports(&asked).is_err()
}

fn near_delta_rule(
    golden: &Golden,
    tally: &mut Tally,
    case: &DeltaRuleCase,
    out: &[f32],
    state: &[f32],
) -> Result<(), String> {
    let out_bound = match case.io {
        DType::F32 => tolerance::GOLDEN,
        io => tolerance::tolerance(Op::FusedRecurrentGatedDeltaRule, tolerance::Tensor::Out, io, false),
    };
    near(golden, tally, "o", out, out_bound)?;
    near_state(golden, tally, case, state)
}

fn near_state(golden: &Golden, tally: &mut Tally, case: &DeltaRuleCase, state: &[f32]) -> Result<(), String> {
    let key_major = swapped(state, case.dims.head_v_dim(), case.dims.head_k_dim());
    near(golden, tally, "state", &key_major, tolerance::GOLDEN)
}

/// As one window under each capture, and token by token, in each form.
fn check_recurrent(backend: &dyn Backend, golden: &Golden, io: &DType, tally: &mut Tally) -> Ran<()> {
    let plain = delta_rule(golden, *io)?;
    if !knows(backend, Op::FusedRecurrentGatedDeltaRule, &plain.dims) {
        return Ok(None);
    }
    let run = harness::fused_recurrent_gated_delta_rule::run;
    let last = plain.windows.num_tokens() - 1;
    for (i, case) in forms(golden, &plain)?.iter().enumerate() {
        let at = |e| format!("{}: {e}", case.label());
        let Some(outcome) = run(backend, case, Capture::Final, Memory::nth(i)).map_err(at)? else { return Ok(None) };
        near_delta_rule(golden, tally, case, &outcome.out, &outcome.state).map_err(at)?;
        let (mut out, mut state) = (Vec::new(), case.state.clone());
        for t in 0..=last {
            let step = DeltaRuleCase { state, ..case.pick(&[(0, t..t + 1)]) };
            let Some(outcome) = run(backend, &step, Capture::Final, Memory::nth(i + t)).map_err(at)? else {
                return Err(at(format!("token {t} alone was refused")));
            };
            out.extend(outcome.out);
            state = outcome.state;
        }
        near_delta_rule(golden, tally, case, &out, &state).map_err(|e| at(format!("token by token: {e}")))?;
    }
    if let Some(outcome) = run(backend, &plain, Capture::PerToken, Memory::nth(1))? {
        near_delta_rule(golden, tally, &plain, &outcome.out, outcome.captured(0, last))?;
    }
    if let Some(outcome) = run(backend, &plain, Capture::DeltaLog, Memory::nth(2))? {
        near_delta_rule(golden, tally, &plain, &outcome.out, &replayed(&plain, &outcome.log))?;
    }
    Ok(Some(()))
}

/// The state after all tokens of the log, in f64.
fn replayed(case: &DeltaRuleCase, log: &LogData) -> Vec<f32> {
    let d = &case.dims;
    let (h, hv, k, v) = (d.num_k_heads(), d.num_v_heads(), d.head_k_dim(), d.head_v_dim());
    let mut state: Vec<f64> = case.state.iter().map(|&s| f64::from(s)).collect();
    for t in 0..case.windows.num_tokens() {
        for (i, s) in state.iter_mut().enumerate() {
            let (head, row, channel) = (i / (v * k), i / k, i % k);
            let decay = log.decay[t * d.decay_len() + head * d.decay_dim() + channel % d.decay_dim()];
            let key = log.k[(t * h + head / (hv / h)) * k + channel];
            *s = *s * f64::from(decay) + f64::from(log.delta[t * hv * v + row]) * f64::from(key);
        }
    }
    state.iter().map(|&s| s as f32).collect()
}

fn check_chunk(backend: &dyn Backend, golden: &Golden, io: &DType, tally: &mut Tally) -> Ran<()> {
    let plain = delta_rule(golden, *io)?;
    if !knows(backend, Op::ChunkGatedDeltaRule, &plain.dims) {
        return Ok(None);
    }
    for (i, case) in forms(golden, &plain)?.iter().enumerate() {
        let at = |e| format!("{}: {e}", case.label());
        let Some(ChunkOutcome { out, state, .. }) =
            harness::chunk_gated_delta_rule::run(backend, case, None, Memory::nth(i)).map_err(at)?
        else {
            return Ok(None);
        };
        near_delta_rule(golden, tally, case, &out, &state).map_err(at)?;
    }
    Ok(Some(()))
}

/// Needs the recurrence's log.
fn check_commit(backend: &dyn Backend, golden: &Golden, io: &DType, tally: &mut Tally) -> Ran<()> {
    let case = delta_rule(golden, *io)?;
    if !knows(backend, Op::CommitStates, &case.dims) {
        return Ok(None);
    }
    let run = harness::fused_recurrent_gated_delta_rule::run;
    let Some(outcome) = run(backend, &case, Capture::DeltaLog, Memory::nth(3))? else { return Ok(None) };
    let commit = CommitCase {
        dims: case.dims,
        head_map: case.head_map,
        state: outcome.state,
        state_dtype: DType::F32,
        log: outcome.log,
        windows: case.windows.clone(),
        num_kept: vec![case.windows.num_tokens() as u32],
        path: Vec::new(),
    };
    let Some(state) = harness::commit_states::run(backend, &commit, Memory::nth(1))? else { return Ok(None) };
    near_state(golden, tally, &case, &state)?;
    Ok(Some(()))
}

/// The file's call; its state has an input more than is read, the oldest.
fn conv(golden: &Golden, activation: Activation) -> Result<ConvCase, String> {
    let (num_tokens, weight) = (golden.get("x")?.shape[0], golden.get("weight")?);
    let (channels, width) = (weight.shape[0], weight.shape[1]);
    let state = swapped(&golden.get("state_before")?.f32s()?, channels, width).split_off(channels);
    Ok(ConvCase {
        dims: ConvDims::new(channels, width).map_err(|e| e.to_string())?,
        io: DType::F32,
        x: golden.get("x")?.f32s()?,
        weight: swapped(&weight.f32s()?, channels, width),
        bias: optional(golden, "bias")?,
        activation,
        windows: one_sequence(num_tokens),
        state,
        log: Vec::new(),
        max_tokens: 0,
        num_pending: Vec::new(),
        pending_path: Vec::new(),
    })
}

fn near_conv(golden: &Golden, tally: &mut Tally, case: &ConvCase, out: &[f32], state: &[f32]) -> Result<(), String> {
    near(golden, tally, "out", out, tolerance::GOLDEN)?;
    for (name, expected) in results(golden, "state")? {
        let inputs =
            swapped(&expected.f32s()?, case.dims.channels(), case.dims.width()).split_off(case.dims.channels());
        let axes = [("tap", case.dims.width() - 1), ("channel", case.dims.channels())];
        compare::bits(name, state, &inputs, &axes)?;
    }
    Ok(())
}

/// As one window, and token by token.
fn check_conv_update(backend: &dyn Backend, golden: &Golden, activation: &Activation, tally: &mut Tally) -> Ran<()> {
    let case = conv(golden, *activation)?;
    let run = harness::causal_conv1d_update::run;
    let Some(outcome) = run(backend, &case, Capture::Final, Memory::nth(1))? else { return Ok(None) };
    near_conv(golden, tally, &case, &outcome.out, &outcome.state)?;
    let (mut out, mut state) = (Vec::new(), case.state.clone());
    for t in 0..case.windows.num_tokens() {
        let step = ConvCase { state, ..case.pick(&[(0, t..t + 1)]) };
        let Some(outcome) = run(backend, &step, Capture::Final, Memory::nth(t))? else {
            return Err(format!("token {t} alone was refused"));
        };
        out.extend(outcome.out);
        state = outcome.state;
    }
    near_conv(golden, tally, &case, &out, &state).map_err(|e| format!("token by token: {e}"))?;
    Ok(Some(()))
}

fn check_conv_fn(backend: &dyn Backend, golden: &Golden, activation: &Activation, tally: &mut Tally) -> Ran<()> {
    let case = conv(golden, *activation)?;
    let Some([out, state]) = harness::causal_conv1d_fn::run(backend, &case, Memory::nth(2))? else { return Ok(None) };
    near_conv(golden, tally, &case, &out, &state)?;
    Ok(Some(()))
}

fn norm(golden: &Golden, &(io, activation): &(DType, GateActivation)) -> Result<NormCase, String> {
    let (x, shape) = (golden.get("x")?, &golden.get("x")?.shape);
    Ok(NormCase {
        io,
        num_rows: shape[0],
        num_heads: shape[1],
        head_dim: shape[2],
        x: x.f32s()?,
        z: golden.get("z")?.f32s()?,
        weight: golden.get("weight")?.f32s()?,
        eps: scalar(golden, "eps")?,
        activation,
    })
}

fn check_norm(backend: &dyn Backend, golden: &Golden, what: &(DType, GateActivation), tally: &mut Tally) -> Ran<()> {
    let Some(out) = harness::rms_norm_gated::run(backend, &norm(golden, what)?, Memory::nth(1))? else {
        return Ok(None);
    };
    let bound = match what.0 {
        DType::F32 => tolerance::GOLDEN,
        io => tolerance::tolerance(Op::RmsNormGated, tolerance::Tensor::Out, io, false),
    };
    near(golden, tally, "out", &out, bound)?;
    Ok(Some(()))
}

/// Files of a gate per channel have no beta.
fn gating(golden: &Golden) -> Result<GatingCase, String> {
    let (a, a_log) = (golden.get("a")?, golden.get("A_log")?.f32s()?);
    Ok(GatingCase {
        io: DType::F32,
        num_tokens: a.shape[0],
        num_v_heads: a_log.len(),
        decay_dim: a.row_len() / a_log.len(),
        a: a.f32s()?,
        b: optional(golden, "b")?.unwrap_or_else(|| vec![0.0; a.shape[0] * a_log.len()]),
        a_log,
        dt_bias: golden.get("dt_bias")?.f32s()?,
    })
}

/// What was computed in f64 is compared element by element, since the sizes of `g` lie far apart.
fn check_gating(backend: &dyn Backend, golden: &Golden, shape: &DecayShape, tally: &mut Tally) -> Ran<()> {
    let case = gating(golden)?;
    let Some([g, beta]) = harness::fused_gdn_gating::run(backend, &case, Memory::nth(1))? else { return Ok(None) };
    let axes = [("token", case.num_tokens), ("gate", case.num_v_heads * case.decay_dim)];
    let mut compare = |tensor: &str, got: &[f32]| -> Result<(), String> {
        for (name, expected) in results(golden, tensor)? {
            let (expected, bound) = (expected.f64s()?, tolerance::GOLDEN);
            if name.ends_with("_f64") {
                tally.near(compare::each(name, got, expected, &axes, bound.rel_rms)?, bound.rel_rms);
            } else {
                tally.deviation(compare::values(name, got, expected, &axes, bound)?, bound);
            }
        }
        Ok(())
    };
    compare("g", &g)?;
    if *shape == DecayShape::PerHead {
        compare("beta", &beta)?;
        let factors: Vec<f32> = g.iter().map(|&g| f64::from(g).exp() as f32).collect();
        compare("decay", &factors)?;
    }
    Ok(Some(()))
}

#[cfg(test)]
mod tests;
