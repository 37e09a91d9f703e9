//! The measurements.

use std::fmt;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::Result;
use serde_json::json;
use undraft::cpu::{AlignedBuffer, CpuBackend};
use undraft::ops::{ChunkGatedDeltaRuleArgs, DeltaRuleInputs, FusedRecurrentArgs};
use undraft::{Backend, Beta, CaptureMut, Decay, GdnDims, HeadMap, QkNorm, Rounding, Rows, RowsMut};

/// Calls that a median is taken over.
pub const CALLS: usize = 102;

/// One line of the table.
pub struct Row {
    pub batch: usize,
    pub what: String,
    pub median_us: f64,
    /// Ratio to the copy of the same states.
    pub to_copy: Option<f64>,
    /// Ratio to decode, or to what the line says.
    pub to_decode: Option<f64>,
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

/// Microseconds of each of `calls` calls, after 8 that are not counted.
pub fn times(calls: usize, mut call: impl FnMut(usize)) -> Vec<f64> {
    for i in 0..8 {
        call(i);
    }
    let time = |i: usize| {
        let start = Instant::now();
        call(i + 8);
        start.elapsed().as_secs_f64() * 1e6
    };
    (0..calls).map(time).collect()
}

fn median(call: impl FnMut(usize)) -> f64 {
    let mut times = times(CALLS, call);
    times.sort_by(f64::total_cmp);
    times[CALLS / 2]
}

/// Values that differ, neither large nor subnormal.
pub fn fill(buffer: &mut [f32]) {
    buffer.iter_mut().enumerate().for_each(|(i, x)| *x = ((i * 37 + 11) % 101) as f32 / 101.0 - 0.5);
}

/// The chunked form and the recurrence over the same prompt.
pub fn chunk(backend: &CpuBackend, dims: &GdnDims, tokens: &[usize]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &t in tokens {
        let (mut q, mut v) = (vec![0.0; t * dims.key_dim()], vec![0.0; t * dims.value_dim()]);
        let mut gate = vec![0.0; t * dims.decay_len()];
        [&mut q, &mut v, &mut gate].into_iter().for_each(|buffer| fill(buffer));
        let (a_log, dt_bias) = (vec![0.0; dims.num_v_heads()], vec![0.0; dims.decay_len()]);
        let mut out = vec![0.0; t * dims.value_dim()];
        let mut state = AlignedBuffer::zeroed(dims.state_len())?;
        let cu_seqlens = [0, t as i32];
        let inputs = DeltaRuleInputs {
            dims: *dims,
            q: Rows::new(&q[..], dims.key_dim()),
            k: Rows::new(&q[..], dims.key_dim()),
            v: Rows::new(&v[..], dims.value_dim()),
            decay: Decay::Gate { a: &gate, a_log: &a_log, dt_bias: &dt_bias },
            beta: Beta::Logit(&gate[..t * dims.num_v_heads()]),
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
