//! The same case for the oracle, and other cases made of it: parts, other slots, single heads.

use std::ops::Range;

use undraft_core::{GdnDims, QkNorm, Rounding};

use super::super::{gather, widen};
use super::{BetaForm, DecayForm, DeltaRuleCase, LogData, oracle, sizes};

impl DeltaRuleCase {
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
            state_dtype: self.state_dtype,
            parents: (0..self.windows.num_seqs())
                .flat_map(|seq| (0..self.windows.lens[seq]).map(move |t| self.windows.parent(seq, t)))
                .collect(),
            log: self.log.oracle(),
            pending: (0..self.windows.num_seqs()).map(|seq| self.pending_entries(seq)).collect(),
        }
    }

    /// Sequences `picked`, in that order, each cut to a range of its tokens; state, log and slots stay.
    pub fn pick(&self, picked: &[(usize, Range<usize>)]) -> Self {
        let (windows, tokens) = self.windows.pick(picked);
        let seqs: Vec<usize> = picked.iter().map(|&(seq, _)| seq).collect();
        let of_seqs = |values: &[u32], row: usize| -> Vec<u32> {
            let rows = seqs.iter().flat_map(|&seq| &values[seq * row..][..row]);
            if values.is_empty() { Vec::new() } else { rows.copied().collect() }
        };
        Self {
            q: gather(&self.q, self.dims.key_dim(), &tokens),
            k: gather(&self.k, self.dims.key_dim(), &tokens),
            v: gather(&self.v, self.dims.value_dim(), &tokens),
            decay: gather(&self.decay, self.dims.decay_len(), &tokens),
            beta: gather(&self.beta, self.dims.num_v_heads(), &tokens),
            windows,
            num_pending: of_seqs(&self.num_pending, 1),
            pending_path: of_seqs(&self.pending_path, self.log.max_tokens),
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
                decay: carry(&self.log.decay, tokens * d.decay_len()),
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
        let dims = GdnDims::new(1, 1, k, v).map_or(*d, |dims| dims.with_decay_shape(d.decay_shape()));
        let channels = hv * d.decay_dim()..(hv + 1) * d.decay_dim();
        Self {
            q: column(&self.q, d.num_k_heads(), kh, k),
            k: column(&self.k, d.num_k_heads(), kh, k),
            v: column(&self.v, n, hv, v),
            decay_form: match &self.decay_form {
                DecayForm::Gate { a_log, dt_bias } => {
                    DecayForm::Gate { a_log: vec![a_log[hv]], dt_bias: dt_bias[channels].to_vec() }
                }
                other => other.clone(),
            },
            decay: column(&self.decay, n, hv, d.decay_dim()),
            beta: column(&self.beta, n, hv, 1),
            state: column(&self.state, n, hv, v * k),
            log: LogData::zeros(&dims, self.windows.num_slots, self.log.max_tokens),
            num_pending: Vec::new(),
            pending_path: Vec::new(),
            dims,
            ..self.clone()
        }
    }

    /// Overwrites every input of the tokens at position `from` and later of each sequence with NaN.
    pub fn spoil_from(&mut self, from: usize) {
        self.spoil(|_, t| t >= from);
    }

    /// Overwrites every input of the tokens (sequence, position) that are `wanted` with NaN.
    pub fn spoil(&mut self, wanted: impl Fn(usize, usize) -> bool) {
        let (kd, vd, hv, dd) =
            (self.dims.key_dim(), self.dims.value_dim(), self.dims.num_v_heads(), self.dims.decay_len());
        for (seq, tokens) in self.windows.ranges().into_iter().enumerate() {
            for t in tokens.clone().filter(|t| wanted(seq, t - tokens.start)) {
                for (values, row) in [
                    (&mut self.q, kd),
                    (&mut self.k, kd),
                    (&mut self.v, vd),
                    (&mut self.decay, dd),
                    (&mut self.beta, hv),
                ] {
                    values[t * row..(t + 1) * row].fill(f32::NAN);
                }
            }
        }
    }
}
