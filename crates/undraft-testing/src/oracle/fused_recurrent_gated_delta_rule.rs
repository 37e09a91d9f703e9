//! The recurrence, token by token.

use super::commit_states::replay;
use super::fused_gdn_gating::log_decay;
use super::{round_to, sigmoid};
use undraft_core::{DType, HeadMap};

/// `H`, `HV`, `K`, `V`.
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
}

/// A delta log.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// `[slots, max_tokens, H, K]`.
    pub k: Vec<f64>,
    /// `[slots, max_tokens, HV]`.
    pub decay: Vec<f64>,
    /// `[slots, max_tokens, HV, V]`.
    pub delta: Vec<f64>,
    /// Tokens of a slot's log.
    pub max_tokens: usize,
}

/// How decay is given; `[T, HV]` unless said otherwise.
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
        /// `[T, HV]`.
        a: Vec<f64>,
        /// `[HV]`.
        a_log: Vec<f64>,
        /// `[HV]`.
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
    /// Slot of each sequence; `None` is padding.
    pub slots: Vec<Option<usize>>,
    /// `[slots, HV, V, K]`.
    pub state: Vec<f64>,
    /// Log of the window before.
    pub log: Log,
    /// Log entries of each sequence that go into the state first.
    pub pending: Vec<usize>,
}

/// Outputs; tokens of padding hold zeros.
#[derive(Clone, Debug)]
pub struct Solution {
    /// `[T, HV, V]`.
    pub out: Vec<f64>,
    /// `[slots, HV, V, K]` after the pending entries.
    pub state_before: Vec<f64>,
    /// `[slots, HV, V, K]` after the window.
    pub state_after: Vec<f64>,
    /// `[T][HV, V, K]` after each token; empty unless asked for.
    pub states: Vec<Vec<f64>>,
    /// `[T, H, K]`: the key as used.
    pub k: Vec<f64>,
    /// `[T, HV]`: the factor.
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
        let Sizes { h, hv, k, v } = self.sizes;
        let num_tokens: usize = self.lens.iter().sum();
        let mut solution = Solution {
            out: vec![0.0; num_tokens * hv * v],
            state_before: self.state.clone(),
            state_after: Vec::new(),
            states: Vec::new(),
            k: vec![0.0; num_tokens * h * k],
            decay: vec![0.0; num_tokens * hv],
            delta: vec![0.0; num_tokens * hv * v],
        };
        for (seq, slot) in self.slots.iter().enumerate() {
            if let Some(slot) = *slot {
                let count = self.pending[seq];
                replay(&self.sizes, self.head_map, &self.log, slot, count, &mut solution.state_before);
            }
        }
        let mut state = solution.state_before.clone();
        let slot_len = hv * v * k;
        let mut token = 0;
        for (seq, &len) in self.lens.iter().enumerate() {
            for _ in 0..len {
                match self.slots[seq] {
                    Some(slot) => {
                        let s = &mut state[slot * slot_len..][..slot_len];
                        self.step(token, s, &mut solution);
                        if keep_states {
                            solution.states.push(s.to_vec());
                        }
                    }
                    None if keep_states => solution.states.push(Vec::new()),
                    None => {}
                }
                token += 1;
            }
        }
        solution.state_after = state;
        solution
    }

    /// One token; `s` is `[HV, V, K]`.
    fn step(&self, token: usize, s: &mut [f64], solution: &mut Solution) {
        let Sizes { h, hv: num_v_heads, k, v } = self.sizes;
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
            let decay = self.factor(gate, hv);
            let beta = self.beta_of(gate);
            solution.decay[gate] = decay;
            for i in 0..v {
                let row = (hv * v + i) * k;
                for j in 0..k {
                    s[row + j] *= decay;
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

    fn factor(&self, gate: usize, hv: usize) -> f64 {
        match &self.decay {
            Decay::Log(g) => g[gate].exp(),
            Decay::Linear(alpha) => alpha[gate],
            Decay::NegLog(x) => (-x[gate]).exp(),
            Decay::Gate { a, a_log, dt_bias } => log_decay(a[gate], a_log[hv], dt_bias[hv]).exp(),
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
