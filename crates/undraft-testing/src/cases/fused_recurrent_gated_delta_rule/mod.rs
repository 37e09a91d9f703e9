//! Cases of the recurrence and of the chunked form.

mod draw;
mod views;

use undraft_core::ops::DeltaRuleInputs;
use undraft_core::{Capture, DType, DecayShape, GdnDims, HeadMap, QkNorm, Rounding};

use super::{Windows, capture_name, decay_shape_name, entries, head_map_name, normals, paths, replay_name, seed};
use crate::Rng;
use crate::coverage::{Axis, Options};
use crate::harness::Memory;
use crate::oracle::fused_recurrent_gated_delta_rule as oracle;
use draw::{beta, decays, keys};

/// How decay is given; the values are [`DeltaRuleCase::decay`].
#[derive(Clone, Debug, PartialEq)]
pub enum DecayForm {
    /// `g`.
    Log,
    /// The factor.
    Linear,
    /// `-g`.
    NegLog,
    /// `a`, with `A_log` and `dt_bias`.
    Gate {
        /// `[HV]`.
        a_log: Vec<f32>,
        /// `[HV]` or `[HV, K]`.
        dt_bias: Vec<f32>,
    },
}

impl DecayForm {
    /// `log`, `linear`, `neglog` or `gate`.
    pub fn name(&self) -> &'static str {
        match self {
            DecayForm::Log => "log",
            DecayForm::Linear => "linear",
            DecayForm::NegLog => "neglog",
            DecayForm::Gate { .. } => "gate",
        }
    }
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
    /// `[slots, max_tokens, HV]` or `[slots, max_tokens, HV, K]`.
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
    /// `[T, HV]` or `[T, HV, K]`.
    pub decay: Vec<f32>,
    /// How beta is given.
    pub beta_form: BetaForm,
    /// `[T, HV]`.
    pub beta: Vec<f32>,
    /// Sequences.
    pub windows: Windows,
    /// `[slots, HV, V, K]`, values of the dtype below.
    pub state: Vec<f32>,
    /// Dtype of the states.
    pub state_dtype: DType,
    /// Log.
    pub log: LogData,
    /// Pending entries of each sequence; empty for none.
    pub num_pending: Vec<u32>,
    /// Which entries those are, `[num_seqs, log.max_tokens]`; empty for the first ones.
    pub pending_path: Vec<u32>,
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
    /// Decode and verify: ragged windows of up to 17 tokens, pending entries in half of the cases, draft trees in two of
    /// seven. Options have periods of their own, so that any two of them meet.
    pub fn nth(io: DType, index: usize) -> Self {
        let mut rng = seed("fused_recurrent_gated_delta_rule", io, index);
        let turn = index / 2;
        let state_dtype = [DType::F32, DType::Bf16, DType::F32, DType::F16, DType::F32][turn % 5];
        let decay_shape = if turn % 3 == 1 { DecayShape::PerChannel } else { DecayShape::PerHead };
        let has_trees = matches!(turn % 7, 2 | 5);
        let dims = dims(HEAD_SIZES[index % HEAD_SIZES.len()], index, MAX_STATE).with_decay_shape(decay_shape);
        let mut batch = index;
        let mut windows = loop {
            let windows = Windows::batch(&mut rng, batch);
            let is_large = windows.num_tokens() * dims.state_len() > MAX_STATES;
            if !is_large && (!has_trees || windows.longest() > 2) {
                break windows;
            }
            batch += 1;
        };
        if has_trees {
            windows.grow_trees(&mut rng);
        }
        let mut case = Self::draw(&mut rng, io, index, dims, windows).with_state_dtype(state_dtype);
        if index % 2 == 1 {
            case.draw_pending(&mut rng);
            if matches!(turn % 6, 3 | 4) {
                case.draw_pending_path(&mut rng);
            }
        }
        case
    }

    /// Prompts, for the chunked form.
    pub fn nth_prompt(io: DType, index: usize) -> Self {
        let mut rng = seed("chunk_gated_delta_rule", io, index);
        let decay_shape = if index % 5 < 2 { DecayShape::PerChannel } else { DecayShape::PerHead };
        let state_dtype = [DType::F32, DType::Bf16, DType::F16][index % 3];
        let dims =
            dims(HEAD_SIZES[(index * 5 + index / 13) % HEAD_SIZES.len()], index, 25_000).with_decay_shape(decay_shape);
        let windows = Windows::prompt(&mut rng, index);
        Self::draw(&mut rng, io, index, dims, windows).with_state_dtype(state_dtype)
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
        let (decay_form, decay) = decays(rng, (index / 4 + index) % 4, n, &dims);
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
            state_dtype: DType::F32,
            log: LogData::zeros(&dims, windows.num_slots, max_tokens),
            windows,
            num_pending: Vec::new(),
            pending_path: Vec::new(),
        }
    }

    /// The same with states of this dtype, rounded to it.
    pub fn with_state_dtype(mut self, dtype: DType) -> Self {
        self.state.iter_mut().for_each(|x| *x = dtype.round(*x));
        Self { state_dtype: dtype, ..self }
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

    /// Rising, not contiguous entries in place of the first ones.
    pub fn draw_pending_path(&mut self, rng: &mut Rng) {
        self.pending_path = paths(rng, &self.windows, &self.num_pending, self.log.max_tokens);
    }

    /// What the error messages call it.
    pub fn label(&self) -> String {
        let d = &self.dims;
        let pad = |(&len, &slot): (&usize, &i32)| if slot < 0 { format!("pad {len}") } else { format!("{len}@{slot}") };
        let windows: Vec<String> = self.windows.lens.iter().zip(&self.windows.slots).map(pad).collect();
        format!(
            "{} state={} H={} HV={} K={} V={} {:?} {:?} {:?} decay={} {:?} beta={:?} windows=[{}] parents={:?} pending={:?} \
             path={:?}",
            self.io.name(),
            self.state_dtype.name(),
            d.num_k_heads(),
            d.num_v_heads(),
            d.head_k_dim(),
            d.head_v_dim(),
            self.head_map,
            self.qk_norm,
            self.rounding,
            self.decay_form.name(),
            d.decay_shape(),
            self.beta_form,
            windows.join(", "),
            self.windows.parents,
            self.num_pending,
            self.pending_path,
        )
    }

    /// Options of a call of the recurrence.
    pub fn options(&self, capture: Capture, memory: Memory) -> Options {
        self.prompt_options(memory)
            .with(Axis::Capture, capture_name(capture))
            .with(Axis::Windows, self.windows.kind())
            .with(Axis::Replay, replay_name(&self.num_pending, &self.pending_path))
    }

    /// Options of a call of the chunked form.
    pub fn prompt_options(&self, memory: Memory) -> Options {
        Options::new(self.io.name())
            .with(Axis::State, self.state_dtype.name())
            .with(Axis::Memory, memory.name())
            .with(Axis::HeadMap, head_map_name(self.head_map))
            .with(Axis::Decay, self.decay_form.name())
            .with(Axis::DecayShape, decay_shape_name(self.dims.decay_shape()))
    }

    /// Pending entries of a sequence, 0 at padding.
    pub fn pending(&self, seq: usize) -> usize {
        if self.windows.slots[seq] < 0 { 0 } else { self.num_pending.get(seq).map_or(0, |&n| n as usize) }
    }

    /// The log entries that are pending, in order.
    pub fn pending_entries(&self, seq: usize) -> Vec<usize> {
        entries(&self.pending_path, seq, self.pending(seq), self.log.max_tokens)
    }
}

/// Sizes for the oracle.
pub(crate) fn sizes(dims: &GdnDims) -> oracle::Sizes {
    let (h, hv) = (dims.num_k_heads(), dims.num_v_heads());
    oracle::Sizes { h, hv, k: dims.head_k_dim(), v: dims.head_v_dim(), decay: dims.decay_dim() }
}

/// Head sizes with as many heads as the budget allows, taken from the list in turn.
pub(crate) fn dims((k, v): (usize, usize), index: usize, budget: usize) -> GdnDims {
    let fits = |&(_, hv): &(usize, usize)| hv * k * v <= budget;
    let (h, hv) = (0..HEADS.len()).map(|i| HEADS[(index + i) % HEADS.len()]).find(fits).unwrap_or((1, 1));
    GdnDims::new(h, hv, k, v).unwrap_or_else(|e| panic!("the lists of sizes hold what `GdnDims` allows: {e}"))
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
            for state in [DType::Bf16, DType::F16] {
                for decay_shape in [DecayShape::PerHead, DecayShape::PerChannel] {
                    seen("each 16-bit state with each decay shape", &|c| {
                        c.state_dtype == state && c.dims.decay_shape() == decay_shape && c.windows.longest() > 1
                    });
                }
                seen("a 16-bit state, a tree and a pending path", &|c| {
                    c.state_dtype == state && c.windows.has_tree() && !c.pending_path.is_empty()
                });
            }
            seen("trees and chains in one call, padding with parents", &|c| {
                c.windows.kind() == "mixed" && c.windows.slots.contains(&-1)
            });
            seen("several roots", &|c| {
                c.windows.live().any(|(seq, _, t)| (1..t.len()).any(|t| c.windows.parent(seq, t).is_none()))
            });
            seen("a path with a gap", &|c| {
                (0..c.windows.num_seqs()).any(|seq| c.pending_entries(seq).windows(2).any(|w| w[1] > w[0] + 1))
            });
            seen("a gate with a bias for each channel", &|c| {
                matches!(c.decay_form, DecayForm::Gate { .. }) && c.dims.decay_dim() > 1 && c.dims.num_v_heads() > 1
            });
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
