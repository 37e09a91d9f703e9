//! `fused_recurrent_gated_delta_rule`: prepare the tokens, then every head's rows on their own.

use undraft_core::ops::{DeltaRuleInputs, FusedRecurrentArgs};
use undraft_core::{CaptureMut, Checked, DataMut, DecayShape, DeltaLogMut, GdnDims, HeadMap, RowsMut};

use super::factor::{DecayKind, PerChannel, PerHead};
use super::prepare::{Pending, Window, Workspace, decay_stride, num_chunks, padded_k};
use super::rows::SharedRows;
use super::scalar_rows::Loops;
use super::state_rows::{BLOCK, Head, RowKernel, Tree, WriteBack, run_rows};
use super::states::SharedStates;
use super::tree::TreePlan;
use super::vector_rows::Vectors;
use crate::aligned::AlignedBuffer;
use crate::executor::Executor;
use crate::shared::SharedMut;
use crate::simd::{LANES, Token};
use crate::with_vectors;

/// A task should hold at least this many state elements, so that handing it out costs little beside it.
const MIN_TASK: usize = 16 * 1024;

pub(crate) fn fused_recurrent_gated_delta_rule(
    token: Token,
    executor: &dyn Executor,
    workspace: &mut Workspace,
    args: Checked<FusedRecurrentArgs<'_>>,
) {
    let FusedRecurrentArgs { inputs, num_slots: _, state, mut log, num_pending, pending_path, capture, out } =
        args.into_inner();
    let num_tokens = inputs.cu_seqlens[inputs.cu_seqlens.len() - 1] as usize;
    let Workspace { window, pending, out: f32_scratch, tree, tree_states, .. } = workspace;
    tree.prepare(inputs.cu_seqlens, inputs.parents);
    window.prepare(token, executor, &inputs, num_tokens);
    pending.prepare(&inputs.dims, inputs.state_indices, num_pending, pending_path, log.as_ref());
    if let (CaptureMut::DeltaLog, Some(log)) = (&capture, &mut log) {
        write_log(&inputs, window, log);
    }
    // The rows write f32; other dtypes are rounded from a buffer at the end.
    let width = inputs.dims.value_dim();
    let mut buffered = None;
    let (f32_out, out_stride) = match out.data {
        DataMut::F32(d) => (d, out.row_stride),
        data => {
            buffered = Some(RowsMut { data, row_stride: out.row_stride });
            (f32_scratch.resized(num_tokens * width), width)
        }
    };
    let call = Call {
        token,
        dims: inputs.dims,
        head_map: inputs.head_map,
        scale: inputs.scale,
        cu_seqlens: inputs.cu_seqlens,
        state_indices: inputs.state_indices,
        window,
        pending,
        tree,
        state: SharedStates::new(state),
        log_delta: log.map(|log| (SharedMut::new(log.delta), log.max_tokens)),
        capture: match capture {
            CaptureMut::Final => SharedCapture::Final,
            CaptureMut::DeltaLog => SharedCapture::DeltaLog,
            CaptureMut::PerToken { states, max_tokens } => {
                SharedCapture::PerToken { states: SharedStates::new(states), max_tokens }
            }
        },
        out: SharedMut::new(f32_out),
        out_stride,
    };
    call.run(executor, tree_states);
    if let Some(rows) = buffered {
        let (rows, f32_scratch) = (SharedRows::new(rows), &*f32_scratch);
        executor.run(num_tokens, &|t| {
            // SAFETY: token t's row belongs to task t.
            unsafe { rows.write(t, 0, &f32_scratch[t * width..(t + 1) * width]) };
        });
    }
}

/// k and decay of the window into the log; the deltas follow from the rows.
fn write_log(inputs: &DeltaRuleInputs<'_>, window: &Window, log: &mut DeltaLogMut<'_>) {
    let (h, hv, k_dim) = (inputs.dims.num_k_heads(), inputs.dims.num_v_heads(), inputs.dims.head_k_dim());
    let kp = padded_k(k_dim);
    let (d_dim, ds) = (inputs.dims.decay_dim(), decay_stride(&inputs.dims));
    for (seq, &slot) in inputs.state_indices.iter().enumerate() {
        let Ok(slot) = usize::try_from(slot) else { continue };
        let tokens = inputs.cu_seqlens[seq] as usize..inputs.cu_seqlens[seq + 1] as usize;
        for (entry, t) in (slot * log.max_tokens..).zip(tokens) {
            let to = log.k[entry * h * k_dim..(entry + 1) * h * k_dim].chunks_exact_mut(k_dim);
            for (to, from) in to.zip(window.k[t * h * kp..].chunks_exact(kp)) {
                to.copy_from_slice(&from[..k_dim]);
            }
            let to = log.decay[entry * hv * d_dim..(entry + 1) * hv * d_dim].chunks_exact_mut(d_dim);
            for (to, from) in to.zip(window.decay[t * hv * ds..].chunks_exact(ds)) {
                to.copy_from_slice(&from[..d_dim]);
            }
        }
    }
}

/// Everything a task needs to find its head.
pub(super) struct Call<'a> {
    pub(super) token: Token,
    pub(super) dims: GdnDims,
    pub(super) head_map: HeadMap,
    pub(super) scale: f32,
    pub(super) cu_seqlens: &'a [i32],
    pub(super) state_indices: &'a [i32],
    pub(super) window: &'a Window,
    pub(super) pending: &'a Pending,
    pub(super) tree: &'a TreePlan,
    pub(super) state: SharedStates<'a>,
    /// The log's deltas and its tokens a slot.
    pub(super) log_delta: Option<(SharedMut<'a, f32>, usize)>,
    pub(super) capture: SharedCapture<'a>,
    pub(super) out: SharedMut<'a, f32>,
    /// Elements between two tokens of `out`.
    pub(super) out_stride: usize,
}

pub(super) enum SharedCapture<'a> {
    Final,
    DeltaLog,
    PerToken { states: SharedStates<'a>, max_tokens: usize },
}

impl Call<'_> {
    /// One task a (sequence, value head, block of rows). `tree_states` is scratch.
    pub(super) fn run(&self, executor: &dyn Executor, tree_states: &mut AlignedBuffer) {
        let (hv, v_dim) = (self.dims.num_v_heads(), self.dims.head_v_dim());
        let num_heads = self.state_indices.len() * hv;
        let threads = executor.num_threads();
        // Few heads are cut into blocks of rows for the threads to share; many heads are handed out several at a time.
        let blocks = match threads {
            1 => 1,
            n => (4 * n).div_ceil(num_heads.max(1)).clamp(1, (self.dims.state_len() / hv).div_ceil(MIN_TASK)),
        };
        let rows_per_block = v_dim.div_ceil(blocks).next_multiple_of(4);
        let blocks = v_dim.div_ceil(rows_per_block);
        let per_task = if threads == 1 { num_heads * blocks } else { (num_heads * blocks).div_ceil(16 * threads) };
        let units = num_heads * blocks;
        let num_tasks = units.div_ceil(per_task.max(1));
        let buffers = self.tree.num_buffers * BLOCK * num_chunks(self.dims.head_k_dim()) * LANES;
        let tree_states = SharedMut::new(tree_states.resized(num_tasks * buffers));
        executor.run(num_tasks, &|task| {
            for unit in task * per_task..units.min((task + 1) * per_task) {
                let (head, block) = (unit / blocks, unit % blocks);
                let rows = block * rows_per_block..v_dim.min((block + 1) * rows_per_block);
                self.run_block(head / hv, head % hv, rows, (tree_states, task * buffers));
            }
        });
    }

    /// Rows of a head; the task's buffers for a tree start at the given place.
    fn run_block(
        &self,
        seq: usize,
        v_head: usize,
        rows: std::ops::Range<usize>,
        tree_states: (SharedMut<'_, f32>, usize),
    ) {
        let dims = &self.dims;
        let (h, hv, k_dim, v_dim) = (dims.num_k_heads(), dims.num_v_heads(), dims.head_k_dim(), dims.head_v_dim());
        let kp = padded_k(k_dim);
        let tokens = self.cu_seqlens[seq] as usize..self.cu_seqlens[seq + 1] as usize;
        let Ok(slot) = usize::try_from(self.state_indices[seq]) else {
            for t in tokens {
                let at = t * self.out_stride + v_head * v_dim;
                // SAFETY: outputs of these rows of this head and sequence belong to this task alone.
                unsafe { self.out.part(at + rows.start..at + rows.end) }.fill(0.0);
            }
            return;
        };
        let k_head = self.head_map.k_head(dims, v_head);
        let pending = self.pending.offsets[seq]..self.pending.offsets[seq + 1];
        let ds = decay_stride(dims);
        let from = |x: &'_ [f32], token: usize, stride: usize, offset: usize, used: bool| -> usize {
            if used { (token * stride + offset).min(x.len()) } else { x.len() }
        };
        let (w, p) = (self.window, self.pending);
        let (has_tokens, has_pending) = (!tokens.is_empty(), !pending.is_empty());
        let head = Head {
            k_dim,
            v_dim,
            k_stride: h * kp,
            pending_k: &p.k[from(&p.k, pending.start, h * kp, k_head * kp, has_pending)..],
            pending_decay: &p.decay[from(&p.decay, pending.start, hv * ds, v_head * ds, has_pending)..],
            pending_entries: &p.entries[pending.start.min(p.entries.len())..pending.end.min(p.entries.len())],
            q: &w.q[from(&w.q, tokens.start, h * kp, k_head * kp, has_tokens)..],
            k: &w.k[from(&w.k, tokens.start, h * kp, k_head * kp, has_tokens)..],
            v: &w.v[from(&w.v, tokens.start, hv * v_dim, v_head * v_dim, has_tokens)..],
            decay: &w.decay[from(&w.decay, tokens.start, hv * ds, v_head * ds, has_tokens)..],
            beta: &w.beta[from(&w.beta, tokens.start, hv, v_head, has_tokens)..],
            num_tokens: tokens.len(),
            scale: self.scale,
            num_v_heads: hv,
            decay_stride: hv * ds,
            tree: (!self.tree.steps.is_empty()).then(|| Tree {
                steps: &self.tree.steps[tokens.clone()],
                states: tree_states.0,
                start: tree_states.1,
            }),
            state: self.state,
            state_start: (slot * hv + v_head) * v_dim * k_dim,
            log_delta: self.log_delta.map(|(log, max)| (log, (slot * max * hv + v_head) * v_dim)),
            write: match self.capture {
                SharedCapture::Final => WriteBack::Final,
                SharedCapture::DeltaLog => WriteBack::DeltaLog,
                SharedCapture::PerToken { states, max_tokens } => WriteBack::PerToken {
                    states,
                    start: (seq * max_tokens * hv + v_head) * v_dim * k_dim,
                    stride: dims.state_len(),
                },
            },
            out: self.out,
            out_start: tokens.start * self.out_stride + v_head * v_dim,
            out_stride: self.out_stride,
        };
        macro_rules! run {
            ($decay:ty, $($ch:literal)*) => {
                match num_chunks(k_dim) {
                    $($ch => with_vectors!(
                        self.token,
                        scalar => own_rows::<_, $decay, $ch>(Loops, &head, rows),
                        s => own_rows::<_, $decay, $ch>(Vectors(s), &head, rows)
                    ),)*
                    n => unreachable!("no kernel for {n} vectors"),
                }
            };
        }
        match dims.decay_shape() {
            DecayShape::PerHead => run!(PerHead, 1 2 4 6 8 12 16),
            DecayShape::PerChannel => run!(PerChannel, 1 2 4 6 8 12 16),
        }
    }
}

/// The rows of a task.
#[inline(always)]
fn own_rows<K: RowKernel, D: DecayKind, const CH: usize>(kernel: K, head: &Head<'_>, rows: std::ops::Range<usize>) {
    // SAFETY: slots stand once in a call (checked), and each (sequence, head, block of rows) belongs to one task, so that
    // nobody else touches these rows; a task has tree buffers of its own.
    unsafe { run_rows::<K, D, CH>(kernel, head, rows) };
}
