//! Golden vectors: whole GDN layers here, single operations in [`ops`].
//!
//! A layer is run on golden inputs, and every intermediate held against the value that transformers gives in float64.
//! There are two: one of a trained model (59 tokens), one with unusual sizes (3 value heads per key head, K = 64, V = 96).
//! Each operation gets what the one before it gave, as a model would run them.

use undraft_core::ops::GateActivation;
use undraft_core::{Activation, Backend, Capture, ConvDims, DType, GdnDims, HeadMap, Op, QkNorm, Rounding};

use super::Tally;
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
use crate::tolerance;

/// The vectors are part of the program, so that an installed binary can test itself.
macro_rules! embedded {
    ($path:expr) => {
        ($path, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/golden/", $path)) as &[u8])
    };
}

mod ops;

const LAYERS: [LayerFiles; 2] = [
    LayerFiles {
        vectors: embedded!("qwen3_5-tiny-mtp/gdn0_code.safetensors"),
        weights: embedded!("qwen3_5-tiny-mtp/gdn0_weights.safetensors"),
        prefix: "",
    },
    LayerFiles {
        vectors: embedded!("qwen3_5-odd-random/n9.safetensors"),
        weights: embedded!("qwen3_5-odd-random/gdn1_weights.safetensors"),
        prefix: "gdn1.",
    },
];

struct LayerFiles {
    vectors: (&'static str, &'static [u8]),
    weights: (&'static str, &'static [u8]),
    prefix: &'static str,
}

struct Layer {
    golden: Golden,
    weights: Golden,
    prefix: &'static str,
    dims: GdnDims,
    num_tokens: usize,
}

/// `None`: the back end refused, as it had declared.
type Ran<T> = Result<Option<T>, String>;

/// Checks the outputs of `op` in both layers, and on its own.
pub(super) fn run(backend: &dyn Backend, op: Op, tally: &mut Tally) -> Result<(), String> {
    for files in LAYERS {
        let layer = Layer::open(&files)?;
        let ran = layer.check(backend, op, tally).map_err(|e| format!("{}: {e}", files.vectors.0))?;
        tally.case(ran.is_some());
    }
    ops::run(backend, op, tally)
}

impl Layer {
    fn open(files: &LayerFiles) -> Result<Self, String> {
        let golden = Golden::from_bytes(files.vectors.0, files.vectors.1)?;
        let weights = Golden::from_bytes(files.weights.0, files.weights.1)?;
        let tensor = |name: &str| golden.get(&format!("{}{name}_f64", files.prefix));
        let (k, v) = (&tensor("k")?.shape, &tensor("v")?.shape);
        let dims = GdnDims::new(k[1], v[1], k[2], v[2]).map_err(|e| e.to_string())?;
        let num_tokens = tensor("in_proj_qkv")?.shape[0];
        Ok(Self { prefix: files.prefix, dims, num_tokens, golden, weights })
    }

    fn tensor(&self, name: &str) -> Result<&Tensor, String> {
        self.golden.get(&format!("{}{name}_f64", self.prefix))
    }

    fn windows(&self) -> Windows {
        Windows::chains(vec![self.num_tokens], vec![0], 1)
    }

    /// Compares as many rows as the golden tensor has.
    fn near(&self, tally: &mut Tally, name: &str, got: &[f32]) -> Result<(), String> {
        let tensor = self.tensor(name)?;
        let expected = tensor.f64s()?;
        let got = got.get(..expected.len()).ok_or_else(|| format!("`{name}` has {} elements", got.len()))?;
        let bound = tolerance::GOLDEN;
        let axes = [("row", tensor.shape[0]), ("element", tensor.row_len())];
        tally.deviation(compare::values(name, got, expected, &axes, bound)?, bound);
        Ok(())
    }

    fn check(&self, backend: &dyn Backend, op: Op, tally: &mut Tally) -> Ran<()> {
        match op {
            Op::CausalConv1dUpdate => self.check_conv(backend, tally),
            Op::CausalConv1dFn => self.check_conv_fn(backend, tally),
            Op::FusedGdnGating => self.check_gating(backend, tally),
            Op::FusedRecurrentGatedDeltaRule => self.check_recurrent(backend, tally),
            Op::ChunkGatedDeltaRule => self.check_chunk(backend, tally),
            Op::CommitStates => self.check_commit(backend, tally),
            Op::RmsNormGated => self.check_norm(backend, tally),
        }
    }

    /// `[q | k | v]` after the convolution, and its state.
    fn conv(&self, backend: &dyn Backend) -> Ran<(Vec<f32>, Vec<f32>)> {
        let case = self.conv_case()?;
        let outcome = harness::causal_conv1d_update::run(backend, &case, Capture::Final, Memory::nth(1))?;
        Ok(outcome.map(|outcome| (outcome.out, outcome.state)))
    }

    fn conv_case(&self) -> Result<ConvCase, String> {
        let (channels, width) = (self.dims.conv_dim(), *self.weights.get("conv1d.weight")?.shape.last().unwrap_or(&0));
        let channel_major = self.weights.get("conv1d.weight")?.f32s()?;
        let tap_major = (0..width * channels).map(|i| channel_major[i % channels * width + i / channels]).collect();
        let dims = ConvDims::new(channels, width).map_err(|e| e.to_string())?;
        Ok(ConvCase {
            dims,
            io: DType::F32,
            x: self.tensor("in_proj_qkv")?.f32s()?,
            weight: tap_major,
            bias: None,
            activation: Activation::Silu,
            windows: self.windows(),
            state: vec![0.0; dims.state_len()],
            log: Vec::new(),
            max_tokens: 0,
            num_pending: Vec::new(),
            pending_path: Vec::new(),
        })
    }

    fn gating(&self, backend: &dyn Backend) -> Ran<[Vec<f32>; 2]> {
        let case = GatingCase {
            io: DType::F32,
            num_tokens: self.num_tokens,
            num_v_heads: self.dims.num_v_heads(),
            decay_dim: 1,
            a: self.tensor("in_proj_a")?.f32s()?,
            b: self.tensor("in_proj_b")?.f32s()?,
            a_log: self.weights.get("A_log")?.f32s()?,
            dt_bias: self.weights.get("dt_bias")?.f32s()?,
        };
        harness::fused_gdn_gating::run(backend, &case, Memory::nth(1))
    }

    /// The recurrence's call, from the operations before it.
    fn delta_rule(&self, backend: &dyn Backend) -> Ran<DeltaRuleCase> {
        let (Some((qkv, _)), Some([g, beta])) = (self.conv(backend)?, self.gating(backend)?) else { return Ok(None) };
        let (kd, vd) = (self.dims.key_dim(), self.dims.value_dim());
        let part = |from: usize, len: usize| -> Vec<f32> {
            qkv.chunks_exact(2 * kd + vd).flat_map(|row| row[from..from + len].iter().copied()).collect()
        };
        Ok(Some(DeltaRuleCase {
            dims: self.dims,
            io: DType::F32,
            head_map: HeadMap::Grouped,
            qk_norm: QkNorm::L2Norm { eps: 1e-6 },
            rounding: Rounding::F32,
            scale: 1.0 / (self.dims.head_k_dim() as f32).sqrt(),
            q: part(0, kd),
            k: part(kd, kd),
            v: part(2 * kd, vd),
            decay_form: DecayForm::Log,
            decay: g,
            beta_form: BetaForm::Value,
            beta,
            windows: self.windows(),
            state: vec![0.0; self.dims.state_len()],
            state_dtype: DType::F32,
            log: LogData::zeros(&self.dims, 1, self.num_tokens),
            num_pending: Vec::new(),
            pending_path: Vec::new(),
        }))
    }

    /// The state as transformers keeps it, `[HV, K, V]`.
    fn key_major(&self, state: &[f32]) -> Vec<f32> {
        let (k, v) = (self.dims.head_k_dim(), self.dims.head_v_dim());
        (0..state.len()).map(|i| state[(i / (k * v) * v + i % v) * k + i / v % k]).collect()
    }

    fn check_conv(&self, backend: &dyn Backend, tally: &mut Tally) -> Ran<()> {
        let Some((_, state)) = self.conv(backend)? else { return Ok(None) };
        self.near(tally, "conv_state", &state)?;
        // q, k and v of the recurrence are the parts of the convolution's rows.
        let Some(case) = self.delta_rule(backend)? else { return Ok(Some(())) };
        self.near(tally, "q_conv", &case.q)?;
        self.near(tally, "k_conv", &case.k)?;
        self.near(tally, "v", &case.v)?;
        Ok(Some(()))
    }

    fn check_conv_fn(&self, backend: &dyn Backend, tally: &mut Tally) -> Ran<()> {
        let case = self.conv_case()?;
        let Some([out, state]) = harness::causal_conv1d_fn::run(backend, &case, Memory::nth(2))? else {
            return Ok(None);
        };
        self.near(tally, "conv_state", &state)?;
        let row = case.dims.channels();
        let k: Vec<f32> =
            out.chunks_exact(row).flat_map(|row| row[self.dims.key_dim()..][..self.dims.key_dim()].to_vec()).collect();
        self.near(tally, "k_conv", &k)?;
        Ok(Some(()))
    }

    fn check_gating(&self, backend: &dyn Backend, tally: &mut Tally) -> Ran<()> {
        let Some([g, beta]) = self.gating(backend)? else { return Ok(None) };
        self.near(tally, "g", &g)?;
        self.near(tally, "beta", &beta)?;
        Ok(Some(()))
    }

    fn check_recurrent(&self, backend: &dyn Backend, tally: &mut Tally) -> Ran<()> {
        let Some(case) = self.delta_rule(backend)? else { return Ok(None) };
        let run = |capture| harness::fused_recurrent_gated_delta_rule::run(backend, &case, capture, Memory::nth(1));
        let Some(outcome) = run(Capture::Final)? else { return Ok(None) };
        self.near(tally, "o", &outcome.out)?;
        self.near(tally, "state", &self.key_major(&outcome.state))?;
        if let Some(outcome) = run(Capture::DeltaLog)? {
            self.near(tally, "o", &outcome.out)?;
            self.near(tally, "k", &outcome.log.k)?;
        }
        if let Some(outcome) = run(Capture::PerToken)? {
            self.near(tally, "state", &self.key_major(outcome.captured(0, self.num_tokens - 1)))?;
        }
        Ok(Some(()))
    }

    fn check_chunk(&self, backend: &dyn Backend, tally: &mut Tally) -> Ran<()> {
        let Some(case) = self.delta_rule(backend)? else { return Ok(None) };
        let Some(ChunkOutcome { out, state, .. }) =
            harness::chunk_gated_delta_rule::run(backend, &case, None, Memory::nth(1))?
        else {
            return Ok(None);
        };
        self.near(tally, "o", &out)?;
        self.near(tally, "state", &self.key_major(&state))?;
        Ok(Some(()))
    }

    fn check_commit(&self, backend: &dyn Backend, tally: &mut Tally) -> Ran<()> {
        let Some(case) = self.delta_rule(backend)? else { return Ok(None) };
        let run = harness::fused_recurrent_gated_delta_rule::run;
        let Some(outcome) = run(backend, &case, Capture::DeltaLog, Memory::nth(2))? else { return Ok(None) };
        let commit = CommitCase {
            dims: self.dims,
            head_map: case.head_map,
            state: outcome.state,
            state_dtype: DType::F32,
            log: outcome.log,
            windows: self.windows(),
            num_kept: vec![self.num_tokens as u32],
            path: Vec::new(),
        };
        let Some(state) = harness::commit_states::run(backend, &commit, Memory::nth(1))? else { return Ok(None) };
        self.near(tally, "state", &self.key_major(&state))?;
        Ok(Some(()))
    }

    fn check_norm(&self, backend: &dyn Backend, tally: &mut Tally) -> Ran<()> {
        let Some(case) = self.delta_rule(backend)? else { return Ok(None) };
        let run = harness::fused_recurrent_gated_delta_rule::run;
        let Some(mut outcome) = run(backend, &case, Capture::Final, Memory::nth(1))? else { return Ok(None) };
        let z = self.tensor("z")?;
        outcome.out.truncate(z.values.len());
        let norm = NormCase {
            io: DType::F32,
            num_rows: z.shape[0],
            num_heads: self.dims.num_v_heads(),
            head_dim: self.dims.head_v_dim(),
            x: outcome.out,
            z: z.f32s()?,
            weight: self.weights.get("norm.weight")?.f32s()?,
            eps: 1e-6,
            activation: GateActivation::Silu,
        };
        let Some(out) = harness::rms_norm_gated::run(backend, &norm, Memory::nth(1))? else { return Ok(None) };
        self.near(tally, "normed", &out)?;
        Ok(Some(()))
    }
}
