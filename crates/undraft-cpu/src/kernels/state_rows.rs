//! The recurrence over a few rows of one head's state, which stay in the first-level cache from the first replayed token
//! to the last new one.

use std::ops::Range;

use undraft_core::DType;

use super::factor::{DecayKind, Factor};
use super::states::SharedStates;
use super::tree::Step;
use crate::shared::SharedMut;
use crate::simd::{Ahead, LANES, prefetch};

/// One value head of one sequence.
pub(super) struct Head<'a> {
    pub(super) k_dim: usize,
    pub(super) v_dim: usize,
    /// Elements between two tokens of the padded q and k, `H * KP`.
    pub(super) k_stride: usize,
    /// What to replay: `[num, H, KP]` keys of the head's key head, `[num, HV, decay]` decay, and the entries of the log.
    pub(super) pending_k: &'a [f32],
    pub(super) pending_decay: &'a [f32],
    pub(super) pending_entries: &'a [usize],
    /// The window: `[T, H, KP]` from the head's key head on, `[T, HV, ..]` from the value head on.
    pub(super) q: &'a [f32],
    pub(super) k: &'a [f32],
    pub(super) v: &'a [f32],
    pub(super) decay: &'a [f32],
    pub(super) beta: &'a [f32],
    pub(super) num_tokens: usize,
    pub(super) scale: f32,
    /// Elements between two tokens of beta, `HV`, and of decay.
    pub(super) num_v_heads: usize,
    pub(super) decay_stride: usize,
    /// Of a draft tree.
    pub(super) tree: Option<Tree<'a>>,
    /// The head's state `[V, K]` starts here.
    pub(super) state: SharedStates<'a>,
    pub(super) state_start: usize,
    /// `[max_tokens, HV, V]` of the slot, from the value head on: read for the replay, then written by the window.
    pub(super) log_delta: Option<(SharedMut<'a, f32>, usize)>,
    pub(super) write: WriteBack<'a>,
    /// Outputs in f32: the head's first element of the first token, and the elements between two tokens.
    pub(super) out: SharedMut<'a, f32>,
    pub(super) out_start: usize,
    pub(super) out_stride: usize,
}

/// A window whose tokens do not all follow the one before.
#[derive(Clone, Copy)]
pub(super) struct Tree<'a> {
    /// `[T]`.
    pub(super) steps: &'a [Step],
    /// This task's buffers start here: `[num_buffers, BLOCK, KP]`.
    pub(super) states: SharedMut<'a, f32>,
    pub(super) start: usize,
}

/// What becomes of the state after each token.
#[derive(Clone, Copy)]
pub(super) enum WriteBack<'a> {
    /// Stored after the last token.
    Final,
    /// The deltas go into the log.
    DeltaLog,
    /// Stored after each token: state of token t at `start + t * stride`, stride `HV * V * K`.
    PerToken { states: SharedStates<'a>, start: usize, stride: usize },
}

/// Rows that are taken through all tokens before the next ones: few enough to stay in the first-level cache, many enough
/// that the chain of one row's tokens hides behind the others'.
pub(super) const BLOCK: usize = 16;

/// Log entries that are replayed into a row before the next row.
const ENTRIES: usize = 8;

/// A row of the state, padded with zeros to whole vectors.
pub(super) type Row<const CH: usize> = [[f32; LANES]; CH];

/// Arithmetic on rows: vectors ([`super::vector_rows`]) or plain loops ([`super::scalar_rows`]), with the same bits.
pub(super) trait RowKernel: Copy {
    /// `row = fma(delta, k, row * decay)`, rounded to the state's dtype, for one entry after the other.
    fn replay<const CH: usize, F: Factor<CH>>(self, row: &mut Row<CH>, entries: &[Entry<'_, CH, F>], state: DType);

    /// One token for all rows.
    fn token<const CH: usize, F: Factor<CH>>(self, token: Token<'_, CH, F>, rows: Rows<'_, CH>);

    /// At least one token, each after the one before, for all rows, whose number is a multiple of 4.
    fn chain<const CH: usize, F: Factor<CH>>(self, tokens: &[Token<'_, CH, F>], rows: ChainRows<'_, CH>);

    /// Runs `f` compiled for the instruction set.
    fn with_features<R>(self, f: impl FnOnce() -> R) -> R;
}

/// What a log entry does to one row.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a, const CH: usize, F> {
    pub(super) decay: F,
    pub(super) delta: f32,
    pub(super) k: &'a Row<CH>,
}

/// What a token does to every row of a head.
#[derive(Clone, Copy)]
pub(super) struct Token<'a, const CH: usize, F> {
    pub(super) k: &'a Row<CH>,
    pub(super) q: &'a Row<CH>,
    pub(super) decay: F,
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
    /// Dtype that the rows are rounded to after a token.
    pub(super) state: DType,
}

/// The rows that a chain of tokens is applied to.
pub(super) struct ChainRows<'a, const CH: usize> {
    /// Of each token.
    pub(super) v: &'a [[f32; BLOCK]],
    /// Where the rows come from; `to` where there is nothing.
    pub(super) from: Option<&'a [Row<CH>]>,
    pub(super) to: &'a mut [Row<CH>],
    /// Of each token.
    pub(super) out: &'a mut [[f32; BLOCK]],
    pub(super) delta: &'a mut [[f32; BLOCK]],
    /// Memory that comes next.
    pub(super) ahead: Ahead,
    /// Dtype that the rows are rounded to after a token.
    pub(super) state: DType,
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
    /// The block's rows where those of the state are not f32 in whole vectors.
    base: [Row<CH>; BLOCK],
    /// The block's rows after the last token, where the state itself must stay.
    work: [Row<CH>; BLOCK],
}

/// Rows `rows` of a head, `CH` vectors a row.
///
/// # Safety
/// No other thread touches these rows of the head's state, log, captured states and outputs, nor the buffers of its tree.
#[inline(always)]
pub(super) unsafe fn run_rows<K: RowKernel, D: DecayKind, const CH: usize>(
    kernel: K,
    head: &Head<'_>,
    rows: Range<usize>,
) {
    let mut scratch = Scratch { base: [[[0.0; LANES]; CH]; BLOCK], work: [[[0.0; LANES]; CH]; BLOCK] };
    let mut first = rows.start;
    while first < rows.end {
        let block = first..rows.end.min(first + BLOCK);
        first = block.end;
        // SAFETY: the block lies in the caller's range.
        unsafe { run_block::<K, D, CH>(kernel, head, block, &mut scratch) };
    }
}

/// # Safety
/// As [`run_rows`].
#[inline(always)]
unsafe fn run_block<K: RowKernel, D: DecayKind, const CH: usize>(
    kernel: K,
    head: &Head<'_>,
    rows: Range<usize>,
    scratch: &mut Scratch<CH>,
) {
    let Head { k_dim, num_tokens, .. } = *head;
    let at = head.state_start + rows.start * k_dim..head.state_start + rows.end * k_dim;
    let in_place = match head.state {
        SharedStates::F32(state) if k_dim == CH * LANES => Some(state),
        _ => None,
    };
    let Scratch { base, work } = scratch;
    let (base, work) = (&mut base[..rows.len()], &mut work[..rows.len()]);
    let base = match in_place {
        // SAFETY: rows of this head's state are this thread's (the caller's promise); this is the only part of the state
        // that is taken while it lives.
        Some(state) => unsafe { state.part(at.clone()) }.as_chunks_mut().0.as_chunks_mut().0,
        None => {
            // SAFETY: as above.
            kernel.with_features(
                #[inline(always)]
                || unsafe { head.state.load(at.start, k_dim, base) },
            );
            base
        }
    };
    if let Some((log, start)) = head.log_delta {
        // The next block's deltas: a cache line a token, each in another page, which no hardware foresees.
        for token in 0..head.pending_entries.len().max(num_tokens) {
            let at = start + token * head.num_v_heads * head.v_dim + rows.end;
            prefetch(log.addresses(at..at).start);
        }
    }
    // SAFETY: this block's rows, as above.
    unsafe { replay::<K, D, CH>(kernel, head, rows.start, base) };

    // While this block is computed, the next one is fetched, an equal share with each token. A single token goes through
    // memory as fast as it comes.
    let share = |t: usize| at.end + if num_tokens > 1 { (at.end - at.start) * t / num_tokens } else { 0 };
    let ahead = |tokens: Range<usize>| Ahead::new(head.state.addresses(share(tokens.start)..share(tokens.end)));
    let is_chain =
        head.tree.is_none() && rows.len().is_multiple_of(4) && !matches!(head.write, WriteBack::PerToken { .. });
    for first in (0..num_tokens).step_by(CHAIN).filter(|_| is_chain) {
        let tokens = first..num_tokens.min(first + CHAIN);
        let ahead = ahead(tokens.clone());
        let (from, to) = match head.write {
            WriteBack::Final => (None, &mut *base),
            _ if first == 0 => (Some(&*base), &mut *work),
            _ => (None, &mut *work),
        };
        // SAFETY: outputs and log entries of these rows are this thread's; the replay's parts have ended.
        unsafe { run_chain::<K, D, CH>(kernel, head, tokens, rows.clone(), Memory { from, to, ahead }) };
    }
    for t in (0..num_tokens).filter(|_| !is_chain) {
        let ahead = ahead(t..t + 1);
        let (from, to) = match (&head.tree, head.write) {
            // SAFETY: the tree's buffers are this thread's, and the parts of the token before have ended.
            (Some(tree), _) => match unsafe { tree.buffers(t, rows.len()) } {
                (None, to) if tree.steps[t].from.is_none() => (Some(&*base), to),
                found => found,
            },
            (None, WriteBack::Final) => (None, &mut *base),
            _ if t == 0 => (Some(&*base), &mut *work),
            _ => (None, &mut *work),
        };
        // SAFETY: outputs and log entries of these rows are this thread's; the replay's parts have ended.
        unsafe { run_token::<K, D, CH>(kernel, head, t, rows.clone(), Memory { from, to: &mut *to, ahead }) };
        if let WriteBack::PerToken { states, start, stride } = head.write {
            // SAFETY: captured rows of this head are this thread's.
            kernel.with_features(
                #[inline(always)]
                || unsafe { states.store(start + t * stride + rows.start * k_dim, k_dim, to) },
            );
        }
    }
    let is_changed = !head.pending_entries.is_empty() || matches!(head.write, WriteBack::Final) && num_tokens > 0;
    if is_changed && in_place.is_none() {
        // SAFETY: as for the load.
        kernel.with_features(
            #[inline(always)]
            || unsafe { head.state.store(at.start, k_dim, base) },
        );
    }
}

impl<'a> Tree<'a> {
    /// The first rows of token t's buffer, and of its parent's where that is another one.
    ///
    /// # Safety
    /// No other thread uses these buffers, and nothing that this gave before lives.
    #[inline(always)]
    unsafe fn buffers<const CH: usize>(&self, t: usize, num_rows: usize) -> (Option<&'a [Row<CH>]>, &'a mut [Row<CH>]) {
        let Step { from, to } = self.steps[t];
        let len = BLOCK * CH * LANES;
        let buffer = |b: u32| {
            let start = self.start + b as usize * len;
            // SAFETY: the caller's promise; the two buffers of a token are not the same one.
            let rows = unsafe { self.states.part(start..start + len) };
            &mut rows.as_chunks_mut().0.as_chunks_mut().0[..num_rows]
        };
        (from.filter(|&from| from != to).map(|from| &*buffer(from)), buffer(to))
    }
}

/// Replays the pending log entries into the rows from `first` on.
///
/// # Safety
/// As [`run_rows`].
#[inline(always)]
unsafe fn replay<K: RowKernel, D: DecayKind, const CH: usize>(
    kernel: K,
    head: &Head<'_>,
    first: usize,
    rows: &mut [Row<CH>],
) {
    let ([_, ..], Some((log, log_start))) = (head.pending_entries, head.log_delta) else { return };
    let delta = |p: usize, i: usize| {
        let at = log_start + head.pending_entries[p] * head.num_v_heads * head.v_dim + first + i;
        // SAFETY: the log entries of these rows are this thread's; the part ends with this statement.
        let entry = unsafe { log.part(at..at + 1) };
        entry[0]
    };
    let entry = |p: usize, delta: f32| Entry {
        decay: D::of(head.pending_decay, p * head.decay_stride),
        delta,
        k: vectors::<CH>(&head.pending_k[p * head.k_stride..]),
    };
    let num_pending = head.pending_entries.len();
    let mut entries = [entry(0, 0.0); ENTRIES];
    for start in (0..num_pending).step_by(ENTRIES) {
        let n = ENTRIES.min(num_pending - start);
        for e in 0..n {
            entries[e] = entry(start + e, 0.0);
        }
        for (i, row) in rows.iter_mut().enumerate() {
            for e in 0..n {
                entries[e].delta = delta(start + e, i);
            }
            kernel.replay(row, &entries[..n], head.state.dtype());
        }
    }
}

/// Tokens that go through a block in one call.
const CHAIN: usize = 8;

/// Tokens `tokens`, a chain of at most [`CHAIN`], for the rows of a block.
///
/// # Safety
/// As [`run_rows`], and no other part of these outputs and log entries is in use.
#[inline(always)]
unsafe fn run_chain<K: RowKernel, D: DecayKind, const CH: usize>(
    kernel: K,
    head: &Head<'_>,
    tokens: Range<usize>,
    rows: Range<usize>,
    Memory { from, to, ahead }: Memory<'_, CH>,
) {
    let n = tokens.len();
    let per_token = |t: usize| t * head.num_v_heads * head.v_dim;
    let mut list = [head.token::<D, CH>(tokens.start); CHAIN];
    let mut v = [[0.0; BLOCK]; CHAIN];
    let (mut out, mut delta) = ([[0.0; BLOCK]; CHAIN], [[0.0; BLOCK]; CHAIN]);
    for (i, t) in tokens.clone().enumerate() {
        list[i] = head.token::<D, CH>(t);
        v[i][..rows.len()].copy_from_slice(&head.v[per_token(t) + rows.start..per_token(t) + rows.end]);
    }
    let chain = ChainRows {
        v: &v[..n],
        from,
        to,
        out: &mut out[..n],
        delta: &mut delta[..n],
        ahead,
        state: head.state.dtype(),
    };
    kernel.chain(&list[..n], chain);
    for (i, t) in tokens.enumerate() {
        let at = head.out_start + t * head.out_stride;
        // SAFETY: the caller's promise.
        unsafe { head.out.part(at + rows.start..at + rows.end) }.copy_from_slice(&out[i][..rows.len()]);
        if let (WriteBack::DeltaLog, Some((log, at))) = (head.write, head.log_delta) {
            let at = at + per_token(t);
            // SAFETY: the caller's promise.
            unsafe { log.part(at + rows.start..at + rows.end) }.copy_from_slice(&delta[i][..rows.len()]);
        }
    }
}

impl Head<'_> {
    #[inline(always)]
    fn token<D: DecayKind, const CH: usize>(&self, t: usize) -> Token<'_, CH, D::Of<'_, CH>> {
        Token {
            k: vectors(&self.k[t * self.k_stride..]),
            q: vectors(&self.q[t * self.k_stride..]),
            decay: D::of(self.decay, t * self.decay_stride),
            beta: self.beta[t * self.num_v_heads],
            scale: self.scale,
        }
    }
}

/// Token `t` for the rows of a block.
///
/// # Safety
/// As [`run_rows`], and no other part of these outputs and log entries is in use.
#[inline(always)]
unsafe fn run_token<K: RowKernel, D: DecayKind, const CH: usize>(
    kernel: K,
    head: &Head<'_>,
    t: usize,
    rows: Range<usize>,
    Memory { from, to, ahead }: Memory<'_, CH>,
) {
    let per_token = t * head.num_v_heads * head.v_dim;
    let part = |start: usize| start + rows.start..start + rows.end;
    let token = head.token::<D, CH>(t);
    let rows = Rows {
        v: &head.v[part(per_token)],
        from,
        to,
        ahead,
        state: head.state.dtype(),
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
pub(super) fn vectors<const CH: usize>(x: &[f32]) -> &Row<CH> {
    match x.as_chunks::<LANES>().0.first_chunk::<CH>() {
        Some(vectors) => vectors,
        None => unreachable!("keys are padded to CH vectors"),
    }
}
