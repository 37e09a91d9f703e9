//! The recurrence over a few rows of one head's state, held in registers from the first replayed token to the last new
//! one.

use fearless_simd::{Simd, f32x16};

use super::rows::SharedRows;
use crate::shared::SharedMut;
use crate::simd::{self, LANES};

/// One value head of one sequence.
pub(super) struct Head<'a> {
    pub(super) k_dim: usize,
    pub(super) v_dim: usize,
    /// Elements between two tokens of the padded q and k, `H * KP`.
    pub(super) k_stride: usize,
    /// First entry to replay, and how many: `[num, H, KP]` keys of the head's key head, `[num, HV]` decay.
    pub(super) pending_k: &'a [f32],
    pub(super) pending_decay: &'a [f32],
    pub(super) num_pending: usize,
    /// The window: `[T, H, KP]` from the head's key head on, `[T, HV]` and `[T, HV, V]` from the value head on.
    pub(super) q: &'a [f32],
    pub(super) k: &'a [f32],
    pub(super) v: &'a [f32],
    pub(super) decay: &'a [f32],
    pub(super) beta: &'a [f32],
    pub(super) num_tokens: usize,
    pub(super) scale: f32,
    /// Elements between two tokens of decay and beta, `HV`.
    pub(super) num_v_heads: usize,
    /// The head's state `[V, K]` starts here.
    pub(super) state: SharedMut<'a, f32>,
    pub(super) state_start: usize,
    /// `[max_tokens, HV, V]` of the slot, from the value head on: read for the replay, then written by the window.
    pub(super) log_delta: Option<(SharedMut<'a, f32>, usize)>,
    pub(super) write: WriteBack<'a>,
    /// Outputs: first token's row and the head's first column.
    pub(super) out: &'a SharedRows<'a>,
    pub(super) out_row: usize,
    pub(super) out_column: usize,
}

/// What becomes of the state after each token.
#[derive(Clone, Copy)]
pub(super) enum WriteBack<'a> {
    /// Stored after the last token.
    Final,
    /// The deltas go into the log.
    DeltaLog,
    /// Stored after each token: state of token t at `start + t * stride`, stride `HV * V * K`.
    PerToken { states: SharedMut<'a, f32>, start: usize, stride: usize },
}

/// Rows `rows` of a head, `CH` vectors a row.
///
/// # Safety
/// No other thread touches these rows of the head's state, log, captured states and outputs.
#[inline(always)]
pub(super) unsafe fn run_rows<S: Simd, const CH: usize>(s: S, head: &Head<'_>, rows: std::ops::Range<usize>) {
    let mut row = rows.start;
    while row + 2 <= rows.end {
        // SAFETY: the rows lie in the caller's range.
        unsafe { step::<S, CH, 2>(s, head, row) };
        row += 2;
    }
    if row < rows.end {
        // SAFETY: as above.
        unsafe { step::<S, CH, 1>(s, head, row) };
    }
}

/// Rows `row .. row + R`. The order of operations of a row depends on `CH` alone.
///
/// # Safety
/// As [`run_rows`].
#[inline(always)]
unsafe fn step<S: Simd, const CH: usize, const R: usize>(s: S, head: &Head<'_>, row: usize) {
    let k_dim = head.k_dim;
    let start = head.state_start + row * k_dim;
    // SAFETY: rows of this head's state are this thread's (the caller's promise); the part ends with this function and
    // no other part of the state is taken meanwhile.
    let memory = unsafe { head.state.part(start..start + R * k_dim) };
    let mut state = load_rows::<S, CH, R>(s, memory, k_dim);
    let delta_stride = head.num_v_heads * head.v_dim;

    if let (1.., Some((log, log_start))) = (head.num_pending, head.log_delta) {
        for p in 0..head.num_pending {
            let at = log_start + p * delta_stride + row;
            // SAFETY: the log entries of these rows are this thread's; the part ends with this iteration.
            let delta = unsafe { log.part(at..at + R) };
            let k = vectors::<CH>(&head.pending_k[p * head.k_stride..]);
            let decay = simd::splat(s, head.pending_decay[p * head.num_v_heads]);
            for r in 0..R {
                let delta = simd::splat(s, delta[r]);
                for c in 0..CH {
                    state[r][c] = simd::fma(delta, simd::load(s, &k[c]), state[r][c] * decay);
                }
            }
        }
        store_rows(&state, memory, k_dim);
    }

    for t in 0..head.num_tokens {
        let k = vectors::<CH>(&head.k[t * head.k_stride..]);
        let q = vectors::<CH>(&head.q[t * head.k_stride..]);
        let v = &head.v[t * delta_stride + row..][..R];
        let decay = simd::splat(s, head.decay[t * head.num_v_heads]);
        let beta = head.beta[t * head.num_v_heads];
        let mut delta = [0.0; R];
        let mut o = [0.0; R];
        for r in 0..R {
            let mut acc = [simd::zero(s); 2];
            for c in 0..CH {
                state[r][c] = state[r][c] * decay;
                acc[c & 1] = simd::fma(state[r][c], simd::load(s, &k[c]), acc[c & 1]);
            }
            delta[r] = (v[r] - simd::sum(acc[0] + acc[1])) * beta;
        }
        for r in 0..R {
            let splat = simd::splat(s, delta[r]);
            let mut acc = [simd::zero(s); 2];
            for c in 0..CH {
                state[r][c] = simd::fma(splat, simd::load(s, &k[c]), state[r][c]);
                acc[c & 1] = simd::fma(state[r][c], simd::load(s, &q[c]), acc[c & 1]);
            }
            o[r] = head.scale * simd::sum(acc[0] + acc[1]);
        }
        // SAFETY: outputs of this head's rows are this thread's.
        unsafe { head.out.write(head.out_row + t, head.out_column + row, &o) };
        match (head.write, head.log_delta) {
            (WriteBack::DeltaLog, Some((log, log_start))) => {
                let at = log_start + t * delta_stride + row;
                // SAFETY: the log entries of these rows are this thread's; the replay's parts have ended.
                unsafe { log.part(at..at + R) }.copy_from_slice(&delta);
            }
            (WriteBack::PerToken { states, start, stride }, _) => {
                let at = start + t * stride + row * k_dim;
                // SAFETY: captured rows of this head are this thread's.
                store_rows(&state, unsafe { states.part(at..at + R * k_dim) }, k_dim);
            }
            _ => {}
        }
    }
    if matches!(head.write, WriteBack::Final) && head.num_tokens > 0 {
        store_rows(&state, memory, k_dim);
    }
}

/// The first `CH` vectors of a padded key.
#[inline(always)]
fn vectors<const CH: usize>(x: &[f32]) -> &[[f32; LANES]; CH] {
    match x.as_chunks::<LANES>().0.first_chunk::<CH>() {
        Some(vectors) => vectors,
        None => unreachable!("keys are padded to CH vectors"),
    }
}

#[inline(always)]
fn load_rows<S: Simd, const CH: usize, const R: usize>(s: S, memory: &[f32], k_dim: usize) -> [[f32x16<S>; CH]; R] {
    let mut state = [[simd::zero(s); CH]; R];
    for (r, row) in memory.chunks_exact(k_dim).enumerate().take(R) {
        let (whole, rest) = row.as_chunks::<LANES>();
        if whole.len() == CH {
            for c in 0..CH {
                state[r][c] = simd::load(s, &whole[c]);
            }
            continue;
        }
        for (c, chunk) in whole.iter().enumerate().take(CH) {
            state[r][c] = simd::load(s, chunk);
        }
        if !rest.is_empty() {
            let mut padded = [0.0; LANES];
            padded[..rest.len()].copy_from_slice(rest);
            state[r][whole.len()] = simd::load(s, &padded);
        }
    }
    state
}

#[inline(always)]
fn store_rows<S: Simd, const CH: usize, const R: usize>(
    state: &[[f32x16<S>; CH]; R],
    memory: &mut [f32],
    k_dim: usize,
) {
    for (r, row) in memory.chunks_exact_mut(k_dim).enumerate().take(R) {
        let (whole, rest) = row.as_chunks_mut::<LANES>();
        let num_whole = whole.len();
        if num_whole == CH {
            for c in 0..CH {
                simd::store(state[r][c], &mut whole[c]);
            }
            continue;
        }
        for (c, chunk) in whole.iter_mut().enumerate().take(CH) {
            simd::store(state[r][c], chunk);
        }
        if !rest.is_empty() {
            let mut padded = [0.0; LANES];
            simd::store(state[r][num_whole], &mut padded);
            rest.copy_from_slice(&padded[..rest.len()]);
        }
    }
}
