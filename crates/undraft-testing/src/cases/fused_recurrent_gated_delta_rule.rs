//! Cases of the recurrence and of the chunked form.

use std::ops::Range;

use undraft_core::ops::DeltaRuleInputs;
use undraft_core::{DType, GdnDims, HeadMap, QkNorm, Rounding};

use super::windows::gather;
use super::{Windows, normals, seed, widen};
use crate::Rng;
use crate::oracle::fused_recurrent_gated_delta_rule as oracle;

/// How decay is given; the values are [`DeltaRuleCase::decay`].
#[derive(Clone, Debug, PartialEq)]
pub enum DecayForm {
    /// `g`.
    Log,
    /// The factor.
    Linear,
    /// `-g`.
    NegLog,
    /// `a`, with `A_log` and `dt_bias`, each `[HV]`.
    Gate {
        /// `A_log`.
        a_log: Vec<f32>,
        /// `dt_bias`.
        dt_bias: Vec<f32>,
    },
}

/// How beta is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BetaForm {
    /// The value.
    Value,
    /// Its logit.
    Logit,
}

/// Log of the window before, f32.
#[derive(Clone, Debug)]
pub struct LogData {
    /// `[slots, max_tokens, H, K]`.
    pub k: Vec<f32>,
    /// `[slots, max_tokens, HV]`.
    pub decay: Vec<f32>,
    /// `[slots, max_tokens, HV, V]`.
    pub delta: Vec<f32>,
    /// Tokens of a slot.
    pub max_tokens: usize,
}

/// One call, as plain arrays.
#[derive(Clone, Debug)]
pub struct DeltaRuleCase {
    /// Sizes.
    pub dims: GdnDims,
    /// Dtype of q, k, v and o.
    pub io: DType,
    /// Key head of a value head.
    pub head_map: HeadMap,
    /// Normalisation of q and k.
    pub qk_norm: QkNorm,
    /// Rounding of beta, q and k.
    pub rounding: Rounding,
    /// Factor on the output.
    pub scale: f32,
    /// `[T, H, K]`.
    pub q: Vec<f32>,
    /// `[T, H, K]`.
    pub k: Vec<f32>,
    /// `[T, HV, V]`.
    pub v: Vec<f32>,
    /// How decay is given.
    pub decay_form: DecayForm,
    /// `[T, HV]`.
    pub decay: Vec<f32>,
    /// How beta is given.
    pub beta_form: BetaForm,
    /// `[T, HV]`.
    pub beta: Vec<f32>,
    /// Sequences.
    pub windows: Windows,
    /// `[slots, HV, V, K]`.
    pub state: Vec<f32>,
    /// Log.
    pub log: LogData,
    /// Pending entries of each sequence; empty for none.
    pub num_pending: Vec<u32>,
}

/// `(K, V)`; nearly all differ.
const HEAD_SIZES: [(usize, usize); 29] = [
    (64, 96),
    (1, 1),
    (17, 3),
    (128, 128),
    (32, 64),
    (3, 17),
    (96, 64),
    (1, 3),
    (192, 128),
    (16, 5),
    (64, 32),
    (256, 3),
    (17, 17),
    (128, 96),
    (3, 1),
    (33, 65),
    (96, 128),
    (8, 24),
    (3, 256),
    (128, 192),
    (32, 17),
    (31, 7),
    (96, 96),
    (256, 192),
    (17, 192),
    (64, 128),
    (5, 16),
    (192, 17),
    (256, 256),
];
const HEADS: [(usize, usize); 8] = [(2, 4), (1, 1), (2, 6), (1, 8), (3, 9), (4, 4), (1, 2), (2, 2)];
/// Cases of one dtype.
pub const NUM_CASES: usize = 76;
/// Cases of one dtype of the chunked form.
pub const NUM_PROMPTS: usize = 39;
/// Elements of a slot's state, and elements of all states after each token.
const MAX_STATE: usize = 66_000;
const MAX_STATES: usize = 2_000_000;

impl DeltaRuleCase {
    /// Decode and verify: ragged windows of up to 17 tokens, pending entries in half of the cases.
    pub fn nth(io: DType, index: usize) -> Self {
        let mut rng = seed("fused_recurrent_gated_delta_rule", io, index);
        let dims = dims(HEAD_SIZES[index % HEAD_SIZES.len()], index, MAX_STATE);
        let mut batch = index;
        let windows = loop {
            let windows = Windows::batch(&mut rng, batch);
            if windows.num_tokens() * dims.state_len() <= MAX_STATES {
                break windows;
            }
            batch += 1;
        };
        let mut case = Self::draw(&mut rng, io, index, dims, windows);
        if index % 2 == 1 {
            case.draw_pending(&mut rng);
        }
        case
    }

    /// Prompts, for the chunked form.
    pub fn nth_prompt(io: DType, index: usize) -> Self {
        let mut rng = seed("chunk_gated_delta_rule", io, index);
        let dims = dims(HEAD_SIZES[(index * 5 + index / 13) % HEAD_SIZES.len()], index, 25_000);
        let windows = Windows::prompt(&mut rng, index);
        Self::draw(&mut rng, io, index, dims, windows)
    }

    /// Random values for these sizes and windows, without pending entries.
    pub fn draw(rng: &mut Rng, io: DType, index: usize, dims: GdnDims, windows: Windows) -> Self {
        let (n, hv) = (windows.num_tokens(), dims.num_v_heads());
        let qk_norm = match index % 3 {
            0 => QkNorm::L2Norm { eps: 1e-6 },
            1 => QkNorm::AsGiven,
            _ => QkNorm::L2Norm { eps: rng.pick(&[1e-6, 1e-3, 1e-12]) },
        };
        let magnitude = rng.pick(&[1.0, 1e-3, 20.0]);
        let q = keys(rng, io, n * dims.num_k_heads(), dims.head_k_dim(), qk_norm, magnitude);
        let k = keys(rng, io, n * dims.num_k_heads(), dims.head_k_dim(), qk_norm, magnitude);
        let (v_scale, state_scale) = (rng.pick(&[1.0, 0.1, 4.0]), rng.pick(&[1.0, 0.0, 0.2]));
        let v = normals(rng, io, n * dims.value_dim(), v_scale);
        let (decay_form, decay) = decays(rng, (index / 4 + index) % 4, n, hv);
        let beta_form = if (index / 2).is_multiple_of(2) { BetaForm::Value } else { BetaForm::Logit };
        let beta = (0..n * hv).map(|_| beta(rng, beta_form)).collect();
        let max_tokens = windows.longest() + rng.below(3);
        Self {
            dims,
            io,
            head_map: if (index / 4).is_multiple_of(2) { HeadMap::Grouped } else { HeadMap::Tiled },
            qk_norm,
            rounding: if index % 5 < 3 { Rounding::F32 } else { Rounding::Io },
            scale: rng.pick(&[DeltaRuleInputs::default_scale(&dims), 1.0, -0.7]),
            q,
            k,
            v,
            decay_form,
            decay,
            beta_form,
            beta,
            state: normals(rng, DType::F32, windows.num_slots * dims.state_len(), state_scale),
            log: LogData::zeros(&dims, windows.num_slots, max_tokens),
            windows,
            num_pending: Vec::new(),
        }
    }

    /// A log as a window would leave it, and how much of it is pending; wild numbers at padding.
    pub fn draw_pending(&mut self, rng: &mut Rng) {
        let max_tokens = self.windows.longest() + 1 + rng.below(4);
        let (slots, dims) = (self.windows.num_slots, self.dims);
        self.log = LogData::random(rng, &dims, slots, max_tokens);
        self.num_pending = self
            .windows
            .slots
            .iter()
            .map(|&slot| if slot < 0 { u32::MAX } else { rng.below(max_tokens + 1) as u32 })
            .collect();
    }

    /// What the error messages call it.
    pub fn label(&self) -> String {
        let d = &self.dims;
        let pad = |(&len, &slot): (&usize, &i32)| if slot < 0 { format!("pad {len}") } else { format!("{len}@{slot}") };
        let windows: Vec<String> = self.windows.lens.iter().zip(&self.windows.slots).map(pad).collect();
        let decay = match self.decay_form {
            DecayForm::Log => "log",
            DecayForm::Linear => "linear",
            DecayForm::NegLog => "neglog",
            DecayForm::Gate { .. } => "gate",
        };
        format!(
            "{} H={} HV={} K={} V={} {:?} {:?} {:?} decay={decay} beta={:?} windows=[{}] pending={:?}",
            self.io.name(),
            d.num_k_heads(),
            d.num_v_heads(),
            d.head_k_dim(),
            d.head_v_dim(),
            self.head_map,
            self.qk_norm,
            self.rounding,
            self.beta_form,
            windows.join(", "),
            self.num_pending,
        )
    }

    /// Pending entries of a sequence, 0 at padding.
    pub fn pending(&self, seq: usize) -> usize {
        if self.windows.slots[seq] < 0 { 0 } else { self.num_pending.get(seq).map_or(0, |&n| n as usize) }
    }

    /// The same for the oracle.
    pub fn oracle(&self) -> oracle::DeltaRule {
        let decay = widen(&self.decay);
        oracle::DeltaRule {
            sizes: sizes(&self.dims),
            q: widen(&self.q),
            k: widen(&self.k),
            v: widen(&self.v),
            decay: match &self.decay_form {
                DecayForm::Log => oracle::Decay::Log(decay),
                DecayForm::Linear => oracle::Decay::Linear(decay),
                DecayForm::NegLog => oracle::Decay::NegLog(decay),
                DecayForm::Gate { a_log, dt_bias } => {
                    oracle::Decay::Gate { a: decay, a_log: widen(a_log), dt_bias: widen(dt_bias) }
                }
            },
            beta: match self.beta_form {
                BetaForm::Value => oracle::Beta::Value(widen(&self.beta)),
                BetaForm::Logit => oracle::Beta::Logit(widen(&self.beta)),
            },
            scale: f64::from(self.scale),
            head_map: self.head_map,
            l2_norm_eps: match self.qk_norm {
                QkNorm::AsGiven => None,
                QkNorm::L2Norm { eps } => Some(f64::from(eps)),
            },
            rounding: match self.rounding {
                Rounding::F32 => None,
                Rounding::Io => Some(self.io),
            },
            lens: self.windows.lens.clone(),
            slots: self.windows.optional_slots(),
            state: widen(&self.state),
            log: self.log.oracle(),
            pending: (0..self.windows.num_seqs()).map(|seq| self.pending(seq)).collect(),
        }
    }

    /// Sequences `picked`, in that order, each cut to a range of its tokens; state, log and slots stay.
    pub fn pick(&self, picked: &[(usize, Range<usize>)]) -> Self {
        let (windows, tokens) = self.windows.pick(picked);
        let hv = self.dims.num_v_heads();
        let num_pending = match self.num_pending.is_empty() {
            true => Vec::new(),
            false => picked.iter().map(|&(seq, _)| self.num_pending[seq]).collect(),
        };
        Self {
            q: gather(&self.q, self.dims.key_dim(), &tokens),
            k: gather(&self.k, self.dims.key_dim(), &tokens),
            v: gather(&self.v, self.dims.value_dim(), &tokens),
            decay: gather(&self.decay, hv, &tokens),
            beta: gather(&self.beta, hv, &tokens),
            windows,
            num_pending,
            ..self.clone()
        }
    }

    /// The same sequences in other slots, each with its state and log.
    pub fn relocated(&self, slots: &[usize], num_slots: usize) -> Self {
        let to = self.windows.relocated(slots, num_slots);
        let (d, tokens) = (&self.dims, self.log.max_tokens);
        let carry = |values: &[f32], slot_len: usize| self.windows.carry(&to, slot_len, values);
        Self {
            state: carry(&self.state, d.state_len()),
            log: LogData {
                k: carry(&self.log.k, tokens * d.key_dim()),
                decay: carry(&self.log.decay, tokens * d.num_v_heads()),
                delta: carry(&self.log.delta, tokens * d.value_dim()),
                max_tokens: tokens,
            },
            windows: to,
            ..self.clone()
        }
    }

    /// Value head `hv` alone, with the key head that it reads, from these states and without a log.
    pub fn head(&self, hv: usize) -> Self {
        let d = &self.dims;
        let kh = oracle::key_head(self.head_map, hv, d.num_k_heads(), d.num_v_heads());
        let column = |values: &[f32], heads: usize, head: usize, size: usize| -> Vec<f32> {
            values.chunks_exact(heads * size).flat_map(|row| row[head * size..][..size].iter().copied()).collect()
        };
        let (k, v, n) = (d.head_k_dim(), d.head_v_dim(), d.num_v_heads());
        let dims = GdnDims::new(1, 1, k, v).unwrap_or(self.dims);
        Self {
            q: column(&self.q, d.num_k_heads(), kh, k),
            k: column(&self.k, d.num_k_heads(), kh, k),
            v: column(&self.v, n, hv, v),
            decay_form: match &self.decay_form {
                DecayForm::Gate { a_log, dt_bias } => {
                    DecayForm::Gate { a_log: vec![a_log[hv]], dt_bias: vec![dt_bias[hv]] }
                }
                other => other.clone(),
            },
            decay: column(&self.decay, n, hv, 1),
            beta: column(&self.beta, n, hv, 1),
            state: column(&self.state, n, hv, v * k),
            log: LogData::zeros(&dims, self.windows.num_slots, self.log.max_tokens),
            num_pending: Vec::new(),
            dims,
            ..self.clone()
        }
    }

    /// Overwrites every input of the tokens at position `from` and later of each sequence with NaN.
    pub fn spoil_from(&mut self, from: usize) {
        let (kd, vd, hv) = (self.dims.key_dim(), self.dims.value_dim(), self.dims.num_v_heads());
        for tokens in self.windows.ranges() {
            for t in tokens.skip(from) {
                for (values, row) in [
                    (&mut self.q, kd),
                    (&mut self.k, kd),
                    (&mut self.v, vd),
                    (&mut self.decay, hv),
                    (&mut self.beta, hv),
                ] {
                    values[t * row..(t + 1) * row].fill(f32::NAN);
                }
            }
        }
    }
}

impl LogData {
    /// Zeros.
    pub fn zeros(dims: &GdnDims, num_slots: usize, max_tokens: usize) -> Self {
        let entries = num_slots * max_tokens;
        Self {
            k: vec![0.0; entries * dims.key_dim()],
            decay: vec![0.0; entries * dims.num_v_heads()],
            delta: vec![0.0; entries * dims.value_dim()],
            max_tokens,
        }
    }
    /// Unit keys, decays from 0 to 1 and normal deltas.
    pub fn random(rng: &mut Rng, dims: &GdnDims, num_slots: usize, max_tokens: usize) -> Self {
        let entries = num_slots * max_tokens;
        let factor = |rng: &mut Rng| match rng.below(12) {
            0 => 0.0,
            1 => 1.0,
            2 => 1e-38,
            _ => rng.uniform() as f32,
        };
        Self {
            k: keys(rng, DType::F32, entries * dims.num_k_heads(), dims.head_k_dim(), QkNorm::AsGiven, 1.0),
            decay: (0..entries * dims.num_v_heads()).map(|_| factor(rng)).collect(),
            delta: normals(rng, DType::F32, entries * dims.value_dim(), 1.0),
            max_tokens,
        }
    }
    /// The same for the oracle.
    pub fn oracle(&self) -> oracle::Log {
        oracle::Log {
            k: widen(&self.k),
            decay: widen(&self.decay),
            delta: widen(&self.delta),
            max_tokens: self.max_tokens,
        }
    }
}

/// Sizes for the oracle.
pub(crate) fn sizes(dims: &GdnDims) -> oracle::Sizes {
    oracle::Sizes { h: dims.num_k_heads(), hv: dims.num_v_heads(), k: dims.head_k_dim(), v: dims.head_v_dim() }
}

/// Head sizes with as many heads as the budget allows, taken from the list in turn.
pub(crate) fn dims((k, v): (usize, usize), index: usize, budget: usize) -> GdnDims {
    let fits = |&(_, hv): &(usize, usize)| hv * k * v <= budget;
    let (h, hv) = (0..HEADS.len()).map(|i| HEADS[(index + i) % HEADS.len()]).find(fits).unwrap_or((1, 1));
    GdnDims::new(h, hv, k, v).unwrap_or_else(|e| panic!("the lists of sizes hold what `GdnDims` allows: {e}"))
}

/// Heads of q or k: unit length where nobody normalises them, anything (also zero) where the operation does.
fn keys(rng: &mut Rng, io: DType, heads: usize, size: usize, qk_norm: QkNorm, magnitude: f64) -> Vec<f32> {
    let mut values = Vec::with_capacity(heads * size);
    for _ in 0..heads {
        let head: Vec<f64> = (0..size).map(|_| rng.normal()).collect();
        let length = head.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-3);
        let factor = match qk_norm {
            QkNorm::AsGiven => 1.0 / length,
            QkNorm::L2Norm { .. } if rng.one_in(40) => 0.0,
            QkNorm::L2Norm { .. } => magnitude,
        };
        values.extend(head.iter().map(|x| io.round((x * factor) as f32)));
    }
    values
}

/// Decays of one form; one in eight is an extreme.
fn decays(rng: &mut Rng, form: usize, num_tokens: usize, hv: usize) -> (DecayForm, Vec<f32>) {
    let mut log = || {
        let extreme = [0.0, -20.0, -2661.0, -87.4, -1e-7];
        if rng.one_in(8) { rng.pick(&extreme) } else { -3.0 * rng.uniform() * rng.uniform() }
    };
    let count = num_tokens * hv;
    match form {
        0 => (DecayForm::Log, (0..count).map(|_| log() as f32).collect()),
        1 => (DecayForm::NegLog, (0..count).map(|_| -log() as f32).collect()),
        2 => {
            let factor = |rng: &mut Rng| match rng.below(12) {
                0 => 0.0,
                1 => 1e-38,
                2 => 1.0,
                3 => f32::MIN_POSITIVE,
                _ => (1.0 - rng.uniform() * rng.uniform()) as f32,
            };
            (DecayForm::Linear, (0..count).map(|_| factor(rng)).collect())
        }
        _ => {
            let a_log = (0..hv).map(|_| (1.0 + 15.0 * rng.uniform()).ln() as f32).collect();
            let dt_bias = (0..hv).map(|_| (rng.normal() * 2.0 - 2.0) as f32).collect();
            let a = |rng: &mut Rng| match rng.below(16) {
                0 => 166.0,
                1 => -166.0,
                2 => -30.0,
                _ => (rng.normal() * 2.0) as f32,
            };
            (DecayForm::Gate { a_log, dt_bias }, (0..count).map(|_| a(rng)).collect())
        }
    }
}

fn beta(rng: &mut Rng, form: BetaForm) -> f32 {
    match (form, rng.below(12)) {
        (BetaForm::Value, n @ 0..=2) => n as f32,
        (BetaForm::Value, _) => (2.0 * rng.uniform()) as f32,
        (BetaForm::Logit, 0) => -110.0,
        (BetaForm::Logit, 1) => 40.0,
        (BetaForm::Logit, _) => (3.0 * rng.normal()) as f32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_comes_up_in_every_dtype() {
        for io in [DType::F32, DType::Bf16, DType::F16] {
            let cases: Vec<DeltaRuleCase> = (0..NUM_CASES).map(|i| DeltaRuleCase::nth(io, i)).collect();
            let seen = |what: &str, found: &dyn Fn(&DeltaRuleCase) -> bool| {
                assert!(cases.iter().any(found), "no {} case has {what}", io.name());
            };
            for form in [DecayForm::Log, DecayForm::Linear, DecayForm::NegLog] {
                seen("each decay form", &|c| c.decay_form == form && c.windows.longest() > 1);
            }
            seen("a gate", &|c| matches!(c.decay_form, DecayForm::Gate { .. }) && c.windows.longest() > 1);
            seen("a forgotten state", &|c| c.decay_form == DecayForm::Log && c.decay.contains(&-2661.0));
            seen("a logit with rounding", &|c| c.beta_form == BetaForm::Logit && c.rounding == Rounding::Io);
            seen("beta 2", &|c| c.beta_form == BetaForm::Value && c.beta.contains(&2.0));
            for map in [HeadMap::Grouped, HeadMap::Tiled] {
                seen("each head map with H > 1 and HV > H", &|c| {
                    c.head_map == map && c.dims.num_k_heads() > 1 && c.dims.num_v_heads() > c.dims.num_k_heads()
                });
            }
            seen("pending entries and padding", &|c| {
                !c.num_pending.is_empty() && c.windows.slots.contains(&-1) && c.windows.longest() > 0
            });
            seen("a pending log and no token", &|c| !c.num_pending.is_empty() && c.windows.lens.contains(&0));
            seen("no sequence", &|c| c.windows.num_seqs() == 0);
            seen("17 tokens", &|c| c.windows.lens.contains(&17));
            seen("K = V = 256", &|c| c.dims.head_k_dim() == 256 && c.dims.head_v_dim() == 256);
            assert!(cases.iter().filter(|c| c.dims.head_k_dim() != c.dims.head_v_dim()).count() > NUM_CASES / 2);
        }
    }

    #[test]
    fn values_are_those_of_the_io_dtype() {
        for i in 0..NUM_CASES {
            let case = DeltaRuleCase::nth(DType::F16, i);
            for x in case.q.iter().chain(&case.k).chain(&case.v) {
                assert!(x.is_finite() && *x == DType::F16.round(*x));
            }
        }
    }
}
