//! The recurrence through wgpu, next to a copy of the same states.
//!
//! One command buffer has a dispatch for each of so many layers that their states exceed the cache, over and over; a figure is
//! the median over submissions of encoded commands, each waited for, divided by the dispatches. What is measured is otherwise as in `cuda.rs`.

use std::time::{Duration, Instant};

use anyhow::Result;
use undraft::wgpu::raw::{
    Captured, CommitBuffers, CommitParams, DecayForm, Elements, RecurrentBuffers, RecurrentParams,
};
use undraft::wgpu::wgpu::{Buffer, CommandBuffer, CommandEncoderDescriptor, ComputePassDescriptor};
use undraft::wgpu::{Access, Batch, Binding, Device, KernelSource, Params, Recorded, WgpuError};
use undraft::{DType, GdnDims, bf16, f16};
use undraft_testing::Rng;

use super::cuda::{TREE, TREE_PATH, Work};
use super::measure::Row;

/// Submissions that a median is taken over.
const SUBMISSIONS: usize = 15;
/// Microseconds that a submission takes, at least, so that its own cost does not count; but for a few dispatches that take longer.
const SUBMISSION_US: f64 = 10_000.0;
const MAX_DISPATCHES: usize = 1 << 14;
/// How long all is run before it is timed.
const WARM_UP: Duration = Duration::from_millis(500);
/// Layers with their own states.
const NUM_LAYERS: std::ops::RangeInclusive<usize> = 3..=256;
/// Elements of the random numbers that fill a buffer over and over.
const BLOCK: usize = 1 << 16;
/// Element type of all that is neither state nor log.
const IO: DType = DType::Bf16;

/// Invocations of a workgroup that copies.
const COPY_THREADS: u32 = 256;

undraft::wgpu::params! {
    struct CopyParams { fours: u32, }
}

/// Copies a buffer by a kernel: the copies of a command buffer run elsewhere on some devices, and slower.
const COPY: KernelSource<'_> = KernelSource {
    name: "copy",
    files: &["
        @group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
        @group(0) @binding(1) var<storage, read_write> y: array<vec4<u32>>;
        @compute @workgroup_size(THREADS)
        fn main(
            @builtin(workgroup_id) workgroup: vec3<u32>,
            @builtin(num_workgroups) num_workgroups: vec3<u32>,
            @builtin(local_invocation_index) index: u32,
        ) {
            let i = (workgroup.x + workgroup.y * num_workgroups.x) * THREADS + index;
            if i < p.fours { y[i] = x[i]; }
        }
    "],
    params: CopyParams::WGSL,
    buffers: &[Access::Read, Access::ReadWrite],
    exchanges: false,
    is_large: false,
};

/// An adapter and what is measured on it.
pub struct Adapter<'a> {
    device: &'a Device,
    dims: GdnDims,
    state: DType,
    state_bytes: usize,
}

/// What a layer's dispatch works on.
struct Layer {
    state: Buffer,
    captured: Option<Buffer>,
    out: Buffer,
    log: Option<Buffer>,
    tokens: Buffer,
    gates: Buffer,
    weights: Buffer,
    params: RecurrentParams,
}

impl<'a> Adapter<'a> {
    /// States of `state`, those of all layers together `state_bytes` or somewhat more.
    pub fn new(device: &'a Device, dims: GdnDims, state: DType, state_bytes: usize) -> Self {
        Self { device, dims, state, state_bytes }
    }

    /// Copy and decode, verification of each window and of a tree; of the first window also a state per token, and the
    /// commit alone. What the adapter's limits forbid is left out, and said so.
    pub fn recurrent(&self, batch: usize, tokens: &[usize]) -> Result<Vec<Row>> {
        let mut works = vec![Work::Copy, Work::Final { tokens: 1 }];
        works.extend(tokens.iter().map(|&tokens| Work::Verify { tokens }));
        works.push(Work::Tree);
        if let Some(&tokens) = tokens.first() {
            works.extend([Work::PerToken { tokens }, Work::Commit { tokens }]);
        }
        let mut times = Vec::new();
        for work in works {
            match self.time(work, batch) {
                Ok(us) => times.push((work, us)),
                Err(e) if times.len() >= 2 && matches!(e.downcast_ref(), Some(WgpuError::Limit { .. })) => {
                    eprintln!("{}, {batch} sequences: left out, {e}", work.what());
                }
                Err(e) => return Err(e),
            }
        }
        let (copy, decode) = (times[0].1, times[1].1);
        let row = |(work, us): (Work, f64)| Row {
            batch,
            what: work.what(),
            median_us: us,
            to_copy: Some(us / copy),
            to_decode: Some(us / decode),
        };
        Ok(times.into_iter().map(row).collect())
    }

    /// Microseconds a layer, the mean over the rounds of the cycle.
    fn time(&self, work: Work, batch: usize) -> Result<f64> {
        let layer_bytes = batch * self.dims.state_len() * self.state.size();
        let num_layers = self.state_bytes.div_ceil(layer_bytes).clamp(*NUM_LAYERS.start(), *NUM_LAYERS.end());
        let mut rng = Rng::new(7);
        let lists = self.lists(work, batch)?;
        let layers = (0..num_layers).map(|_| self.layer(&mut rng, work, batch)).collect::<Result<Vec<_>>>()?;
        let mut rounds = Vec::new();
        for (round, ints) in lists.iter().enumerate() {
            let mut dispatches = Batch::new(self.device);
            for layer in &layers {
                self.dispatch(&mut dispatches, work, layer, ints, round)?;
            }
            rounds.push(dispatches.finish()?);
        }
        // Whole cycles of rounds.
        let cycle = num_layers * rounds.len();
        let mut cycles = 1;
        let time = |cycles: usize| -> Result<f64> {
            let commands = self.encoded(&rounds, cycles);
            let start = Instant::now();
            self.device.queue().submit([commands]);
            self.device.wait()?;
            Ok(start.elapsed().as_secs_f64() * 1e6)
        };
        // The first submission compiles and touches memory, and drivers make a kernel faster a while after it first ran.
        let start = Instant::now();
        while start.elapsed() < WARM_UP {
            time(1)?;
        }
        while 2 * cycles * cycle <= MAX_DISPATCHES && time(cycles)? < SUBMISSION_US {
            cycles *= 2;
        }
        let mut times = (0..SUBMISSIONS).map(|_| time(cycles)).collect::<Result<Vec<f64>>>()?;
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2] / (cycles * cycle) as f64)
    }

    /// All rounds, so many times.
    fn encoded(&self, rounds: &[Recorded], cycles: usize) -> CommandBuffer {
        let mut encoder = self.device.wgpu().create_command_encoder(&CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
        for round in (0..cycles).flat_map(|_| rounds) {
            round.encode(&mut pass);
        }
        drop(pass);
        encoder.finish()
    }

    /// One layer's buffers, for `batch` sequences with windows of `work.window()` tokens, and a slot for each.
    fn layer(&self, rng: &mut Rng, work: Work, batch: usize) -> Result<Layer> {
        let d = &self.dims;
        let num_tokens = batch * work.window();
        let mut p = RecurrentParams::new(d, batch)?;
        // One row of q, k and v a token, as a convolution leaves them.
        let width = 2 * d.key_dim() + d.value_dim();
        let io = Elements::from(IO).word();
        (p.k_first, p.v_first) = (d.key_dim() as u32, 2 * d.key_dim() as u32);
        (p.q_stride, p.k_stride, p.v_stride) = (width as u32, width as u32, width as u32);
        (p.q_dtype, p.k_dtype, p.v_dtype) = (io, io, io);
        (p.decay_dtype, p.beta_dtype, p.out_dtype) = (io, io, io);
        p.beta_first = (num_tokens * d.decay_len()) as u32;
        p.dt_bias_first = d.num_v_heads() as u32;
        (p.max_window, p.max_pending) = (work.window() as u32, work.max_kept().max(1) as u32);
        (p.decay_form, p.beta_is_logit, p.l2_norm, p.eps) = (DecayForm::Gate.word(), 1, 1, 1e-6);
        let states = batch * d.state_len();
        let captured = match work {
            Work::Copy => Some(self.zeros(self.state, states)?),
            Work::PerToken { tokens } => {
                (p.capture, p.capture_max) = (Captured::PerToken.word(), tokens as u32);
                Some(self.zeros(self.state, num_tokens * d.state_len())?)
            }
            _ => None,
        };
        let mut log = None;
        if work.max_kept() > 0 {
            p.capture = Captured::DeltaLog.word();
            (p.log_max, p.pending_max) = (work.log_tokens() as u32, work.log_tokens() as u32);
            // Two logs, one behind the other, which change places from round to round.
            log = Some(self.random(rng, DType::F32, 2 * batch * work.log_tokens() * d.log_len(), 0.09)?);
        }
        Ok(Layer {
            state: self.random(rng, self.state, states, 0.2)?,
            captured,
            out: self.zeros(IO, num_tokens * d.value_dim())?,
            log,
            tokens: self.random(rng, IO, num_tokens * width, 1.0)?,
            gates: self.random(rng, IO, num_tokens * (d.decay_len() + d.num_v_heads()), 1.0)?,
            weights: self.random(rng, DType::F32, d.num_v_heads() + d.decay_len(), 0.5)?,
            params: p,
        })
    }

    fn dispatch(&self, batch: &mut Batch<'_>, work: Work, layer: &Layer, ints: &Lists, round: usize) -> Result<()> {
        let mut p = layer.params.clone();
        let d = &self.dims;
        let entries = p.num_seqs as usize * work.log_tokens();
        let place = |log: usize| {
            let first = log * entries * d.log_len();
            let decay = first + entries * d.key_dim();
            [first, decay, decay + entries * d.decay_len()].map(|first| first as u32)
        };
        [p.pending_k_first, p.pending_decay_first, p.pending_delta_first] = place(round % 2);
        [p.log_k_first, p.log_decay_first, p.log_delta_first] = place(1 - round % 2);
        (p.cu_seqlens, p.state_indices) = (0, ints.state_indices);
        (p.num_pending, p.pending_path, p.parents) = (ints.num_pending, ints.path, ints.parents);
        match (work, &layer.log) {
            (Work::Copy, _) => {
                let fours = (p.num_seqs as usize * d.state_len() * self.state.size() / 16) as u32;
                let copy = self.device.pipeline(&COPY, &[("THREADS", COPY_THREADS)])?;
                let buffers: Vec<Binding<'_>> =
                    [Some(&layer.state), layer.captured.as_ref()].into_iter().flatten().map(Binding::from).collect();
                let workgroups = u64::from(fours).div_ceil(u64::from(COPY_THREADS));
                Ok(batch.dispatch(&copy, &buffers, &CopyParams { fours }, workgroups)?)
            }
            (Work::Commit { .. }, Some(log)) => {
                let commit = CommitParams {
                    k_first: p.pending_k_first,
                    decay_first: p.pending_decay_first,
                    delta_first: p.pending_delta_first,
                    log_max: p.pending_max,
                    state_indices: p.state_indices,
                    num_kept: p.num_pending,
                    ..CommitParams::new(d, p.num_seqs as usize)?
                };
                let buffers =
                    CommitBuffers { state: (&layer.state).into(), log: log.into(), ints: (&ints.buffer).into() };
                Ok(batch.commit_states(&buffers, &commit, self.state)?)
            }
            _ => {
                let buffers = RecurrentBuffers {
                    state: (&layer.state).into(),
                    captured: layer.captured.as_ref().map(Binding::from),
                    out: (&layer.out).into(),
                    log: layer.log.as_ref().map(Binding::from),
                    tokens: (&layer.tokens).into(),
                    gates: (&layer.gates).into(),
                    weights: Some((&layer.weights).into()),
                    ints: (&ints.buffer).into(),
                };
                Ok(batch.fused_recurrent_gated_delta_rule(&buffers, &p, self.state, d.decay_shape())?)
            }
        }
    }

    /// What the dispatches of all layers read, for each round of the cycle.
    fn lists(&self, work: Work, batch: usize) -> Result<Vec<Lists>> {
        let window = work.window();
        let mut path = TREE_PATH.to_vec();
        path.resize(work.log_tokens().max(TREE_PATH.len()), 0);
        let lists = |round: usize| -> Result<Lists> {
            let mut ints: Vec<i32> = (0..=batch).map(|s| (s * window) as i32).collect();
            let mut push = |list: Vec<i32>| {
                let first = if list.is_empty() { undraft::wgpu::raw::NONE } else { ints.len() as u32 };
                ints.extend(list);
                first
            };
            let state_indices = push((0..batch as i32).rev().collect());
            let kept = |s: usize| (1 + (s + round) % work.max_kept().max(1)) as i32;
            let num_pending = push(if work.max_kept() > 0 { (0..batch).map(kept).collect() } else { Vec::new() });
            let is_tree = work == Work::Tree;
            let parents = push(if is_tree { TREE.repeat(batch) } else { Vec::new() });
            let path = push(if is_tree { path.repeat(batch) } else { Vec::new() });
            Ok(Lists { buffer: self.device.buffer_from("ints", &ints)?, state_indices, num_pending, parents, path })
        };
        (0..work.max_kept().max(1).next_multiple_of(if work.max_kept() > 0 { 2 } else { 1 })).map(lists).collect()
    }

    /// `len` random numbers of mean 0 and this standard deviation.
    fn random(&self, rng: &mut Rng, dtype: DType, len: usize, scale: f64) -> Result<Buffer> {
        let block: Vec<u8> =
            (0..BLOCK).map(|_| (rng.normal() * scale) as f32).flat_map(|x| to_bytes(dtype, x)).collect();
        let buffer = self.zeros(dtype, len)?;
        let source = self.device.buffer_from("block", &block)?;
        let bytes = len * dtype.size();
        let mut encoder = self.device.wgpu().create_command_encoder(&CommandEncoderDescriptor::default());
        for at in (0..bytes).step_by(block.len()) {
            // Whole words.
            let size = block.len().min(bytes - at).next_multiple_of(4);
            encoder.copy_buffer_to_buffer(&source, 0, &buffer, at as u64, size as u64);
        }
        self.device.queue().submit([encoder.finish()]);
        Ok(buffer)
    }
    fn zeros(&self, dtype: DType, len: usize) -> Result<Buffer> {
        Ok(self.device.buffer("bench", (len * dtype.size()) as u64)?)
    }
}

/// Lists in one buffer; `cu_seqlens` is the first.
struct Lists {
    buffer: Buffer,
    state_indices: u32,
    num_pending: u32,
    parents: u32,
    path: u32,
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
    use undraft::wgpu::{DeviceOptions, wgpu};
    use undraft_testing::skip_absent;

    use super::*;

    #[test]
    fn what_an_adapter_cannot_bind_is_left_out() {
        // Four states of 4 KiB are too much, all else is less.
        let limits = wgpu::Limits { max_storage_buffer_binding_size: 12 << 10, ..wgpu::Limits::default() };
        let options = DeviceOptions { limits: Some(limits), ..DeviceOptions::default() };
        let device = match Device::open_with(0, &options) {
            Ok(device) => device,
            Err(WgpuError::NoAdapter) => return skip_absent("wgpu"),
            Err(e) => panic!("{e}"),
        };
        let adapter = Adapter::new(&device, GdnDims::new(1, 1, 32, 32).unwrap(), DType::F32, 1);
        let rows = adapter.recurrent(1, &[4]).unwrap();
        let left_out = Work::PerToken { tokens: 4 }.what();
        assert!(rows.iter().all(|row| row.what != left_out));
        let expected =
            [Work::Copy, Work::Final { tokens: 1 }, Work::Verify { tokens: 4 }, Work::Tree, Work::Commit { tokens: 4 }];
        assert_eq!(rows.len(), expected.len());
        for (row, work) in rows.iter().zip(expected) {
            assert_eq!(row.what, work.what());
            assert!(row.median_us > 0.0);
        }
    }
}
