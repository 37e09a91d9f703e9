//! Microseconds a layer of the recurrence on the first GPU, next to a device copy of the same state.
//!
//!     cargo run --release -p undraft-cuda --example bench [-- --batch 1,8,64,256] [--only verify]
//!
//! H = 16, HV = 32, K = V = 128, bf16 q, k, v, a, b and o, gate, beta's logit and L2 norm in the kernel. One CUDA graph holds a
//! launch for each of so many layers that their states exceed the L2 cache; a figure is the median over replays, divided
//! by the layers. Rounds of verification replay 1 to 4 kept tokens of the round before and write the state back, 1 token
//! more in every further sequence and round. `chunk` is one sequence and one layer; `tools/cuda/fla_chunk.py` times the same.

use std::sync::Arc;

use cudarc::driver::sys::{CUevent_flags, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream, DevicePtr as _, DevicePtrMut as _, result};
use undraft_core::{GdnDims, bf16};
use undraft_cuda::raw::{Captured, ChunkParams, DecayForm, DevicePtr, Elements, RecurrentParams, Switch};
use undraft_cuda::{CudaBackend, cudarc};
use undraft_testing::Rng;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Bytes of all layers' states, several times an L2 cache.
const WORKING_SET: usize = 400 << 20;
const REPLAYS: usize = 15;
/// Tokens of the chunked form's sequence.
const CHUNK_TOKENS: [usize; 2] = [1024, 8192];
/// Tokens of a slot of the logs.
const LOG_TOKENS: usize = 16;

#[derive(Clone, Copy, PartialEq)]
enum Work {
    Copy,
    /// Capture `Final`, nothing pending.
    Decode,
    /// Capture `DeltaLog`, up to this many entries replayed.
    Verify {
        kept: usize,
    },
    /// Capture `DeltaLog`, nothing pending: the state is only read.
    ReadOnly,
    PerToken,
    /// 16 nodes on 4 levels, up to 4 entries replayed.
    Tree,
    /// Replay alone.
    Commit {
        kept: usize,
    },
}

struct Row {
    name: &'static str,
    state: Elements,
    tokens: usize,
    work: Work,
}

const ROWS: [Row; 14] = [
    Row { name: "copy, f32 state", state: Elements::F32, tokens: 0, work: Work::Copy },
    Row { name: "decode T=1, f32 state", state: Elements::F32, tokens: 1, work: Work::Decode },
    Row {
        name: "verify T=4 + lazy commit, f32 state",
        state: Elements::F32,
        tokens: 4,
        work: Work::Verify { kept: 4 },
    },
    Row {
        name: "verify T=8 + lazy commit, f32 state",
        state: Elements::F32,
        tokens: 8,
        work: Work::Verify { kept: 8 },
    },
    Row { name: "verify T=4, nothing pending, f32 state", state: Elements::F32, tokens: 4, work: Work::ReadOnly },
    Row { name: "tree of 16 + lazy commit, f32 state", state: Elements::F32, tokens: 16, work: Work::Tree },
    Row { name: "PerToken T=4, f32 state", state: Elements::F32, tokens: 4, work: Work::PerToken },
    Row { name: "prefill T=64, f32 state", state: Elements::F32, tokens: 64, work: Work::Decode },
    Row { name: "commit_states of 1 to 4, f32 state", state: Elements::F32, tokens: 0, work: Work::Commit { kept: 4 } },
    Row { name: "copy, bf16 state", state: Elements::Bf16, tokens: 0, work: Work::Copy },
    Row { name: "decode T=1, bf16 state", state: Elements::Bf16, tokens: 1, work: Work::Decode },
    Row {
        name: "verify T=4 + lazy commit, bf16 state",
        state: Elements::Bf16,
        tokens: 4,
        work: Work::Verify { kept: 4 },
    },
    Row {
        name: "verify T=8 + lazy commit, bf16 state",
        state: Elements::Bf16,
        tokens: 8,
        work: Work::Verify { kept: 8 },
    },
    Row { name: "tree of 16 + lazy commit, bf16 state", state: Elements::Bf16, tokens: 16, work: Work::Tree },
];

struct Gpu {
    backend: CudaBackend,
    stream: Arc<CudaStream>,
    dims: GdnDims,
}

/// Device memory that lives until the measurement is over.
#[derive(Default)]
struct Memory {
    bytes: Vec<CudaSlice<u8>>,
}

impl Gpu {
    /// Fills `len` elements with random numbers, bf16 or f32, from a repeated block.
    fn random(
        &self,
        memory: &mut Memory,
        rng: &mut Rng,
        elements: Elements,
        len: usize,
        scale: f64,
    ) -> Result<DevicePtr> {
        let block: Vec<u8> = (0..len.min(1 << 16))
            .flat_map(|_| {
                let x = (rng.normal() * scale) as f32;
                match elements {
                    Elements::F32 => x.to_ne_bytes().to_vec(),
                    _ => bf16::from_f32(x).to_ne_bytes().to_vec(),
                }
            })
            .collect();
        let size = if elements == Elements::F32 { 4 } else { 2 };
        let mut buffer = self.stream.alloc_zeros::<u8>(len * size)?;
        let mut filled = block.len().min(len * size);
        if filled > 0 {
            self.stream.memcpy_htod(&block[..filled], &mut buffer.slice_mut(..filled))?;
        }
        while filled < len * size {
            let n = filled.min(len * size - filled);
            let (from, mut to) = buffer.split_at_mut(filled);
            self.stream.memcpy_dtod(&from.as_view().slice(..n), &mut to.slice_mut(..n))?;
            filled += n;
        }
        let address = buffer.device_ptr_mut(&self.stream).0;
        memory.bytes.push(buffer);
        Ok(address)
    }
    fn integers(&self, memory: &mut Memory, values: &[i32]) -> Result<DevicePtr> {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let buffer = self.stream.clone_htod(&bytes)?;
        let address = buffer.device_ptr(&self.stream).0;
        memory.bytes.push(buffer);
        Ok(address)
    }

    /// Graphs of the row, one a round of the cycle, and the layers in each.
    fn graphs(&self, memory: &mut Memory, row: &Row, batch: usize) -> Result<(Vec<CudaGraph>, usize)> {
        let (d, rng) = (&self.dims, &mut Rng::new(batch as u64));
        let size = if row.state == Elements::F32 { 4 } else { 2 };
        let layers = WORKING_SET.div_ceil(batch * d.state_len() * size).clamp(3, 64);
        let n = batch * row.tokens;
        let f32s = Elements::F32;
        let mut params = Vec::new();
        let slots = self.integers(memory, &(0..batch as i32).rev().collect::<Vec<_>>())?;
        let cu = self.integers(memory, &(0..=batch).map(|s| (s * row.tokens) as i32).collect::<Vec<_>>())?;
        let tree = [-1, -1, 0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 6, 7, 8, 9];
        let parents = self.integers(memory, &(0..n).map(|t| tree[t % 16]).collect::<Vec<_>>())?;
        for _ in 0..layers {
            let mut p = RecurrentParams::new(d, batch);
            let width = 2 * d.key_dim() + d.value_dim();
            let qkv = self.random(memory, rng, Elements::Bf16, n * width, 1.0)?;
            (p.q, p.k, p.v) = (qkv, qkv + 2 * d.key_dim() as u64, qkv + 4 * d.key_dim() as u64);
            (p.q_stride, p.k_stride, p.v_stride) = (width as i64, width as i64, width as i64);
            (p.q_dtype, p.k_dtype, p.v_dtype) = (Elements::Bf16, Elements::Bf16, Elements::Bf16);
            p.decay = self.random(memory, rng, Elements::Bf16, n * d.num_v_heads(), 1.0)?;
            p.beta = self.random(memory, rng, Elements::Bf16, n * d.num_v_heads(), 1.0)?;
            (p.decay_dtype, p.beta_dtype) = (Elements::Bf16, Elements::Bf16);
            p.a_log = self.random(memory, rng, f32s, d.num_v_heads(), 0.5)?;
            p.dt_bias = self.random(memory, rng, f32s, d.num_v_heads(), 0.5)?;
            (p.decay_form, p.beta_is_logit, p.l2_norm, p.eps) = (DecayForm::Gate, Switch::On, Switch::On, 1e-6);
            p.out = self.random(memory, rng, Elements::Bf16, n * d.value_dim(), 1.0)?;
            p.out_dtype = Elements::Bf16;
            p.state = self.random(memory, rng, row.state, batch * d.state_len(), 0.2)?;
            (p.cu_seqlens, p.state_indices) = (cu, slots);
            (p.log_max, p.pending_max) = (LOG_TOKENS as i32, LOG_TOKENS as i32);
            p.early = Switch::On;
            (p.max_window, p.max_pending) = (row.tokens as i32, 8);
            match row.work {
                Work::Copy => p.captured = self.random(memory, rng, row.state, batch * d.state_len(), 0.2)?,
                Work::Decode => {}
                Work::PerToken => {
                    p.captured = self.random(memory, rng, row.state, n * d.state_len(), 0.2)?;
                    (p.capture, p.capture_max) = (Captured::PerToken, row.tokens as i32);
                }
                Work::Verify { .. } | Work::ReadOnly | Work::Tree | Work::Commit { .. } => {
                    p.capture = Captured::DeltaLog;
                    let entries = batch * LOG_TOKENS;
                    p.pending_k = self.random(memory, rng, f32s, entries * d.key_dim(), 0.09)?;
                    p.pending_decay = self.random(memory, rng, f32s, entries * d.decay_len(), 0.3)?;
                    p.pending_delta = self.random(memory, rng, f32s, entries * d.value_dim(), 0.5)?;
                    p.log_k = self.random(memory, rng, f32s, entries * d.key_dim(), 0.09)?;
                    p.log_decay = self.random(memory, rng, f32s, entries * d.decay_len(), 0.3)?;
                    p.log_delta = self.random(memory, rng, f32s, entries * d.value_dim(), 0.5)?;
                    if row.work == Work::Tree {
                        p.parents = parents;
                    }
                }
            }
            params.push(p);
        }
        let kept = match row.work {
            Work::Verify { kept } | Work::Commit { kept } => kept,
            Work::Tree => 4,
            _ => 0,
        };
        let mut graphs = Vec::new();
        for round in 0..kept.max(1) {
            let counts: Vec<i32> = (0..batch).map(|s| (1 + (s + round) % kept.max(1)) as i32).collect();
            let counts = self.integers(memory, &counts)?;
            // The path of a tree: nodes 0, 2, 6 and 11.
            let path: Vec<i32> =
                (0..batch * LOG_TOKENS).map(|i| [0, 2, 6, 11].get(i % LOG_TOKENS).copied().unwrap_or(0)).collect();
            let path = self.integers(memory, &path)?;
            self.stream.synchronize()?;
            self.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
            for p in &mut params {
                if kept > 0 {
                    p.num_pending = counts;
                    p.pending_path = if row.work == Work::Tree { path } else { 0 };
                    std::mem::swap(&mut p.pending_k, &mut p.log_k);
                    std::mem::swap(&mut p.pending_decay, &mut p.log_decay);
                    std::mem::swap(&mut p.pending_delta, &mut p.log_delta);
                }
                self.launch(p, row, batch)?;
            }
            let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
            graphs.push(self.stream.end_capture(flags)?.ok_or("an empty graph")?);
        }
        Ok((graphs, layers))
    }

    fn launch(&self, p: &RecurrentParams, row: &Row, batch: usize) -> Result<()> {
        let stream = self.stream.cu_stream();
        let size = if row.state == Elements::F32 { 4 } else { 2 };
        // SAFETY: the buffers of `graphs` have these sizes and live until the measurement is over; a round's log is not the
        // one that its pending entries lie in.
        unsafe {
            match row.work {
                Work::Copy => {
                    result::memcpy_dtod_async(p.captured, p.state, batch * self.dims.state_len() * size, stream)?;
                }
                Work::Commit { .. } => {
                    let commit = undraft_cuda::raw::CommitParams {
                        state: p.state,
                        log_k: p.pending_k,
                        log_decay: p.pending_decay,
                        log_delta: p.pending_delta,
                        state_indices: p.state_indices,
                        num_kept: p.num_pending,
                        state_stride: p.state_stride,
                        num_seqs: p.num_seqs,
                        num_k_heads: p.num_k_heads,
                        num_v_heads: p.num_v_heads,
                        head_k_dim: p.head_k_dim,
                        head_v_dim: p.head_v_dim,
                        log_max: p.log_max,
                        ..Default::default()
                    };
                    self.backend.launcher().commit_states(stream, &commit, row.state, 1)?;
                }
                _ => self.backend.launcher().fused_recurrent_gated_delta_rule(stream, p, row.state)?,
            }
        }
        Ok(())
    }

    /// A graph of one call of the chunked form on one sequence.
    fn chunk_graph(&self, memory: &mut Memory, tokens: usize) -> Result<CudaGraph> {
        let (d, rng, bf16s, f32s) = (&self.dims, &mut Rng::new(7), Elements::Bf16, Elements::F32);
        let mut p = ChunkParams::new(d, 1, tokens);
        p.q = self.random(memory, rng, bf16s, tokens * d.key_dim(), 1.0)?;
        p.k = self.random(memory, rng, bf16s, tokens * d.key_dim(), 1.0)?;
        p.v = self.random(memory, rng, bf16s, tokens * d.value_dim(), 1.0)?;
        p.out = self.random(memory, rng, bf16s, tokens * d.value_dim(), 1.0)?;
        p.decay = self.random(memory, rng, bf16s, tokens * d.num_v_heads(), 1.0)?;
        p.beta = self.random(memory, rng, bf16s, tokens * d.num_v_heads(), 1.0)?;
        p.a_log = self.random(memory, rng, f32s, d.num_v_heads(), 0.5)?;
        p.dt_bias = self.random(memory, rng, f32s, d.num_v_heads(), 0.5)?;
        p.state = self.random(memory, rng, f32s, d.state_len(), 0.2)?;
        (p.q_dtype, p.k_dtype, p.v_dtype, p.out_dtype) = (bf16s, bf16s, bf16s, bf16s);
        (p.decay_dtype, p.beta_dtype) = (bf16s, bf16s);
        (p.decay_form, p.beta_is_logit, p.l2_norm, p.eps) = (DecayForm::Gate, Switch::On, Switch::On, 1e-6);
        p.cu_seqlens = self.integers(memory, &[0, tokens as i32])?;
        p.state_indices = self.integers(memory, &[0])?;
        let launcher = self.backend.launcher();
        p.workspace = self.random(memory, rng, f32s, launcher.chunk_workspace_bytes(&p).div_ceil(4) as usize, 1.0)?;
        self.stream.synchronize()?;
        self.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        // SAFETY: the buffers have these sizes and live as long as `memory`.
        unsafe { launcher.chunk_gated_delta_rule(self.stream.cu_stream(), &p)? };
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        Ok(self.stream.end_capture(flags)?.ok_or("an empty graph")?)
    }

    fn measure_chunk(&self, tokens: usize) -> Result<f64> {
        let mut memory = Memory::default();
        let graph = self.chunk_graph(&mut memory, tokens)?;
        self.replay(&[graph], 1)
    }

    fn measure(&self, row: &Row, batch: usize) -> Result<f64> {
        let mut memory = Memory::default();
        let (graphs, layers) = self.graphs(&mut memory, row, batch)?;
        self.replay(&graphs, layers)
    }

    /// Median microseconds a layer, the mean over the cycle's graphs.
    fn replay(&self, graphs: &[CudaGraph], layers: usize) -> Result<f64> {
        let context = self.stream.context();
        let timing = Some(CUevent_flags::CU_EVENT_DEFAULT);
        let (start, end) = (context.new_event(timing)?, context.new_event(timing)?);
        let mut times = vec![Vec::new(); graphs.len()];
        for replay in 0..REPLAYS + 2 {
            for (graph, times) in graphs.iter().zip(&mut times) {
                start.record(&self.stream)?;
                graph.launch()?;
                end.record(&self.stream)?;
                self.stream.synchronize()?;
                if replay >= 2 {
                    times.push(f64::from(start.elapsed_ms(&end)?) * 1e3 / layers as f64);
                }
            }
        }
        let median = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let sum: f64 = times.iter_mut().map(median).sum();
        Ok(sum / graphs.len() as f64)
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|i| arguments.get(i + 1));
    let batches = value("--batch").map_or("1,8,64,256", String::as_str);
    let batches = batches.split(',').map(str::parse).collect::<std::result::Result<Vec<usize>, _>>()?;
    let only = value("--only").map_or("", String::as_str);
    let backend = CudaBackend::new(0)?;
    let context = CudaContext::new(0)?;
    // SAFETY: every buffer is used on one stream alone, so that no stream waits for another.
    unsafe { context.disable_event_tracking() };
    let gpu = Gpu { stream: context.new_stream()?, backend, dims: GdnDims::new(16, 32, 128, 128)? };
    println!("{:?}\n", gpu.backend);
    println!("| us a layer | {} |", batches.iter().map(|b| format!("B={b}")).collect::<Vec<_>>().join(" | "));
    println!("| --- |{}", " --- |".repeat(batches.len()));
    for row in ROWS.iter().filter(|row| row.name.contains(only)) {
        let mut cells = String::new();
        for &batch in &batches {
            let us = gpu.measure(row, batch)?;
            cells += &format!(" {us:.1} |");
        }
        println!("| {} |{cells}", row.name);
    }
    for tokens in CHUNK_TOKENS {
        let name = format!("chunk T={tokens}, f32 state");
        if name.contains(only) {
            println!("| {name} | {:.1} |{}", gpu.measure_chunk(tokens)?, " |".repeat(batches.len() - 1));
        }
    }
    Ok(())
}
