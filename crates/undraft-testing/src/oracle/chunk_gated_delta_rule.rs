//! The matrix form of the recurrence; the oracle's own cross-check.
//!
//! The chunked operation is judged by [`super::fused_recurrent_gated_delta_rule`]. This form shares no step with it: it
//! solves a triangular system for all deltas of a chunk at once.

/// One head and one sequence.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// `[T][K]`, as used.
    pub q: Vec<Vec<f64>>,
    /// `[T][K]`, as used.
    pub k: Vec<Vec<f64>>,
    /// `[T][V]`.
    pub v: Vec<Vec<f64>>,
    /// `[T]`, log of the factor.
    pub g: Vec<f64>,
    /// `[T]`.
    pub beta: Vec<f64>,
    /// Factor on the output.
    pub scale: f64,
}

impl Chunk {
    /// Outputs `[T][V]` and the state after the chunk, from the state `[V][K]` before it.
    ///
    /// With `c(t, s) = g[s+1] + .. + g[t]`, the deltas `u` solve the unit lower triangular system
    /// `u[t] + beta[t] sum_{s<t} e^c(t,s) (k[s] . k[t]) u[s] = beta[t] (v[t] - e^c(t,-1) S0 k[t])`; then
    /// `S_T = e^c(T-1,-1) S0 + sum_s e^c(T-1,s) u[s] k[s]^T` and `o[t] = scale S_{t+1} q[t]`.
    pub fn solve(&self, initial: &[Vec<f64>]) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
        let tokens = self.k.len();
        // Decay of what token `s` left by the time of token `t`; `s = None` is the initial state.
        let weight = |t: usize, s: Option<usize>| (s.map_or(0, |s| s + 1)..=t).map(|i| self.g[i]).sum::<f64>().exp();
        let (num_v, num_k) = (initial.len(), initial.first().map_or(0, Vec::len));
        let mut u = vec![vec![0.0; num_v]; tokens];
        for t in 0..tokens {
            for i in 0..num_v {
                let mut rhs = self.v[t][i] - weight(t, None) * dot(&initial[i], &self.k[t]);
                for s in 0..t {
                    rhs -= weight(t, Some(s)) * dot(&self.k[s], &self.k[t]) * u[s][i];
                }
                u[t][i] = self.beta[t] * rhs;
            }
        }
        let mut out = vec![vec![0.0; num_v]; tokens];
        for t in 0..tokens {
            for i in 0..num_v {
                let mut sum = weight(t, None) * dot(&initial[i], &self.q[t]);
                for s in 0..=t {
                    sum += weight(t, Some(s)) * dot(&self.k[s], &self.q[t]) * u[s][i];
                }
                out[t][i] = self.scale * sum;
            }
        }
        let Some(last) = tokens.checked_sub(1) else { return (out, initial.to_vec()) };
        let mut state = initial.to_vec();
        for i in 0..num_v {
            for j in 0..num_k {
                state[i][j] *= weight(last, None);
                for s in 0..tokens {
                    state[i][j] += weight(last, Some(s)) * u[s][i] * self.k[s][j];
                }
            }
        }
        (out, state)
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}
