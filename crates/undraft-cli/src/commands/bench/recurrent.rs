//! Decode, verify and commit of the recurrence next to a copy of the same states.

use std::hint::black_box;

use anyhow::{Result, bail};
use undraft::cpu::{CpuBackend, Serial};
use undraft::ops::{DeltaRuleInputs, FusedRecurrentArgs};
use undraft::{
    Backend, Beta, CaptureMut, DType, Decay, DeltaLogMut, GdnDims, HeadMap, QkNorm, Rounding, Rows, RowsMut,
};

use super::measure::{CALLS, Row, fill, times};
use super::states::States;

/// Most tokens of a window.
pub const MAX_TOKENS: usize = 64;

/// A figure is the median over all of these, so that a busy moment does not meet one kind of call alone.
const TURNS: usize = 3;

/// States that together exceed the caches, and the tokens that run over them.
pub struct Recurrent<'a> {
    backend: &'a CpuBackend,
    dims: GdnDims,
    dtype: DType,
    num_slots: usize,
    state: States,
    copy: States,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A plain copy.
    Copy,
    /// One token, state overwritten.
    Decode,
    /// Replay of the kept tokens, then a window into the log.
    VerifyAndCommit,
    /// The same with a binary tree for the window.
    TreeAndCommit,
    /// A window with its states captured, then a copy of one of them.
    PerToken,
}

impl<'a> Recurrent<'a> {
    pub fn new(backend: &'a CpuBackend, dims: GdnDims, dtype: DType, state_bytes: usize) -> Result<Self> {
        let num_slots = state_bytes.div_ceil(dtype.size() * dims.state_len()).max(1);
        let len = num_slots * dims.state_len();
        let (state, copy) = (States::new(dtype, len)?, States::new(dtype, len)?);
        Ok(Self { backend, dims, dtype, num_slots, state, copy })
    }
    pub fn state_bytes(&self) -> usize {
        self.dtype.size() * self.num_slots * self.dims.state_len()
    }

    /// Copy and decode, then verify with log and commit, and with captured states, for each window.
    pub fn rows(&mut self, batch: usize, tokens: &[usize]) -> Result<Vec<Row>> {
        if batch > self.num_slots {
            bail!("`--batch` has {batch}, expected at most {} for these states; raise `--state-bytes`", self.num_slots);
        }
        let mut kinds = vec![
            ("copy (read and write the states)".to_owned(), 1, Kind::Copy),
            ("decode T=1".to_owned(), 1, Kind::Decode),
        ];
        for &t in tokens {
            kinds.push((format!("verify T={t}, delta log, commit of 1..={t}"), t, Kind::VerifyAndCommit));
            if t > 2 {
                kinds.push((format!("verify T={t} as a binary tree, commit of a path"), t, Kind::TreeAndCommit));
            }
            kinds.push((format!("verify T={t}, a state per token, commit"), t, Kind::PerToken));
        }
        let medians = self.medians(batch, &kinds.iter().map(|&(_, t, kind)| (t, kind)).collect::<Vec<_>>())?;
        let (copy_us, decode_us) = (medians[0], medians[1]);
        let row = |((what, ..), &us): (&(String, usize, Kind), &f64)| Row {
            batch,
            what: what.clone(),
            median_us: us,
            to_copy: Some(us / copy_us),
            to_decode: Some(us / decode_us),
        };
        Ok(kinds.iter().zip(&medians).map(row).collect())
    }

    /// Decode and verify with one thread and with all, and how much faster the latter are.
    pub fn scaling(&mut self, batch: usize, tokens: &[usize]) -> Result<Vec<Row>> {
        let all = self.backend;
        let one = all.clone().with_executor(std::sync::Arc::new(Serial));
        let threads = all.executor().num_threads();
        let kinds = std::iter::once(("decode T=1".to_owned(), 1, Kind::Decode))
            .chain(tokens.iter().map(|&t| (format!("verify T={t}, delta log, commit"), t, Kind::VerifyAndCommit)));
        let mut rows = Vec::new();
        for (what, t, kind) in kinds {
            let mut sums = [Vec::new(), Vec::new()];
            for _ in 0..TURNS {
                sums[0].extend(self.time(&one, batch, t, kind)?);
                sums[1].extend(self.time(all, batch, t, kind)?);
            }
            let [one_us, all_us] = sums.map(median_of);
            let row = |what: String, us, ratio| Row { batch, what, median_us: us, to_copy: None, to_decode: ratio };
            rows.push(row(format!("{what}, 1 thread"), one_us, None));
            rows.push(row(format!("{what}, {threads} threads (times faster)"), all_us, Some(one_us / all_us)));
        }
        Ok(rows)
    }

    fn medians(&mut self, batch: usize, kinds: &[(usize, Kind)]) -> Result<Vec<f64>> {
        let mut all = vec![Vec::new(); kinds.len()];
        for _ in 0..TURNS {
            for (all, &(t, kind)) in all.iter_mut().zip(kinds) {
                all.extend(self.time(self.backend, batch, t, kind)?);
            }
        }
        Ok(all.into_iter().map(median_of).collect())
    }

    /// Microseconds of each call of one turn.
    fn time(&mut self, backend: &CpuBackend, batch: usize, t: usize, kind: Kind) -> Result<Vec<f64>> {
        let calls = CALLS.div_ceil(TURNS);
        let num_groups = self.num_slots / batch;
        if kind == Kind::Copy {
            let len = batch * self.dims.state_len();
            let at = |i: usize| (i % num_groups) * len..(i % num_groups + 1) * len;
            let measured = times(calls, |i| self.copy.copy_from(at(i), &self.state, at(i), &**backend.executor()));
            black_box(&mut self.copy.all_mut());
            return Ok(measured);
        }
        let (dims, n) = (self.dims, batch * t);
        let mut q = vec![0.0; n * dims.key_dim()];
        let mut v = vec![0.0; n * dims.value_dim()];
        let mut gate = vec![0.0; n * dims.decay_len()];
        [&mut q, &mut v, &mut gate].into_iter().for_each(|buffer| fill(buffer));
        let (a_log, dt_bias) = (vec![0.0; dims.num_v_heads()], vec![0.0; dims.decay_len()]);
        let mut out = vec![0.0; n * dims.value_dim()];
        let slots = self.num_slots;
        let mut log_k = vec![0.01; slots * t * dims.key_dim()];
        let mut log_decay = vec![0.99; slots * t * dims.decay_len()];
        let mut log_delta = vec![0.01; slots * t * dims.value_dim()];
        let captured = if kind == Kind::PerToken { n * dims.state_len() } else { 0 };
        let mut captured = States::new(self.dtype, captured)?;
        let cu_seqlens: Vec<i32> = (0..=batch).map(|s| (s * t) as i32).collect();
        let (mut indices, mut pending) = (vec![0i32; batch], vec![0u32; batch]);
        // A binary tree, level by level, and its leftmost path.
        let parents: Vec<i32> = (0..n).map(|i| ((i % t) as i32 - 1).div_euclid(2)).collect();
        let leftmost: Vec<u32> =
            (1..=t as u32).map(|level| 1u32.checked_shl(level - 1).map_or(u32::MAX, |n| n - 1)).collect();
        let depth = leftmost.iter().filter(|&&node| (node as usize) < t).count();
        let path: Vec<u32> = (0..n).map(|i| leftmost[i % t]).collect();
        let is_tree = kind == Kind::TreeAndCommit;
        let mut error = None;
        let measured = times(calls, |i| {
            let first = (i % num_groups) * batch;
            for s in 0..batch {
                indices[s] = (first + s) as i32;
                // Rounds keep 1..=t tokens in turn; what the round before kept is replayed by this one.
                pending[s] = match kind {
                    Kind::VerifyAndCommit => (1 + (i + s) % t) as u32,
                    Kind::TreeAndCommit => (1 + (i + s) % depth) as u32,
                    Kind::Copy | Kind::Decode | Kind::PerToken => 0,
                };
            }
            let inputs = DeltaRuleInputs {
                dims,
                q: Rows::new(&q[..], dims.key_dim()),
                k: Rows::new(&q[..], dims.key_dim()),
                v: Rows::new(&v[..], dims.value_dim()),
                decay: Decay::Gate { a: &gate, a_log: &a_log, dt_bias: &dt_bias },
                beta: Beta::Logit(&gate[..n * dims.num_v_heads()]),
                scale: DeltaRuleInputs::default_scale(&dims),
                head_map: HeadMap::Grouped,
                qk_norm: QkNorm::L2Norm { eps: 1e-6 },
                rounding: Rounding::F32,
                cu_seqlens: &cu_seqlens,
                state_indices: &indices,
                parents: if is_tree { &parents } else { &[] },
            };
            let args = FusedRecurrentArgs {
                inputs,
                num_slots: slots,
                state: self.state.all_mut(),
                log: Some(DeltaLogMut { k: &mut log_k, decay: &mut log_decay, delta: &mut log_delta, max_tokens: t }),
                num_pending: &pending,
                pending_path: if is_tree { &path } else { &[] },
                capture: match kind {
                    Kind::Copy | Kind::Decode => CaptureMut::Final,
                    Kind::VerifyAndCommit | Kind::TreeAndCommit => CaptureMut::DeltaLog,
                    Kind::PerToken => CaptureMut::PerToken { states: captured.all_mut(), max_tokens: t },
                },
                out: RowsMut::new(&mut out[..], dims.value_dim()),
            };
            let result = args.check().and_then(|args| backend.fused_recurrent_gated_delta_rule(args));
            error = error.take().or(result.err());
            if kind == Kind::PerToken {
                let len = dims.state_len();
                for s in 0..batch {
                    let (from, to) = ((s * t + (i + s) % t) * len, (first + s) * len);
                    self.state.copy_from(to..to + len, &captured, from..from + len, &**backend.executor());
                }
            }
        });
        black_box(&out);
        error.map_or(Ok(measured), |error| Err(error.into()))
    }
}

fn median_of(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
