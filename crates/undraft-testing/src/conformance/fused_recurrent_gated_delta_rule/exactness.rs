//! What must hold bit for bit: a window equals its tokens decoded one by one, however it is run and taken back. Draft trees
//! have a suite of their own.

use std::cell::RefCell;
use std::ops::Range;

use undraft_core::{Backend, Capture, DType};

use super::super::Tally;
use super::{out_axes, rounding, slot_axes, state_axes, trees};
use crate::Rng;
use crate::cases::commit_states::CommitCase;
use crate::cases::fused_recurrent_gated_delta_rule::{DeltaRuleCase, LogData, NUM_CASES};
use crate::compare;
use crate::coverage::Coverage;
use crate::harness::fused_recurrent_gated_delta_rule::{DeltaRuleOutcome, run, supports};
use crate::harness::{Memory, commit_states};

pub(super) type Outcome = Result<(), String>;
/// What is checked, in words, and the check.
pub(super) type Check<T> = (&'static str, fn(&T) -> Outcome);

/// Elements of all states of a case; the whole list would take long in debug builds.
const MAX_STATES: usize = 100_000;

pub(in super::super) fn exactness(backend: &dyn Backend, io: DType, tally: &mut Tally) -> Outcome {
    if io == DType::F32 {
        rounding::check(backend, tally)?;
    }
    // Even cases have no pending entries. A 16-bit dtype changes loads and stores alone, so fewer will do.
    let count = if io == DType::F32 { NUM_CASES } else { NUM_CASES / 3 };
    for index in (0..count).map(|i| 2 * i) {
        let case = DeltaRuleCase::nth(io, index);
        if case.state.len() > MAX_STATES {
            continue;
        }
        let label = case.label();
        let capture = if case.windows.has_tree() { Capture::DeltaLog } else { Capture::Final };
        if !supports(backend, &case, capture) {
            // Still to be refused properly.
            run(backend, &case, capture, Memory::PLAIN)?;
            tally.case(false);
            continue;
        }
        let covered = if case.windows.has_tree() {
            trees::check(backend, index, case)
        } else {
            let decoded = Decoded::new(&case);
            let mut suite = Suite { backend, index, decoded, case, calls: RefCell::default() };
            suite.check().map(|()| suite.calls.into_inner())
        };
        tally.coverage.merge(&covered.map_err(|e| format!("{e} (case: {label})"))?);
        tally.case(true);
    }
    Ok(())
}

/// The case decoded token by token with capture `Final`.
struct Decoded {
    /// `[T, HV, V]`.
    out: Vec<f32>,
    /// `[n][slots, HV, V, K]`: states after `n` tokens of each sequence, or all of a shorter one.
    states: Vec<Vec<f32>>,
}

impl Decoded {
    fn new(case: &DeltaRuleCase) -> Self {
        Self { out: vec![0.0; case.windows.num_tokens() * case.dims.value_dim()], states: vec![case.state.clone()] }
    }
}

struct Suite<'a> {
    backend: &'a dyn Backend,
    index: usize,
    case: DeltaRuleCase,
    decoded: Decoded,
    calls: RefCell<Coverage>,
}

impl Suite<'_> {
    fn check(&mut self) -> Outcome {
        self.decode()?;
        let checks: [Check<Self>; 10] = [
            ("a window under `Final` equals decoding", Self::final_equals_decoding),
            ("a window under `PerToken` equals decoding", Self::per_token_equals_decoding),
            ("a window under `DeltaLog`, then commit, equals decoding", Self::log_equals_decoding),
            ("a chain told by parents is a chain", Self::told_chain_is_a_chain),
            ("a window cut in two equals decoding", Self::cut_equals_decoding),
            ("replay of pending entries equals commit", Self::pending_equals_commit),
            ("sequences alone equal the batch", Self::alone_equals_batch),
            ("slots and order do not matter", Self::order_does_not_matter),
            ("later tokens do not change earlier results", Self::causal),
            ("heads alone equal the layer", Self::heads_alone),
        ];
        for (what, check) in checks {
            check(self).map_err(|e| format!("{what}: {e}"))?;
        }
        Ok(())
    }

    fn runs(&self, capture: Capture) -> bool {
        supports(self.backend, &self.case, capture)
    }

    fn commits(&self) -> bool {
        commits(self.backend, &self.case)
    }

    fn call(&self, case: &DeltaRuleCase, capture: Capture, n: usize) -> Result<DeltaRuleOutcome, String> {
        let memory = Memory::nth(self.index / 2 + n);
        let outcome = run(self.backend, case, capture, memory)?.ok_or_else(|| "was refused".to_owned())?;
        self.calls.borrow_mut().record(case.options(capture, memory), 0.0);
        Ok(outcome)
    }

    fn longest(&self) -> usize {
        self.case.windows.longest()
    }

    /// The tokens of each sequence that lie in `range`, from these states.
    fn part(&self, range: Range<usize>, state: &[f32]) -> DeltaRuleCase {
        let mut part = self.case.pick(&self.case.windows.within(range));
        part.state = state.to_vec();
        part
    }

    fn decode(&mut self) -> Outcome {
        for t in 0..self.longest() {
            let step = self.part(t..t + 1, &self.decoded.states[t]);
            let outcome = self.call(&step, Capture::Final, t).map_err(|e| format!("decoding token {t}: {e}"))?;
            let row = self.case.dims.value_dim();
            for (from, to) in step.windows.ranges().into_iter().zip(self.case.windows.ranges()) {
                if !from.is_empty() {
                    let to = (to.start + t) * row;
                    self.decoded.out[to..to + row].copy_from_slice(&outcome.out[from.start * row..][..row]);
                }
            }
            self.decoded.states.push(outcome.state);
        }
        Ok(())
    }

    fn same_out(&self, out: &[f32]) -> Outcome {
        compare::bits("out", out, &self.decoded.out, &out_axes(&self.case))
    }

    fn same_state(&self, state: &[f32], n: usize) -> Outcome {
        compare::bits("state", state, &self.decoded.states[n], &state_axes(&self.case))
            .map_err(|e| format!("after {n} tokens: {e}"))
    }

    /// Outputs of a part against the same tokens of decoding.
    fn same_part(&self, range: Range<usize>, part: &DeltaRuleCase, out: &[f32]) -> Outcome {
        let (_, tokens) = self.case.windows.pick(&self.case.windows.within(range.clone()));
        let row = self.case.dims.value_dim();
        let expected = crate::cases::gather(&self.decoded.out, row, &tokens);
        compare::bits("out", out, &expected, &out_axes(part)).map_err(|e| format!("tokens {range:?}: {e}"))
    }

    /// `num_kept` with `n` for every sequence that has so many tokens, else all of them.
    fn kept(&self, n: usize) -> Vec<u32> {
        self.case.windows.lens.iter().map(|&len| len.min(n) as u32).collect()
    }

    fn commit(&self, state: &[f32], log: &LogData, num_kept: Vec<u32>, n: usize) -> Result<Vec<f32>, String> {
        let case = commit_case(&self.case, state, log, num_kept);
        commit_states::run(self.backend, &case, Memory::nth(self.index / 2 + n))?
            .ok_or_else(|| "was refused".to_owned())
    }

    fn final_equals_decoding(&self) -> Outcome {
        // Each memory: neither strides nor alignment may matter.
        for n in 0..4 {
            let outcome = self.call(&self.case, Capture::Final, n)?;
            self.same_out(&outcome.out)?;
            self.same_state(&outcome.state, self.longest())?;
        }
        Ok(())
    }

    fn per_token_equals_decoding(&self) -> Outcome {
        if !self.runs(Capture::PerToken) {
            return Ok(());
        }
        let outcome = self.call(&self.case, Capture::PerToken, 1)?;
        self.same_out(&outcome.out)?;
        self.same_state(&outcome.state, 0)?;
        let len = self.case.dims.state_len();
        for (seq, slot, tokens) in self.case.windows.live() {
            for t in 0..tokens.len() {
                let expected = &self.decoded.states[t + 1][slot * len..][..len];
                compare::bits("capture.states", outcome.captured(seq, t), expected, &slot_axes(&self.case))
                    .map_err(|e| format!("sequence {seq}, token {t}: {e}"))?;
            }
        }
        Ok(())
    }

    fn log_equals_decoding(&self) -> Outcome {
        if !self.runs(Capture::DeltaLog) {
            return Ok(());
        }
        let outcome = self.call(&self.case, Capture::DeltaLog, 2)?;
        self.same_out(&outcome.out)?;
        self.same_state(&outcome.state, 0)?;
        if !self.commits() {
            return Ok(());
        }
        for n in 0..=self.longest() {
            let state = self.commit(&outcome.state, &outcome.log, self.kept(n), n)?;
            self.same_state(&state, n)?;
        }
        // A count of its own for each sequence.
        let mut rng = Rng::new(self.index as u64);
        let kept: Vec<u32> = self.case.windows.lens.iter().map(|&len| rng.below(len + 1) as u32).collect();
        let state = self.commit(&outcome.state, &outcome.log, kept.clone(), 1)?;
        let mut expected = self.case.state.clone();
        let len = self.case.dims.state_len();
        for (seq, slot, _) in self.case.windows.live() {
            let from = &self.decoded.states[kept[seq] as usize];
            expected[slot * len..][..len].copy_from_slice(&from[slot * len..][..len]);
        }
        compare::bits("state", &state, &expected, &state_axes(&self.case)).map_err(|e| format!("kept {kept:?}: {e}"))
    }

    fn told_chain_is_a_chain(&self) -> Outcome {
        let mut told = self.case.clone();
        told.windows.parents = told.windows.lens.iter().flat_map(|&len| (0..len as i32).map(|t| t - 1)).collect();
        for (n, capture) in [Capture::Final, Capture::DeltaLog, Capture::PerToken].into_iter().enumerate() {
            if !self.runs(capture) {
                continue;
            }
            let outcome = self.call(&told, capture, n)?;
            self.same_out(&outcome.out)?;
            self.same_state(&outcome.state, if capture == Capture::Final { self.longest() } else { 0 })?;
        }
        Ok(())
    }

    fn cut_equals_decoding(&self) -> Outcome {
        for cut in self.cuts() {
            let head = self.part(0..cut, &self.case.state);
            let first = self.call(&head, Capture::Final, cut)?;
            self.same_part(0..cut, &head, &first.out)?;
            self.same_state(&first.state, cut)?;
            let tail = self.part(cut..usize::MAX, &first.state);
            let second = self.call(&tail, Capture::Final, cut + 1)?;
            self.same_part(cut..usize::MAX, &tail, &second.out)?;
            self.same_state(&second.state, self.longest())?;
        }
        Ok(())
    }

    /// Rounds as speculation runs them: a window is verified, some tokens stay, the next window replays them.
    fn pending_equals_commit(&self) -> Outcome {
        if !self.runs(Capture::DeltaLog) {
            return Ok(());
        }
        for cut in self.cuts().into_iter().chain([self.longest()]) {
            let head = self.part(0..cut, &self.case.state);
            let first = self.call(&head, Capture::DeltaLog, cut)?;
            self.same_part(0..cut, &head, &first.out)?;
            for n in [0, cut / 2, cut] {
                let mut next = self.part(n..usize::MAX, &first.state);
                next.log = first.log.clone();
                next.num_pending = self.kept(n);
                // No token, only the replay.
                let replay = DeltaRuleCase { num_pending: self.kept(n), ..empty(&next) };
                self.same_state(&self.call(&replay, Capture::DeltaLog, n)?.state, n)?;
                // The next window under each capture.
                let verified = self.call(&next, Capture::DeltaLog, n + 1)?;
                self.same_part(n..usize::MAX, &next, &verified.out)?;
                self.same_state(&verified.state, n)?;
                let decoded = self.call(&next, Capture::Final, n + 2)?;
                self.same_part(n..usize::MAX, &next, &decoded.out)?;
                self.same_state(&decoded.state, self.longest())?;
                if self.commits() {
                    let rest = next.windows.lens.iter().map(|&len| len as u32).collect();
                    let state = self.commit(&verified.state, &verified.log, rest, n)?;
                    self.same_state(&state, self.longest())?;
                }
                if self.runs(Capture::PerToken) {
                    let captured = self.call(&next, Capture::PerToken, n)?;
                    self.same_part(n..usize::MAX, &next, &captured.out)?;
                    self.same_state(&captured.state, n)?;
                }
            }
        }
        Ok(())
    }

    fn alone_equals_batch(&self) -> Outcome {
        let (row, len) = (self.case.dims.value_dim(), self.case.dims.state_len());
        for (seq, slot, tokens) in self.case.windows.live() {
            let alone = self.case.pick(&[(seq, 0..tokens.len())]).relocated(&[0], 1);
            let outcome = self.call(&alone, Capture::Final, seq)?;
            let at = |e| format!("sequence {seq}: {e}");
            let expected = &self.decoded.out[tokens.start * row..tokens.end * row];
            compare::bits("out", &outcome.out, expected, &out_axes(&alone)).map_err(at)?;
            let expected = &self.decoded.states[self.longest()][slot * len..][..len];
            compare::bits("state", &outcome.state, expected, &slot_axes(&self.case)).map_err(at)?;
        }
        Ok(())
    }

    fn order_does_not_matter(&self) -> Outcome {
        let mut rng = Rng::new(self.index as u64 + 1);
        let num_seqs = self.case.windows.num_seqs();
        let order = rng.permutation(num_seqs);
        let picked: Vec<(usize, Range<usize>)> =
            order.iter().map(|&seq| (seq, 0..self.case.windows.lens[seq])).collect();
        let slots = rng.permutation(num_seqs + 2);
        let moved = self.case.pick(&picked).relocated(&slots, num_seqs + 2);
        let outcome = self.call(&moved, Capture::Final, 1)?;
        let (row, len) = (self.case.dims.value_dim(), self.case.dims.state_len());
        let (_, tokens) = self.case.windows.pick(&picked);
        let expected = crate::cases::gather(&self.decoded.out, row, &tokens);
        compare::bits("out", &outcome.out, &expected, &out_axes(&moved))?;
        for (position, slot, _) in moved.windows.live() {
            let old = self.case.windows.slots[order[position]] as usize;
            let expected = &self.decoded.states[self.longest()][old * len..][..len];
            let got = &outcome.state[slot * len..][..len];
            compare::bits("state", got, expected, &slot_axes(&self.case))
                .map_err(|e| format!("slot {old}, moved to {slot}: {e}"))?;
        }
        Ok(())
    }

    fn causal(&self) -> Outcome {
        let capture = if self.runs(Capture::DeltaLog) { Capture::DeltaLog } else { Capture::Final };
        let dims = &self.case.dims;
        let whole = self.call(&self.case, capture, 3)?;
        for from in self.cuts() {
            let mut spoiled = self.case.clone();
            spoiled.spoil_from(from);
            let outcome = self.call(&spoiled, capture, from)?;
            for (seq, slot, tokens) in self.case.windows.live() {
                let at = |e| format!("tokens from {from} on are NaN, sequence {seq}: {e}");
                let count = from.min(tokens.len());
                let same = |arg, got: &[f32], expected: &[f32], first: usize, row: usize| {
                    let range = first * row..(first + count) * row;
                    let axes = [("token", count), ("element", row)];
                    compare::bits(arg, &got[range.clone()], &expected[range], &axes).map_err(at)
                };
                same("out", &outcome.out, &whole.out, tokens.start, dims.value_dim())?;
                if capture == Capture::DeltaLog {
                    let entry = slot * self.case.log.max_tokens;
                    same("log.k", &outcome.log.k, &whole.log.k, entry, dims.key_dim())?;
                    same("log.decay", &outcome.log.decay, &whole.log.decay, entry, dims.decay_len())?;
                    same("log.delta", &outcome.log.delta, &whole.log.delta, entry, dims.value_dim())?;
                }
            }
        }
        Ok(())
    }

    fn heads_alone(&self) -> Outcome {
        let (hv, v) = (self.case.dims.num_v_heads(), self.case.dims.head_v_dim());
        for head in [0, hv / 2, hv - 1] {
            let alone = self.case.head(head);
            let outcome = self.call(&alone, Capture::Final, head)?;
            let column = |values: &[f32], size: usize| -> Vec<f32> {
                values.chunks_exact(hv * size).flat_map(|row| row[head * size..][..size].iter().copied()).collect()
            };
            let at = |e| format!("head {head}: {e}");
            let expected = column(&self.decoded.out, v);
            compare::bits("out", &outcome.out, &expected, &out_axes(&alone)).map_err(at)?;
            let expected = column(&self.decoded.states[self.longest()], v * self.case.dims.head_k_dim());
            compare::bits("state", &outcome.state, &expected, &state_axes(&alone)).map_err(at)?;
        }
        Ok(())
    }

    /// Every cut of a short window, a few of a long one.
    fn cuts(&self) -> Vec<usize> {
        match self.longest() {
            0 | 1 => Vec::new(),
            longest @ 2..=5 => (1..longest).collect(),
            longest => vec![1, longest / 2, longest - 1],
        }
    }
}

/// Whether the back end verifies windows of the case and replays their logs.
pub(super) fn commits(backend: &dyn Backend, case: &DeltaRuleCase) -> bool {
    let commit = commit_case(case, &[], &case.log, Vec::new());
    supports(backend, case, Capture::DeltaLog) && commit_states::supports(backend, &commit)
}

/// The replay of a log that the case's window left.
pub(super) fn commit_case(case: &DeltaRuleCase, state: &[f32], log: &LogData, num_kept: Vec<u32>) -> CommitCase {
    CommitCase {
        dims: case.dims,
        head_map: case.head_map,
        state: state.to_vec(),
        state_dtype: case.state_dtype,
        log: log.clone(),
        windows: case.windows.clone(),
        num_kept,
        path: Vec::new(),
    }
}

/// The same sequences without tokens.
fn empty(case: &DeltaRuleCase) -> DeltaRuleCase {
    case.pick(&case.windows.within(0..0))
}
