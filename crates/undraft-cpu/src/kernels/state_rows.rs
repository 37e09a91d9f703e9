//! The recurrence over a few rows of one head's state, which stay in the first-level cache from the first replayed token
//! to the last new one.

use crate::shared::SharedMut;
use crate::simd::{Ahead, LANES};

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
    /// Outputs in f32: the head's first element of the first token, and the elements between two tokens.
    pub(super) out: SharedMut<'a, f32>,
    pub(super) out_start: usize,
    pub(super) out_stride: usize,
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

/// Rows that are taken through all tokens before the next ones: few enough to stay in the first-level cache, many enough
/// that the chain of one row's tokens hides behind the others'.
const BLOCK: usize = 16;

/// Log entries that are replayed into a row before the next row.
const ENTRIES: usize = 8;

/// A row of the state, padded with zeros to whole vectors.
pub(super) type Row<const CH: usize> = [[f32; LANES]; CH];

/// Arithmetic on rows: vectors ([`super::vector_rows`]) or plain loops ([`super::scalar_rows`]), with the same bits.
pub(super) trait RowKernel: Copy {
    /// `row = fma(delta, k, row * decay)` for one entry after the other.
    fn replay<const CH: usize>(self, row: &mut Row<CH>, entries: &[Entry<'_, CH>]);

    /// One token for all rows.
    fn token<const CH: usize>(self, token: Token<'_, CH>, rows: Rows<'_, CH>);
}

/// What a log entry does to one row.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a, const CH: usize> {
    pub(super) decay: f32,
    pub(super) delta: f32,
    pub(super) k: &'a Row<CH>,
}

/// What a token does to every row of a head.
pub(super) struct Token<'a, const CH: usize> {
    pub(super) k: &'a Row<CH>,
    pub(super) q: &'a Row<CH>,
    pub(super) decay: f32,
    pub(super) beta: f32,
    pub(super) scale: f32,
}

/// The rows that a token is applied to, of one length.
pub(super) struct Rows<'a, const CH: usize> {
    pub(super) v: &'a [f32],
    /// Where the rows come from; `to` where there is nothing.
    pub(super) from: Option<&'a [Row<CH>]>,
    pub(super) to: &'a mut [Row<CH>],
    pub(super) out: &'a mut [f32],
    pub(super) delta: Option<&'a mut [f32]>,
    /// Memory that comes next.
    pub(super) ahead: Ahead,
}

/// Where a block's rows come from and go to, and what comes after them.
struct Memory<'a, const CH: usize> {
    from: Option<&'a [Row<CH>]>,
    to: &'a mut [Row<CH>],
    ahead: Ahead,
}

/// Working memory of a block.
#[repr(align(64))]
struct Scratch<const CH: usize> {
    /// The block's rows where those of the state are not whole vectors.
    base: [Row<CH>; BLOCK],
    /// The block's rows after the last token, where the state itself must stay.
    work: [Row<CH>; BLOCK],
}

/// Rows `rows` of a head, `CH` vectors a row.
///
/// # Safety
/// No other thread touches these rows of the head's state, log, captured states and outputs.
#[inline(always)]
pub(super) unsafe fn run_rows<K: RowKernel, const CH: usize>(kernel: K, head: &Head<'_>, rows: std::ops::Range<usize>) {
    let mut scratch = Scratch { base: [[[0.0; LANES]; CH]; BLOCK], work: [[[0.0; LANES]; CH]; BLOCK] };
    let mut first = rows.start;
    while first < rows.end {
        let block = first..rows.end.min(first + BLOCK);
        first = block.end;
        // SAFETY: the block lies in the caller's range.
        unsafe { run_block(kernel, head, block, &mut scratch) };
    }
}

/// # Safety
/// As [`run_rows`].
#[inline(always)]
unsafe fn run_block<K: RowKernel, const CH: usize>(
    kernel: K,
    head: &Head<'_>,
    rows: std::ops::Range<usize>,
    scratch: &mut Scratch<CH>,
) {
    let Head { k_dim, num_tokens, .. } = *head;
    let at = head.state_start + rows.start * k_dim..head.state_start + rows.end * k_dim;
    // SAFETY: rows of this head's state are this thread's (the caller's promise); this is the only part of the state
    // that is taken while it lives.
    let state = unsafe { head.state.part(at.clone()) };
    let whole = k_dim == CH * LANES;
    let Scratch { base, work } = scratch;
    if !whole {
        for (to, from) in base.iter_mut().zip(state.chunks_exact(k_dim)) {
            to.as_flattened_mut()[..k_dim].copy_from_slice(from);
        }
    }
    let work = &mut work[..rows.len()];
    let base = if whole { state.as_chunks_mut().0.as_chunks_mut().0 } else { &mut base[..rows.len()] };
    // SAFETY: this block's rows, as above.
    unsafe { replay(kernel, head, rows.start, base) };

    for t in 0..num_tokens {
        // While this block is computed, the next one is fetched, an equal share with each token. A single token goes
        // through memory as fast as it comes.
        let share = |t: usize| at.end + if num_tokens > 1 { (at.end - at.start) * t / num_tokens } else { 0 };
        let ahead = Ahead::new(head.state.addresses(share(t)..share(t + 1)));
        let (from, to) = match head.write {
            WriteBack::Final => (None, &mut *base),
            _ if t == 0 => (Some(&*base), &mut *work),
            _ => (None, &mut *work),
        };
        // SAFETY: outputs and log entries of these rows are this thread's; the replay's parts have ended.
        unsafe { run_token(kernel, head, t, rows.clone(), Memory { from, to, ahead }) };
        if let WriteBack::PerToken { states, start, stride } = head.write {
            let at = start + t * stride;
            // SAFETY: captured rows of this head are this thread's.
            let to = unsafe { states.part(at + rows.start * k_dim..at + rows.end * k_dim) };
            for (to, from) in to.chunks_exact_mut(k_dim).zip(&*work) {
                to.copy_from_slice(&from.as_flattened()[..k_dim]);
            }
        }
    }
    let is_changed = head.num_pending > 0 || matches!(head.write, WriteBack::Final) && num_tokens > 0;
    if is_changed && !whole {
        for (to, from) in state.chunks_exact_mut(k_dim).zip(&scratch.base) {
            to.copy_from_slice(&from.as_flattened()[..k_dim]);
        }
    }
}

/// Replays the pending log entries into the rows from `first` on.
///
/// # Safety
/// As [`run_rows`].
#[inline(always)]
unsafe fn replay<K: RowKernel, const CH: usize>(kernel: K, head: &Head<'_>, first: usize, rows: &mut [Row<CH>]) {
    let (1.., Some((log, log_start))) = (head.num_pending, head.log_delta) else { return };
    let delta = |p: usize, i: usize| {
        let at = log_start + p * head.num_v_heads * head.v_dim + first + i;
        // SAFETY: the log entries of these rows are this thread's; the part ends with this statement.
        let entry = unsafe { log.part(at..at + 1) };
        entry[0]
    };
    let entry = |p: usize, delta: f32| Entry {
        decay: head.pending_decay[p * head.num_v_heads],
        delta,
        k: vectors::<CH>(&head.pending_k[p * head.k_stride..]),
    };
    let mut entries = [entry(0, 0.0); ENTRIES];
    for start in (0..head.num_pending).step_by(ENTRIES) {
        let n = ENTRIES.min(head.num_pending - start);
        for e in 0..n {
            entries[e] = entry(start + e, 0.0);
        }
        for (i, row) in rows.iter_mut().enumerate() {
            for e in 0..n {
                entries[e].delta = delta(start + e, i);
            }
            kernel.replay(row, &entries[..n]);
        }
    }
}

/// Token `t` for the rows of a block.
///
/// # Safety
/// As [`run_rows`], and no other part of these outputs and log entries is in use.
#[inline(always)]
unsafe fn run_token<K: RowKernel, const CH: usize>(
    kernel: K,
    head: &Head<'_>,
    t: usize,
    rows: std::ops::Range<usize>,
    Memory { from, to, ahead }: Memory<'_, CH>,
) {
    let per_token = t * head.num_v_heads * head.v_dim;
    let part = |start: usize| start + rows.start..start + rows.end;
    let token = Token {
        k: vectors(&head.k[t * head.k_stride..]),
        q: vectors(&head.q[t * head.k_stride..]),
        decay: head.decay[t * head.num_v_heads],
        beta: head.beta[t * head.num_v_heads],
        scale: head.scale,
    };
    let rows = Rows {
        v: &head.v[part(per_token)],
        from,
        to,
        ahead,
        // SAFETY: the caller's promise.
        out: unsafe { head.out.part(part(head.out_start + t * head.out_stride)) },
        delta: match (head.write, head.log_delta) {
            // SAFETY: the caller's promise.
            (WriteBack::DeltaLog, Some((log, at))) => Some(unsafe { log.part(part(at + per_token)) }),
            _ => None,
        },
    };
    kernel.token(token, rows);
}

/// The first `CH` vectors of a padded key.
#[inline(always)]
fn vectors<const CH: usize>(x: &[f32]) -> &Row<CH> {
    match x.as_chunks::<LANES>().0.first_chunk::<CH>() {
        Some(vectors) => vectors,
        None => unreachable!("keys are padded to CH vectors"),
    }
}
