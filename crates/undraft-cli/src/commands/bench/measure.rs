//! The measurements.

use std::fmt;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Result, bail};
use serde_json::json;
use undraft::cpu::{AlignedBuffer, CpuBackend};
use undraft::ops::{ChunkGatedDeltaRuleArgs, DeltaRuleInputs, FusedRecurrentArgs};
use undraft::{Backend, Beta, CaptureMut, Decay, DeltaLogMut, GdnDims, HeadMap, QkNorm, Rounding, Rows, RowsMut};

/// Calls that a median is taken over.
const CALLS: usize = 101;

/// One line of the table.
pub struct Row {
    batch: usize,
    what: String,
    median_us: f64,
    /// Ratio to the copy of the same states.
    to_copy: Option<f64>,
    /// Ratio to decode, or to what the line says.
    to_decode: Option<f64>,
}

impl Row {
    pub fn to_json(&self) -> serde_json::Value {
        json!({
            "batch": self.batch, "what": self.what, "median_us": self.median_us,
            "ratio_to_copy": self.to_copy, "ratio_to_decode": self.to_decode,
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ratio = |x: Option<f64>| x.map_or(String::new(), |x| format!("{x:.2}x"));
        let (copy, decode) = (ratio(self.to_copy), ratio(self.to_decode));
        write!(f, "{:<6} {:<46} {:>9.2} us {copy:>10} {decode:>12}", self.batch, self.what, self.median_us)
    }
}

/// Bytes of the last-level cache, 64 MB where the system does not say.
pub fn last_level_cache() -> usize {
    let read = |index: usize| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok().map(|k| k * 1024)
    };
    (0..8).filter_map(read).max().unwrap_or(64 << 20)
}

fn median(mut call: impl FnMut(usize)) -> f64 {
    for i in 0..8 {
        call(i);
    }
    let mut times: Vec<f64> = (0..CALLS)
        .map(|i| {
            let start = Instant::now();
            call(i + 8);
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[CALLS / 2]
}

/// Values that differ, neither large nor subnormal.
fn fill(buffer: &mut [f32]) {
    buffer.iter_mut().enumerate().for_each(|(i, x)| *x = ((i * 37 + 11) % 101) as f32 / 101.0 - 0.5);
}

/// States that together exceed the caches, and the tokens that run over them.
pub struct Recurrent<'a> {
    backend: &'a CpuBackend,
    dims: GdnDims,
    num_slots: usize,
    state: AlignedBuffer,
    copy: AlignedBuffer,
}

/// Most tokens of a window.
pub const MAX_TOKENS: usize = 16;

impl<'a> Recurrent<'a> {
    pub fn new(backend: &'a CpuBackend, dims: GdnDims, state_bytes: usize) -> Result<Self> {
        let num_slots = state_bytes.div_ceil(4 * dims.state_len()).max(1);
        let mut state = AlignedBuffer::zeroed(num_slots * dims.state_len())?;
        let copy = AlignedBuffer::zeroed(num_slots * dims.state_len())?;
        fill(&mut state);
        Ok(Self { backend, dims, num_slots, state, copy })
    }
    pub fn state_bytes(&self) -> usize {
        4 * self.state.len()
    }

    /// Copy and decode, then verify with log and commit, and with captured states, for each window.
    pub fn rows(&mut self, batch: usize, tokens: &[usize]) -> Result<Vec<Row>> {
        if batch > self.num_slots {
            bail!("`--batch` has {batch}, expected at most {} for these states; raise `--state-bytes`", self.num_slots);
        }
        let len = batch * self.dims.state_len();
        let num_groups = self.num_slots / batch;
        let (state, copy) = (&self.state, &mut self.copy);
        let executor = self.backend.executor().clone();
        let parts = executor.num_threads();
        let copy_us = median(|i| {
            let at = (i % num_groups) * len;
            let shared = undraft::cpu::SharedMut::new(&mut copy[at..at + len]);
            executor.run(parts, &|part| {
                let range = part * len / parts..(part + 1) * len / parts;
                // SAFETY: each part of the copy belongs to one task.
                unsafe { shared.part(range.clone()) }.copy_from_slice(&state[at + range.start..at + range.end]);
            });
        });
        black_box(&self.copy);
        let decode_us = self.time(batch, 1, Kind::Decode)?;
        let row = |what: String, us: f64| Row {
            batch,
            what,
            median_us: us,
            to_copy: Some(us / copy_us),
            to_decode: Some(us / decode_us),
        };
        let mut rows =
            vec![row("copy (read and write the states)".into(), copy_us), row("decode T=1".into(), decode_us)];
        for &t in tokens {
            let us = self.time(batch, t, Kind::VerifyAndCommit)?;
            rows.push(row(format!("verify T={t}, delta log, commit of 1..={t}"), us));
            if t > 2 {
                let us = self.time(batch, t, Kind::TreeAndCommit)?;
                rows.push(row(format!("verify T={t} as a binary tree, commit of a path"), us));
            }
            let us = self.time(batch, t, Kind::PerToken)?;
            rows.push(row(format!("verify T={t}, a state per token, commit"), us));
        }
        Ok(rows)
    }

    fn time(&mut self, batch: usize, t: usize, kind: Kind) -> Result<f64> {
        let (dims, n) = (self.dims, batch * t);
        let mut q = vec![0.0; n * dims.key_dim()];
        let mut v = vec![0.0; n * dims.value_dim()];
        let mut gate = vec![0.0; n * dims.num_v_heads()];
        [&mut q, &mut v, &mut gate].into_iter().for_each(|buffer| fill(buffer));
        let (a_log, dt_bias) = (vec![0.0; dims.num_v_heads()], vec![0.0; dims.num_v_heads()]);
        let mut out = vec![0.0; n * dims.value_dim()];
        let slots = self.num_slots;
        let mut log_k = vec![0.01; slots * t * dims.key_dim()];
        let mut log_decay = vec![0.99; slots * t * dims.num_v_heads()];
        let mut log_delta = vec![0.01; slots * t * dims.value_dim()];
        let captured = if kind == Kind::PerToken { n * dims.state_len() } else { 0 };
        let mut captured = AlignedBuffer::zeroed(captured)?;
        let cu_seqlens: Vec<i32> = (0..=batch).map(|s| (s * t) as i32).collect();
        let (mut indices, mut pending) = (vec![0i32; batch], vec![0u32; batch]);
        let num_groups = slots / batch;
        // A binary tree, level by level, and its leftmost path.
        let parents: Vec<i32> = (0..batch * t).map(|i| ((i % t) as i32 - 1).div_euclid(2)).collect();
        let leftmost: Vec<u32> = (0..t as u32).map(|i| (1u32 << i.min(31)) - 1).collect();
        let depth = leftmost.iter().filter(|&&node| (node as usize) < t).count();
        let path: Vec<u32> = (0..batch * t).map(|i| leftmost[i % t]).collect();
        let mut error = None;
        let us = median(|i| {
            let first = (i % num_groups) * batch;
            for s in 0..batch {
                indices[s] = (first + s) as i32;
                // Rounds keep 1..=t tokens in turn; what the round before kept is replayed by this one.
                pending[s] = match kind {
                    Kind::VerifyAndCommit => (1 + (i + s) % t) as u32,
                    Kind::TreeAndCommit => (1 + (i + s) % depth) as u32,
                    Kind::Decode | Kind::PerToken => 0,
                };
            }
            let inputs = DeltaRuleInputs {
                dims,
                q: Rows::new(&q[..], dims.key_dim()),
                k: Rows::new(&q[..], dims.key_dim()),
                v: Rows::new(&v[..], dims.value_dim()),
                decay: Decay::Gate { a: &gate, a_log: &a_log, dt_bias: &dt_bias },
                beta: Beta::Logit(&gate),
                scale: DeltaRuleInputs::default_scale(&dims),
                head_map: HeadMap::Grouped,
                qk_norm: QkNorm::L2Norm { eps: 1e-6 },
                rounding: Rounding::F32,
                cu_seqlens: &cu_seqlens,
                state_indices: &indices,
                parents: if kind == Kind::TreeAndCommit { &parents } else { &[] },
            };
            let args = FusedRecurrentArgs {
                inputs,
                num_slots: slots,
                state: (&mut self.state[..]).into(),
                log: Some(DeltaLogMut { k: &mut log_k, decay: &mut log_decay, delta: &mut log_delta, max_tokens: t }),
                num_pending: &pending,
                pending_path: if kind == Kind::TreeAndCommit { &path } else { &[] },
                capture: match kind {
                    Kind::Decode => CaptureMut::Final,
                    Kind::VerifyAndCommit | Kind::TreeAndCommit => CaptureMut::DeltaLog,
                    Kind::PerToken => CaptureMut::PerToken { states: (&mut captured[..]).into(), max_tokens: t },
                },
                out: RowsMut::new(&mut out[..], dims.value_dim()),
            };
            let result = args.check().and_then(|args| self.backend.fused_recurrent_gated_delta_rule(args));
            error = error.take().or(result.err());
            if kind == Kind::PerToken {
                let len = dims.state_len();
                for s in 0..batch {
                    let from = (s * t + (i + s) % t) * len;
                    self.state[(first + s) * len..][..len].copy_from_slice(&captured[from..from + len]);
                }
            }
        });
        black_box(&out);
        error.map_or(Ok(us), |error| Err(error.into()))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One token, state overwritten.
    Decode,
    /// Replay of the kept tokens, then a window into the log.
    VerifyAndCommit,
    /// The same with a binary tree for the window.
    TreeAndCommit,
    /// A window with its states captured, then a copy of one of them.
    PerToken,
}

/// The chunked form and the recurrence over the same prompt.
pub fn chunk(backend: &CpuBackend, dims: &GdnDims, tokens: &[usize]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &t in tokens {
        let (mut q, mut v) = (vec![0.0; t * dims.key_dim()], vec![0.0; t * dims.value_dim()]);
        let mut gate = vec![0.0; t * dims.num_v_heads()];
        [&mut q, &mut v, &mut gate].into_iter().for_each(|buffer| fill(buffer));
        let (a_log, dt_bias) = (vec![0.0; dims.num_v_heads()], vec![0.0; dims.num_v_heads()]);
        let mut out = vec![0.0; t * dims.value_dim()];
        let mut state = AlignedBuffer::zeroed(dims.state_len())?;
        let cu_seqlens = [0, t as i32];
        let inputs = DeltaRuleInputs {
            dims: *dims,
            q: Rows::new(&q[..], dims.key_dim()),
            k: Rows::new(&q[..], dims.key_dim()),
            v: Rows::new(&v[..], dims.value_dim()),
            decay: Decay::Gate { a: &gate, a_log: &a_log, dt_bias: &dt_bias },
            beta: Beta::Logit(&gate),
            scale: DeltaRuleInputs::default_scale(dims),
            head_map: HeadMap::Grouped,
            qk_norm: QkNorm::L2Norm { eps: 1e-6 },
            rounding: Rounding::F32,
            cu_seqlens: &cu_seqlens,
            state_indices: &[0],
            parents: &[],
        };
        let mut error = None;
        let mut time = |is_chunk: bool| {
            let mut times: Vec<f64> = (0..7)
                .map(|_| {
                    let out = RowsMut::new(&mut out[..], dims.value_dim());
                    let start = Instant::now();
                    let result = if is_chunk {
                        let state = (&mut state[..]).into();
                        let args = ChunkGatedDeltaRuleArgs { inputs, num_slots: 1, state, checkpoints: None, out };
                        args.check().and_then(|args| backend.chunk_gated_delta_rule(args))
                    } else {
                        let args = FusedRecurrentArgs {
                            inputs,
                            num_slots: 1,
                            state: (&mut state[..]).into(),
                            log: None,
                            num_pending: &[],
                            pending_path: &[],
                            capture: CaptureMut::Final,
                            out,
                        };
                        args.check().and_then(|args| backend.fused_recurrent_gated_delta_rule(args))
                    };
                    error = error.take().or(result.err());
                    start.elapsed().as_secs_f64() * 1e6
                })
                .collect();
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let (recurrent, chunk) = (time(false), time(true));
        let row = |what: String, us: f64| Row {
            batch: 1,
            what,
            median_us: us,
            to_copy: None,
            to_decode: Some(us / recurrent),
        };
        rows.push(row(format!("recurrent form, {t} tokens"), recurrent));
        rows.push(row(format!("chunked form, {t} tokens (ratio to recurrent)"), chunk));
        if let Some(error) = error {
            return Err(error.into());
        }
    }
    Ok(rows)
}

/// Jobs of one task a thread, back to back: tasks that do nothing, and tasks that wait until all have begun.
pub fn fork_join(backend: &CpuBackend) -> Vec<Row> {
    let executor = backend.executor();
    let n = executor.num_threads();
    let row =
        |what: String, hundred: f64| Row { batch: 1, what, median_us: hundred / 100.0, to_copy: None, to_decode: None };
    let empty = median(|_| (0..100).for_each(|_| executor.run(n, &|task| _ = black_box(task))));
    let meet = median(|_| {
        for _ in 0..100 {
            let begun = AtomicUsize::new(0);
            executor.run(n, &|_| {
                begun.fetch_add(1, Ordering::Relaxed);
                while begun.load(Ordering::Relaxed) < n {
                    std::hint::spin_loop();
                }
            });
        }
    });
    vec![
        row(format!("fork and join, {n} empty tasks"), empty),
        row(format!("fork and join, {n} tasks that meet on {n} threads"), meet),
    ]
}
