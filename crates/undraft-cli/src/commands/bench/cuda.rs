//! The recurrence and the chunked form on a GPU, next to a device copy of the same states.
//!
//! A CUDA graph holds a launch for each of so many layers that their states exceed the L2 cache; a figure is the median
//! over replays of the graph, divided by the layers. q, k, v, the gate's inputs and o are bf16; L2 norm and gates are
//! part of every time. A round of verification replays what the round before kept, in every further sequence and round one
//! token more of 1..=T, and writes the state back: each round of this cycle is a graph of its own.

use std::mem::swap;
use std::sync::Arc;

use anyhow::Result;
use undraft::cuda::cudarc::driver::sys::CUevent_flags;
use undraft::cuda::cudarc::driver::{CudaContext, result};
use undraft::cuda::driver::{DevicePtr, Graph, Stream};
use undraft::cuda::raw::{Captured, ChunkParams, CommitParams, DecayForm, Elements, RecurrentParams, Switch};
use undraft::cuda::{CudaBackend, DeviceBuffer};
use undraft::{DType, GdnDims, bf16, f16};
use undraft_testing::Rng;

use super::measure::Row;

/// Bytes of states that exceed an L2 cache several times.
pub const STATE_BYTES: usize = 400 << 20;

/// Replays that a median is taken over, after `WARM_UP` that are not counted.
const REPLAYS: usize = 51;
const WARM_UP: usize = 3;
/// Fewer layers would leave out how launches overlap, more would only take memory.
const NUM_LAYERS: std::ops::RangeInclusive<usize> = 3..=1024;
/// Parent of each node of a tree, on 4 levels.
pub const TREE: [i32; 16] = [-1, -1, 0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 6, 7, 8, 9];
/// A path through all levels of it.
pub const TREE_PATH: [i32; 4] = [0, 2, 6, 11];
/// Elements of the random numbers that fill a buffer over and over.
const BLOCK: usize = 1 << 16;
/// Element type of all that is neither state nor log.
const IO: DType = DType::Bf16;

/// What is launched for a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A device copy of the states.
    Copy,
    /// `tokens` tokens, state overwritten.
    Final { tokens: usize },
    /// Replay of 1 to `tokens` kept tokens, then a window of `tokens` into the log.
    Verify { tokens: usize },
    /// The same with a tree for the window and paths of it kept.
    Tree,
    /// A window with the state after each token captured.
    PerToken { tokens: usize },
    /// Replay of 1 to `tokens` kept tokens alone.
    Commit { tokens: usize },
}

impl Work {
    pub fn what(self) -> String {
        match self {
            Work::Copy => "copy (read and write the states)".into(),
            Work::Final { tokens: 1 } => "decode T=1".into(),
            Work::Final { tokens } => format!("recurrent form, {tokens} tokens"),
            Work::Verify { tokens } => format!("verify T={tokens}, delta log, commit of 1..={tokens}"),
            Work::Tree => format!("verify {} nodes as a tree, commit of 1..={}", TREE.len(), TREE_PATH.len()),
            Work::PerToken { tokens } => format!("verify T={tokens}, a state per token"),
            Work::Commit { tokens } => format!("commit_states of 1..={tokens}"),
        }
    }
    /// Tokens of a sequence's window.
    pub fn window(self) -> usize {
        match self {
            Work::Copy | Work::Commit { .. } => 0,
            Work::Final { tokens } | Work::Verify { tokens } | Work::PerToken { tokens } => tokens,
            Work::Tree => TREE.len(),
        }
    }
    /// Most tokens that a round keeps; 0 where nothing is pending.
    pub fn max_kept(self) -> usize {
        match self {
            Work::Verify { tokens } | Work::Commit { tokens } => tokens,
            Work::Tree => TREE_PATH.len(),
            Work::Copy | Work::Final { .. } | Work::PerToken { .. } => 0,
        }
    }
    /// Tokens of a slot of the logs.
    pub fn log_tokens(self) -> usize {
        if self.max_kept() == 0 { 0 } else { self.window().max(self.max_kept()) }
    }
}

/// A GPU and what is measured on it.
pub struct Gpu<'a> {
    backend: &'a CudaBackend,
    context: Arc<CudaContext>,
    stream: Stream,
    dims: GdnDims,
    state: DType,
    state_bytes: usize,
}

impl<'a> Gpu<'a> {
    /// States of `state`, those of all layers together `state_bytes` or somewhat more.
    pub fn new(backend: &'a CudaBackend, dims: GdnDims, state: DType, state_bytes: usize) -> Result<Self> {
        let driver = backend.launcher().driver();
        let context = CudaContext::new(driver.attributes().ordinal)?;
        Ok(Self { backend, context, stream: Stream::new(driver)?, dims, state, state_bytes })
    }

    /// Copy and decode, verification of each window and of a tree; of the first window also a state per token, and the
    /// commit alone.
    pub fn recurrent(&self, batch: usize, tokens: &[usize]) -> Result<Vec<Row>> {
        let mut works = vec![Work::Copy, Work::Final { tokens: 1 }];
        works.extend(tokens.iter().map(|&tokens| Work::Verify { tokens }));
        works.push(Work::Tree);
        if let Some(&tokens) = tokens.first() {
            works.extend([Work::PerToken { tokens }, Work::Commit { tokens }]);
        }
        let layer_bytes = batch * self.dims.state_len() * self.state.size();
        let num_layers = self.state_bytes.div_ceil(layer_bytes).clamp(*NUM_LAYERS.start(), *NUM_LAYERS.end());
        let times = works.iter().map(|&work| self.time(work, batch, num_layers)).collect::<Result<Vec<f64>>>()?;
        let row = |(work, &us): (&Work, &f64)| Row {
            batch,
            what: work.what(),
            median_us: us,
            to_copy: Some(us / times[0]),
            to_decode: Some(us / times[1]),
        };
        Ok(works.iter().zip(&times).map(row).collect())
    }

    /// The chunked form and the recurrence over the same prompt.
    pub fn chunk(&self, tokens: &[usize]) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for &tokens in tokens {
            let work = Work::Final { tokens };
            let (recurrent, chunk) = (self.time(work, 1, 1)?, self.time_chunk(tokens)?);
            let row = |what: String, us: f64| Row {
                batch: 1,
                what,
                median_us: us,
                to_copy: None,
                to_decode: Some(us / recurrent),
            };
            rows.push(row(work.what(), recurrent));
            rows.push(row(format!("chunked form, {tokens} tokens (ratio to recurrent)"), chunk));
        }
        Ok(rows)
    }

    /// Microseconds a layer, the mean over the rounds of the cycle.
    fn time(&self, work: Work, batch: usize, num_layers: usize) -> Result<f64> {
        let memory = &mut Memory::new(&self.stream);
        let shared = Shared::new(memory, work, batch)?;
        let mut layers = Vec::new();
        for _ in 0..num_layers {
            layers.push(self.layer(memory, work, batch, &shared)?);
        }
        let mut graphs = Vec::new();
        for round in 0..work.max_kept().max(1) {
            let counts: Vec<i32> = (0..batch).map(|s| (1 + (s + round) % work.max_kept().max(1)) as i32).collect();
            let counts = if work.max_kept() > 0 { memory.integers(&counts)? } else { 0 };
            graphs.push(self.stream.capture(|| {
                for layer in &mut layers {
                    layer.num_pending = counts;
                    // What the round before wrote is pending in this one.
                    swap(&mut layer.pending_k, &mut layer.log_k);
                    swap(&mut layer.pending_decay, &mut layer.log_decay);
                    swap(&mut layer.pending_delta, &mut layer.log_delta);
                    self.launch(work, layer)?;
                }
                Ok(())
            })?);
        }
        self.replay(memory, &graphs).map(|us| us / num_layers as f64)
    }

    /// One layer's buffers: of the shapes that [`RecurrentParams`] tells, for `batch` sequences with windows of
    /// `work.window()` tokens, and a slot for each.
    fn layer(&self, memory: &mut Memory<'_>, work: Work, batch: usize, shared: &Shared) -> Result<RecurrentParams> {
        let d = &self.dims;
        let num_tokens = batch * work.window();
        let mut p = RecurrentParams::new(d, batch);
        // One row of q, k and v a token, as a convolution leaves them.
        let width = 2 * d.key_dim() + d.value_dim();
        let (key_bytes, io) = ((d.key_dim() * IO.size()) as u64, Elements::from(IO));
        p.q = memory.random(IO, num_tokens * width, 1.0)?;
        (p.k, p.v) = (p.q + key_bytes, p.q + 2 * key_bytes);
        (p.q_stride, p.k_stride, p.v_stride) = (width as i64, width as i64, width as i64);
        p.decay = memory.random(IO, num_tokens * d.decay_len(), 1.0)?;
        p.beta = memory.random(IO, num_tokens * d.num_v_heads(), 1.0)?;
        p.out = memory.written(IO, num_tokens * d.value_dim())?;
        (p.q_dtype, p.k_dtype, p.v_dtype) = (io, io, io);
        (p.decay_dtype, p.beta_dtype, p.out_dtype) = (io, io, io);
        p.a_log = memory.random(DType::F32, d.num_v_heads(), 0.5)?;
        p.dt_bias = memory.random(DType::F32, d.decay_len(), 0.5)?;
        (p.decay_form, p.beta_is_logit, p.l2_norm, p.eps) = (DecayForm::Gate, Switch::On, Switch::On, 1e-6);
        p.state = memory.random(self.state, batch * d.state_len(), 0.2)?;
        (p.cu_seqlens, p.state_indices) = (shared.cu_seqlens, shared.slots);
        (p.parents, p.pending_path) = (shared.parents, shared.path);
        (p.max_window, p.max_pending) = (work.window() as i32, work.max_kept() as i32);
        // No launch writes what another layer's reads.
        p.early = Switch::On;
        match work {
            Work::Copy => p.captured = memory.written(self.state, batch * d.state_len())?,
            Work::PerToken { tokens } => {
                p.captured = memory.written(self.state, num_tokens * d.state_len())?;
                (p.capture, p.capture_max) = (Captured::PerToken, tokens as i32);
            }
            Work::Final { .. } | Work::Verify { .. } | Work::Tree | Work::Commit { .. } => {}
        }
        if work.max_kept() > 0 {
            p.capture = Captured::DeltaLog;
            (p.log_max, p.pending_max) = (work.log_tokens() as i32, work.log_tokens() as i32);
            let entries = batch * work.log_tokens();
            for (k, decay, delta) in [
                (&mut p.pending_k, &mut p.pending_decay, &mut p.pending_delta),
                (&mut p.log_k, &mut p.log_decay, &mut p.log_delta),
            ] {
                *k = memory.random(DType::F32, entries * d.key_dim(), 0.09)?;
                *decay = memory.random(DType::F32, entries * d.decay_len(), 0.3)?;
                *delta = memory.random(DType::F32, entries * d.value_dim(), 0.5)?;
            }
        }
        Ok(p)
    }

    fn launch(&self, work: Work, p: &RecurrentParams) -> undraft::cuda::Result<()> {
        let (launcher, stream) = (self.backend.launcher(), self.stream.handle());
        let state_bytes = p.num_seqs as usize * self.dims.state_len() * self.state.size();
        match work {
            // SAFETY: both are buffers of `layer`, of so many bytes each, that live until `replay` has waited for the graph.
            Work::Copy => unsafe { launcher.driver().copy_on_device(stream, p.captured, p.state, state_bytes) },
            Work::Commit { .. } => {
                let commit = CommitParams {
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
                    log_max: p.pending_max,
                    per_channel: p.per_channel,
                    ..CommitParams::default()
                };
                // SAFETY: the stream is of the launcher's driver. `layer` made states and log with the shapes that these
                // sizes tell, and they live until `replay` has waited for the graph; `Shared` has each slot once, and `time`
                // counts that the log's slots hold.
                unsafe { launcher.commit_states(stream, &commit, self.state.into(), 1) }
            }
            // SAFETY: as for the commit, for all buffers of `layer`: none of them overlap, and the pending log and the window's
            // are two. `Shared` has lengths that rise from 0, parents before their children and a rising path; a tree comes
            // with the capture `DeltaLog`, which keeps the state. Nothing that the launch reads early is written by another.
            Work::Final { .. } | Work::Verify { .. } | Work::Tree | Work::PerToken { .. } => unsafe {
                launcher.fused_recurrent_gated_delta_rule(stream, p, self.state.into())
            },
        }
    }

    /// Microseconds of the chunked form over one sequence.
    fn time_chunk(&self, tokens: usize) -> Result<f64> {
        let (d, io, memory) = (&self.dims, Elements::from(IO), &mut Memory::new(&self.stream));
        let launcher = self.backend.launcher();
        let mut p = ChunkParams::new(d, 1, tokens);
        p.q = memory.random(IO, tokens * d.key_dim(), 1.0)?;
        p.k = memory.random(IO, tokens * d.key_dim(), 1.0)?;
        p.v = memory.random(IO, tokens * d.value_dim(), 1.0)?;
        p.decay = memory.random(IO, tokens * d.decay_len(), 1.0)?;
        p.beta = memory.random(IO, tokens * d.num_v_heads(), 1.0)?;
        p.out = memory.written(IO, tokens * d.value_dim())?;
        (p.q_dtype, p.k_dtype, p.v_dtype) = (io, io, io);
        (p.decay_dtype, p.beta_dtype, p.out_dtype, p.state_dtype) = (io, io, io, self.state.into());
        p.a_log = memory.random(DType::F32, d.num_v_heads(), 0.5)?;
        p.dt_bias = memory.random(DType::F32, d.decay_len(), 0.5)?;
        (p.decay_form, p.beta_is_logit, p.l2_norm, p.eps) = (DecayForm::Gate, Switch::On, Switch::On, 1e-6);
        p.state = memory.random(self.state, d.state_len(), 0.2)?;
        p.cu_seqlens = memory.integers(&[0, tokens as i32])?;
        p.state_indices = memory.integers(&[0])?;
        p.workspace = memory.bytes(launcher.chunk_workspace_bytes(&p) as usize)?;
        let graph = self.stream.capture(|| {
            // SAFETY: the stream is of the launcher's driver; every buffer was made above with the shape that the sizes tell,
            // the workspace with the bytes asked for; none overlap, and they live until `replay` has waited for the graph.
            unsafe { launcher.chunk_gated_delta_rule(self.stream.handle(), &p) }
        })?;
        self.replay(memory, &[graph])
    }

    /// Microseconds of a graph: the median over replays, of several graphs the mean of theirs. `_memory` is what they work
    /// on.
    fn replay(&self, _memory: &Memory<'_>, graphs: &[Graph]) -> Result<f64> {
        let timing = Some(CUevent_flags::CU_EVENT_DEFAULT);
        let (start, end) = (self.context.new_event(timing)?, self.context.new_event(timing)?);
        let mut times = vec![Vec::new(); graphs.len()];
        for replay in 0..WARM_UP + REPLAYS {
            for (graph, times) in graphs.iter().zip(&mut times) {
                // SAFETY: events and stream are of one device's primary context and live until the stream has been
                // synchronised; the graph was recorded on this stream, and the memory that it works on is borrowed.
                unsafe {
                    result::event::record(start.cu_event(), self.stream.handle())?;
                    graph.launch(&self.stream)?;
                    result::event::record(end.cu_event(), self.stream.handle())?;
                }
                self.stream.synchronize()?;
                if replay >= WARM_UP {
                    times.push(f64::from(start.elapsed_ms(&end)?) * 1e3);
                }
            }
        }
        let median = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        Ok(times.iter_mut().map(median).sum::<f64>() / graphs.len() as f64)
    }
}

/// What the launches of all layers read.
struct Shared {
    /// `[num_seqs + 1]`, windows of one length.
    cu_seqlens: DevicePtr,
    /// `[num_seqs]`, each slot once.
    slots: DevicePtr,
    /// `[num_tokens]`, or 0.
    parents: DevicePtr,
    /// `[num_seqs, log_tokens]`, or 0.
    path: DevicePtr,
}

impl Shared {
    fn new(memory: &mut Memory<'_>, work: Work, batch: usize) -> Result<Self> {
        let window = work.window();
        let is_tree = work == Work::Tree;
        let parents: Vec<i32> = if is_tree { TREE.repeat(batch) } else { Vec::new() };
        let mut path = TREE_PATH.to_vec();
        path.resize(work.log_tokens().max(TREE_PATH.len()), 0);
        let path = if is_tree { path.repeat(batch) } else { Vec::new() };
        Ok(Self {
            cu_seqlens: memory.integers(&(0..=batch).map(|s| (s * window) as i32).collect::<Vec<_>>())?,
            slots: memory.integers(&(0..batch as i32).rev().collect::<Vec<_>>())?,
            parents: memory.integers(&parents)?,
            path: memory.integers(&path)?,
        })
    }
}

/// Device memory of one measurement. Buffers without elements have the address 0.
struct Memory<'a> {
    stream: &'a Stream,
    rng: Rng,
    buffers: Vec<DeviceBuffer<u8>>,
    /// Random numbers by element type and scale, `BLOCK` elements each.
    blocks: Vec<(DType, f64, DeviceBuffer<u8>)>,
}

impl<'a> Memory<'a> {
    fn new(stream: &'a Stream) -> Self {
        Self { stream, rng: Rng::new(7), buffers: Vec::new(), blocks: Vec::new() }
    }
    /// `len` random numbers of mean 0 and this standard deviation.
    fn random(&mut self, dtype: DType, len: usize, scale: f64) -> Result<DevicePtr> {
        let found = self.blocks.iter().position(|&(d, s, _)| (d, s) == (dtype, scale));
        let index = match found {
            Some(index) => index,
            None => {
                let normal = |_| (self.rng.normal() * scale) as f32;
                let block: Vec<u8> = (0..BLOCK).map(normal).flat_map(|x| to_bytes(dtype, x)).collect();
                self.blocks.push((dtype, scale, DeviceBuffer::from_slice(self.stream, &block)?));
                self.blocks.len() - 1
            }
        };
        let block = &self.blocks[index].2;
        let mut buffer = DeviceBuffer::uninit(self.stream.driver(), len * dtype.size())?;
        for at in (0..buffer.len()).step_by(block.len()) {
            buffer.copy_from(self.stream, at, block, 0..block.len().min(buffer.len() - at))?;
        }
        Ok(self.keep(buffer))
    }
    /// `len` elements that are written before they are read.
    fn written(&mut self, dtype: DType, len: usize) -> Result<DevicePtr> {
        self.bytes(len * dtype.size())
    }
    fn bytes(&mut self, len: usize) -> Result<DevicePtr> {
        let buffer = DeviceBuffer::uninit(self.stream.driver(), len)?;
        Ok(self.keep(buffer))
    }
    fn integers(&mut self, values: &[i32]) -> Result<DevicePtr> {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let buffer = DeviceBuffer::from_slice(self.stream, &bytes)?;
        Ok(self.keep(buffer))
    }
    fn keep(&mut self, buffer: DeviceBuffer<u8>) -> DevicePtr {
        let address = buffer.address();
        self.buffers.push(buffer);
        address
    }
}

fn to_bytes(dtype: DType, x: f32) -> Vec<u8> {
    match dtype {
        DType::F32 => x.to_ne_bytes().to_vec(),
        DType::Bf16 => bf16::from_f32(x).to_ne_bytes().to_vec(),
        DType::F16 => f16::from_f32(x).to_ne_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_has_parents_before_children_and_the_path_goes_through_all_levels() {
        let mut levels = [0; TREE.len()];
        for (node, &parent) in TREE.iter().enumerate() {
            assert!((-1..node as i32).contains(&parent));
            levels[node] = if parent < 0 { 1 } else { levels[parent as usize] + 1 };
        }
        assert_eq!(levels.iter().max(), Some(&TREE_PATH.len()));
        let mut parent = -1;
        for node in TREE_PATH {
            assert_eq!(TREE[node as usize], parent);
            parent = node;
        }
    }

    #[test]
    fn a_log_holds_what_is_kept() {
        let works = [1, 4, 8, 64].map(|tokens| {
            [
                Work::Final { tokens },
                Work::Verify { tokens },
                Work::PerToken { tokens },
                Work::Commit { tokens },
                Work::Tree,
                Work::Copy,
            ]
        });
        for work in works.into_iter().flatten() {
            assert!(work.max_kept() <= work.log_tokens(), "{work:?}");
            assert!(work.max_kept() == 0 || work.window() <= work.log_tokens(), "{work:?}");
        }
    }
}
