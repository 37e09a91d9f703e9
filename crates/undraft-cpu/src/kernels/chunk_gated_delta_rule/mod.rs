//! `chunk_gated_delta_rule`: the recurrence of 64 tokens at a time as matrix products and a triangular solve.
//!
//! With `D(t, s)` the product of the decay factors of the tokens after s up to t, and `D(t)` that of all up to t, the
//! deltas of a chunk that starts from state S0 satisfy
//!
//! ```text
//! delta_t = beta_t * (v_t - D(t) S0 k_t - sum_{s < t} D(t, s) (k_t . k_s) delta_s)
//! o_t     = scale * (D(t) S0 q_t + sum_{s <= t} D(t, s) (q_t . k_s) delta_s)
//! S1      = D(C) S0 + sum_s D(C, s) delta_s k_s^T
//! ```
//!
//! (the WY form of Yang et al., Gated Delta Networks, 2024). `D(t, s)` is built by products of factors `<= 1`, so that
//! nothing overflows, whatever the decay, and a factor of 0 is right as well.
//!
//! Sums run over s <= t alone, each in one chain of FMAs: the output of a token is a function of the tokens up to it and of
//! where its chunk began, bit for bit.

mod ahead;
mod keys;
mod panel;
mod part;
mod per_channel;
mod per_head;
mod scratch;

use std::sync::atomic::{AtomicUsize, Ordering};

use undraft_core::Checked;
use undraft_core::RowsMut;
use undraft_core::ops::ChunkGatedDeltaRuleArgs;

use self::panel::PANEL;
use self::part::{Call, Sequence};
use self::scratch::{Scratch, Sizes, panels_per_head};
use super::prepare::Workspace;
use super::rows::SharedRows;
use crate::executor::Executor;
use crate::shared::SharedMut;
use crate::simd::{LANES, Token};

/// Tokens of a chunk, a multiple of 16.
const CHUNK: usize = 64;
/// Rows that a block of a chunk's buffers takes: blocks 4 KB apart would fall on the same cache sets.
const PITCH: usize = CHUNK + 1;

/// State elements that a thread carries along at once: they should stay in the second-level cache.
const MAX_PART: usize = 128 * 1024;

pub(crate) fn chunk_gated_delta_rule(
    token: Token,
    executor: &dyn Executor,
    workspace: &mut Workspace,
    args: Checked<ChunkGatedDeltaRuleArgs<'_>>,
) {
    let ChunkGatedDeltaRuleArgs { inputs, num_slots: _, state, checkpoints, out } = args.into_inner();
    let dims = inputs.dims;
    let every = checkpoints.as_ref().map_or(usize::MAX, |checkpoints| checkpoints.every);
    let mut sequences = Vec::with_capacity(inputs.state_indices.len());
    let mut first_checkpoint = 0;
    for (cu, &slot) in inputs.cu_seqlens.windows(2).zip(inputs.state_indices) {
        let tokens = cu[0] as usize..cu[1] as usize;
        let num_checkpoints = tokens.len() / every;
        sequences.push(Sequence { tokens, slot: usize::try_from(slot).ok(), first_checkpoint });
        first_checkpoint += num_checkpoints;
    }
    // Long ones first, so that no thread is left with one at the end.
    sequences.sort_by_key(|sequence| std::cmp::Reverse(sequence.tokens.len()));

    // Panels of columns, key head by key head; a part is some of them, for all chunks of a sequence. A part goes through
    // several key heads, as many as the cache holds states, while the rows of a chunk's tokens are at hand.
    let num_threads = executor.num_threads();
    let num_panels = dims.num_v_heads() * panels_per_head(&dims);
    let per_key_head = num_panels / dims.num_k_heads();
    let for_threads = match num_threads {
        1 => num_panels,
        n => num_panels * sequences.len() / (4 * n),
    };
    let panels_per_part = for_threads.min(MAX_PART / (PANEL * LANES * dims.head_k_dim())).clamp(1, num_panels);
    // Value heads share the products of their queries and keys.
    let panels_per_part = match panels_per_part / per_key_head {
        0 => panels_per_part,
        key_heads => key_heads * per_key_head,
    };
    let parts = num_panels.div_ceil(panels_per_part);

    let sizes = Sizes::new(&dims, panels_per_part);
    let k_dim = dims.head_k_dim();
    let call = Call {
        token,
        sizes,
        inputs: &inputs,
        state: SharedRows::new(RowsMut { data: state, row_stride: k_dim }),
        checkpoints: checkpoints.map(|c| SharedRows::new(RowsMut { data: c.states, row_stride: k_dim })),
        every,
        out: SharedRows::new(out),
    };
    let num_parts = sequences.len() * parts;
    let (num_tasks, len) = (num_parts.min(num_threads), sizes.scratch_len());
    let scratch = SharedMut::new(workspace.chunk.resized(num_tasks * len));
    let next = AtomicUsize::new(0);
    executor.run(num_tasks, &|task| {
        // SAFETY: each task has a part of the scratch of its own.
        let mut scratch = Scratch::new(&sizes, unsafe { scratch.part(task * len..(task + 1) * len) });
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= num_parts {
                return;
            }
            let (sequence, part) = (&sequences[index / parts], index % parts);
            let panels = part * panels_per_part..num_panels.min((part + 1) * panels_per_part);
            // SAFETY: each index comes up once, and slots stand once in a call (checked): the states, checkpoints and
            // outputs of these columns belong to this task alone.
            unsafe { call.run(sequence, panels, &mut scratch) };
        }
    });
}
