//! The recurrence, token by token.

use super::commit_states::{Replay, replay};
use super::fused_gdn_gating::log_decay;
use super::{round_state, round_to, sigmoid};
use undraft_core::{DType, HeadMap};

/// `H`, `HV`, `K`, `V`, and how many factors a value head decays by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Key heads.
    pub h: usize,
    /// Value heads.
    pub hv: usize,
    /// Size of a key head.
    pub k: usize,
    /// Size of a value head.
    pub v: usize,
    /// 1, or `K` where each key channel has its own: `D` in the shapes below.
    pub decay: usize,
}

/// A delta log.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// `[slots, max_tokens, H, K]`.
    pub k: Vec<f64>,
    /// `[slots, max_tokens, HV, D]`.
    pub decay: Vec<f64>,
    /// `[slots, max_tokens, HV, V]`.
    pub delta: Vec<f64>,
    /// Tokens of a slot's log.
    pub max_tokens: usize,
}

/// How decay is given; `[T, HV, D]` unless said otherwise.
#[derive(Clone, Debug)]
pub enum Decay {
    /// The factor is `exp(x)`.
    Log(Vec<f64>),
    /// The factor itself.
    Linear(Vec<f64>),
    /// The factor is `exp(-x)`.
    NegLog(Vec<f64>),
    /// The factor is `exp(-exp(A_log) * softplus(a + dt_bias))`.
    Gate {
        /// `[T, HV, D]`.
        a: Vec<f64>,
        /// `[HV]`.
        a_log: Vec<f64>,
        /// `[HV, D]`.
        dt_bias: Vec<f64>,
    },
}

/// How beta is given, `[T, HV]`.
#[derive(Clone, Debug)]
pub enum Beta {
    /// The value.
    Value(Vec<f64>),
    /// Its logit.
    Logit(Vec<f64>),
}

/// Inputs.
#[derive(Clone, Debug)]
pub struct DeltaRule {
    /// Sizes.
    pub sizes: Sizes,
    /// `[T, H, K]`, all sequences one after the other.
    pub q: Vec<f64>,
    /// `[T, H, K]`.
    pub k: Vec<f64>,
    /// `[T, HV, V]`.
    pub v: Vec<f64>,
    /// Decay.
    pub decay: Decay,
    /// Beta.
    pub beta: Beta,
    /// Factor on the output.
    pub scale: f64,
    /// Key head of a value head.
    pub head_map: HeadMap,
    /// Divide q and k by `sqrt(sum of squares + eps)`.
    pub l2_norm_eps: Option<f64>,
    /// Round beta and the q and k in use to this dtype.
    pub rounding: Option<DType>,
    /// Tokens of each sequence.
    pub lens: Vec<usize>,
    /// `[T]`: the position in its window of the token whose state a token starts from; `None` is the state itself.
    pub parents: Vec<Option<usize>>,
    /// Slot of each sequence; `None` is padding.
    pub slots: Vec<Option<usize>>,
    /// `[slots, HV, V, K]`.
    pub state: Vec<f64>,
    /// The state is rounded to this dtype after every token.
    pub state_dtype: DType,
    /// Log of the window before.
    pub log: Log,
    /// Log entries of each sequence that go into the state first, in order.
    pub pending: Vec<Vec<usize>>,
}

/// Outputs; tokens of padding hold zeros.
#[derive(Clone, Debug)]
pub struct Solution {
    /// `[T, HV, V]`.
    pub out: Vec<f64>,
    /// `[slots, HV, V, K]` after the pending entries.
    pub state_before: Vec<f64>,
    /// `[slots, HV, V, K]` after the last token of each window.
    pub state_after: Vec<f64>,
    /// `[T][HV, V, K]` after each token; empty unless asked for.
    pub states: Vec<Vec<f64>>,
    /// `[T, H, K]`: the key as used.
    pub k: Vec<f64>,
    /// `[T, HV, D]`: the factor.
    pub decay: Vec<f64>,
    /// `[T, HV, V]`: `(v - S k) * beta`.
    pub delta: Vec<f64>,
}

/// Key head that a value head reads.
pub fn key_head(head_map: HeadMap, hv: usize, num_k_heads: usize, num_v_heads: usize) -> usize {
    match head_map {
        // Value heads of one key head lie side by side.
        HeadMap::Grouped => {
            let group = num_v_heads / num_k_heads;
            hv / group
        }
        // Key heads repeat: 0 1 2 0 1 2.
        HeadMap::Tiled => hv % num_k_heads,
    }
}

impl DeltaRule {
    /// Runs every sequence; `keep_states` also keeps the state after each token.
    pub fn solve(&self, keep_states: bool) -> Solution {
        let Sizes { h, hv, k, v, decay } = self.sizes;
        let num_tokens: usize = self.lens.iter().sum();
        let mut solution = Solution {
            out: vec![0.0; num_tokens * hv * v],
            state_before: self.state.clone(),
            state_after: Vec::new(),
            states: Vec::new(),
            k: vec![0.0; num_tokens * h * k],
            decay: vec![0.0; num_tokens * hv * decay],
            delta: vec![0.0; num_tokens * hv * v],
        };
        for (seq, slot) in self.slots.iter().enumerate() {
            if let Some(slot) = *slot {
                replay(&self.replay(), &self.log, slot, &self.pending[seq], &mut solution.state_before);
            }
        }
        solution.state_after = solution.state_before.clone();
        let slot_len = hv * v * k;
        let mut first = 0;
        for (seq, &len) in self.lens.iter().enumerate() {
            let mut states: Vec<Vec<f64>> = vec![Vec::new(); len];
            if let Some(slot) = self.slots[seq] {
                for t in 0..len {
                    let committed = &solution.state_before[slot * slot_len..][..slot_len];
                    let mut s = self.parents[first + t].map_or(committed, |parent| &states[parent]).to_vec();
                    self.step(first + t, &mut s, &mut solution);
                    states[t] = s;
                }
                if let Some(last) = states.last() {
                    solution.state_after[slot * slot_len..][..slot_len].copy_from_slice(last);
                }
            }
            if keep_states {
                solution.states.append(&mut states);
            }
            first += len;
        }
        solution
    }

    fn replay(&self) -> Replay {
        Replay { sizes: self.sizes, head_map: self.head_map, state_dtype: self.state_dtype }
    }

    /// One token; `s` is `[HV, V, K]`.
    fn step(&self, token: usize, s: &mut [f64], solution: &mut Solution) {
        let Sizes { h, hv: num_v_heads, k, v, decay: num_factors } = self.sizes;
        let mut q = vec![0.0; h * k];
        for kh in 0..h {
            let from = (token * h + kh) * k;
            let used_q = self.used(&self.q[from..from + k]);
            let used_k = self.used(&self.k[from..from + k]);
            for j in 0..k {
                q[kh * k + j] = used_q[j];
                solution.k[from + j] = used_k[j];
            }
        }
        for hv in 0..num_v_heads {
            let kh = key_head(self.head_map, hv, h, num_v_heads);
            let gate = token * num_v_heads + hv;
            let beta = self.beta_of(gate);
            for n in 0..num_factors {
                solution.decay[gate * num_factors + n] = self.factor(gate * num_factors + n, hv, hv * num_factors + n);
            }
            for i in 0..v {
                let row = (hv * v + i) * k;
                for j in 0..k {
                    s[row + j] *= solution.decay[gate * num_factors + j.min(num_factors - 1)];
                }
                let mut read = 0.0;
                for j in 0..k {
                    read += s[row + j] * solution.k[(token * h + kh) * k + j];
                }
                let value = (token * num_v_heads + hv) * v + i;
                let delta = (self.v[value] - read) * beta;
                solution.delta[value] = delta;
                for j in 0..k {
                    s[row + j] += delta * solution.k[(token * h + kh) * k + j];
                }
                let mut sum = 0.0;
                for j in 0..k {
                    sum += s[row + j] * q[kh * k + j];
                }
                solution.out[value] = self.scale * sum;
                for j in 0..k {
                    s[row + j] = round_state(self.state_dtype, s[row + j]);
                }
            }
        }
    }

    /// A query or key as the recurrence uses it.
    fn used(&self, x: &[f64]) -> Vec<f64> {
        let mut y = x.to_vec();
        if let Some(eps) = self.l2_norm_eps {
            let mut squares = 0.0;
            for j in 0..x.len() {
                squares += x[j] * x[j];
            }
            for j in 0..x.len() {
                y[j] = x[j] / (squares + eps).sqrt();
            }
        }
        if let Some(dtype) = self.rounding {
            for j in 0..x.len() {
                y[j] = round_to(dtype, y[j]);
            }
        }
        y
    }

    /// The factor at flat index `i`, of value head `hv`, with the bias at flat index `bias`.
    fn factor(&self, i: usize, hv: usize, bias: usize) -> f64 {
        match &self.decay {
            Decay::Log(g) => g[i].exp(),
            Decay::Linear(alpha) => alpha[i],
            Decay::NegLog(x) => (-x[i]).exp(),
            Decay::Gate { a, a_log, dt_bias } => log_decay(a[i], a_log[hv], dt_bias[bias]).exp(),
        }
    }

    fn beta_of(&self, gate: usize) -> f64 {
        let beta = match &self.beta {
            Beta::Value(beta) => beta[gate],
            Beta::Logit(logit) => sigmoid(logit[gate]),
        };
        match self.rounding {
            Some(dtype) => round_to(dtype, beta),
            None => beta,
        }
    }
}
