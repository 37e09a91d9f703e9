//! The convolution: near the oracle, and a window equals its tokens one by one, however it is taken back.

mod trees;

use std::cell::RefCell;
use std::ops::Range;

use undraft_core::{Backend, Capture, DType, Op};

use super::Tally;
use crate::Rng;
use crate::cases::causal_conv1d_update::{ConvCase, NUM_CASES};
use crate::compare;
use crate::coverage::Coverage;
use crate::harness::Memory;
use crate::harness::causal_conv1d_update::{ConvOutcome, run, supports};
use crate::tolerance::{Tensor, tolerance};

type Outcome = Result<(), String>;
/// What is checked, in words, and the check.
type Check<T> = (&'static str, fn(&T) -> Outcome);

pub(super) fn values(backend: &dyn Backend, io: DType, tally: &mut Tally) -> Outcome {
    for index in 0..NUM_CASES {
        let case = ConvCase::nth(io, index);
        let oracle = case.oracle().solve();
        for (n, capture) in [Capture::Final, Capture::DeltaLog].into_iter().enumerate() {
            if capture == Capture::Final && case.windows.has_tree() {
                continue;
            }
            let at = |e| format!("capture {capture:?}, {}: {e}", case.label());
            let Some(outcome) = run(backend, &case, capture, Memory::nth(index + n)).map_err(at)? else {
                tally.case(false);
                continue;
            };
            let bound = tolerance(Op::CausalConv1dUpdate, Tensor::Out, io, false);
            let deviation = compare::values("out", &outcome.out, &oracle.out, &out_axes(&case), bound);
            tally.deviation(deviation.map_err(at)?, bound);
            // States and logs hold inputs, which nothing rounds.
            let expected = if capture == Capture::Final { &oracle.state_after } else { &oracle.state_before };
            let expected: Vec<f32> = expected.iter().map(|&x| x as f32).collect();
            compare::bits("state", &outcome.state, &expected, &state_axes(&case)).map_err(at)?;
            if capture == Capture::DeltaLog {
                log_holds_inputs(&case, &outcome).map_err(at)?;
            }
            tally.call(case.options(capture, Memory::nth(index + n)));
            tally.case(true);
        }
    }
    Ok(())
}

pub(super) fn out_axes(case: &ConvCase) -> [(&'static str, usize); 2] {
    [("token", case.windows.num_tokens()), ("channel", case.dims.channels())]
}

pub(super) fn state_axes(case: &ConvCase) -> [(&'static str, usize); 3] {
    [("slot", case.windows.num_slots), ("tap", case.dims.width() - 1), ("channel", case.dims.channels())]
}

fn log_holds_inputs(case: &ConvCase, outcome: &ConvOutcome) -> Outcome {
    let c = case.dims.channels();
    for (seq, slot, tokens) in case.windows.live() {
        let axes = [("token", tokens.len()), ("channel", c)];
        let got = &outcome.log[slot * case.max_tokens * c..][..tokens.len() * c];
        compare::bits("log.x", got, &case.x[tokens.start * c..tokens.end * c], &axes)
            .map_err(|e| format!("sequence {seq}: {e}"))?;
    }
    Ok(())
}

pub(super) fn exactness(backend: &dyn Backend, io: DType, tally: &mut Tally) -> Outcome {
    // Even cases have no pending entries.
    for index in (0..NUM_CASES / 2).map(|i| 2 * i) {
        let case = ConvCase::nth(io, index);
        if !supports(backend, &case, Capture::DeltaLog) {
            run(backend, &case, Capture::DeltaLog, Memory::PLAIN)?;
            tally.case(false);
            continue;
        }
        let label = case.label();
        let covered = if case.windows.has_tree() {
            trees::check(backend, index, case)
        } else {
            let out = vec![0.0; case.windows.num_tokens() * case.dims.channels()];
            let states = vec![case.state.clone()];
            let mut suite = Suite { backend, index, out, states, case, calls: RefCell::default() };
            suite.check().map(|()| suite.calls.into_inner())
        };
        tally.coverage.merge(&covered.map_err(|e| format!("{e} (case: {label})"))?);
        tally.case(true);
    }
    Ok(())
}

struct Suite<'a> {
    backend: &'a dyn Backend,
    index: usize,
    case: ConvCase,
    /// `[T, C]`, decoded token by token.
    out: Vec<f32>,
    /// `[n][slots, W - 1, C]` after `n` tokens of each sequence, or all of a shorter one.
    states: Vec<Vec<f32>>,
    calls: RefCell<Coverage>,
}

impl Suite<'_> {
    fn check(&mut self) -> Outcome {
        self.decode()?;
        let checks: [Check<Self>; 6] = [
            ("a window equals decoding", Self::window_equals_decoding),
            ("a chain told by parents is a chain", Self::told_chain_is_a_chain),
            ("a window cut in two, and pending entries, equal decoding", Self::rounds_equal_decoding),
            ("sequences alone equal the batch", Self::alone_equals_batch),
            ("slots and order do not matter", Self::order_does_not_matter),
            ("later tokens do not change earlier results", Self::causal),
        ];
        for (what, check) in checks {
            check(self).map_err(|e| format!("{what}: {e}"))?;
        }
        Ok(())
    }

    fn call(&self, case: &ConvCase, capture: Capture, n: usize) -> Result<ConvOutcome, String> {
        let memory = Memory::nth(self.index / 2 + n);
        let outcome = run(self.backend, case, capture, memory)?.ok_or_else(|| "was refused".to_owned())?;
        self.calls.borrow_mut().record(case.options(capture, memory), 0.0);
        Ok(outcome)
    }

    fn longest(&self) -> usize {
        self.case.windows.longest()
    }

    fn part(&self, range: Range<usize>, state: &[f32]) -> ConvCase {
        let mut part = self.case.pick(&self.case.windows.within(range));
        part.state = state.to_vec();
        part
    }

    fn decode(&mut self) -> Outcome {
        let c = self.case.dims.channels();
        for t in 0..self.longest() {
            let step = self.part(t..t + 1, &self.states[t]);
            let outcome = self.call(&step, Capture::Final, t).map_err(|e| format!("decoding token {t}: {e}"))?;
            for (from, to) in step.windows.ranges().into_iter().zip(self.case.windows.ranges()) {
                if !from.is_empty() {
                    self.out[(to.start + t) * c..][..c].copy_from_slice(&outcome.out[from.start * c..][..c]);
                }
            }
            self.states.push(outcome.state);
        }
        Ok(())
    }

    fn same_state(&self, state: &[f32], n: usize) -> Outcome {
        compare::bits("state", state, &self.states[n], &state_axes(&self.case))
            .map_err(|e| format!("after {n} tokens: {e}"))
    }

    fn same_part(&self, range: Range<usize>, part: &ConvCase, out: &[f32]) -> Outcome {
        let (_, tokens) = self.case.windows.pick(&self.case.windows.within(range.clone()));
        let expected = crate::cases::gather(&self.out, self.case.dims.channels(), &tokens);
        compare::bits("out", out, &expected, &out_axes(part)).map_err(|e| format!("tokens {range:?}: {e}"))
    }

    fn window_equals_decoding(&self) -> Outcome {
        for n in 0..4 {
            let outcome = self.call(&self.case, Capture::Final, n)?;
            self.same_part(0..usize::MAX, &self.case, &outcome.out)?;
            self.same_state(&outcome.state, self.longest())?;
            let outcome = self.call(&self.case, Capture::DeltaLog, n)?;
            self.same_part(0..usize::MAX, &self.case, &outcome.out)?;
            self.same_state(&outcome.state, 0)?;
            log_holds_inputs(&self.case, &outcome)?;
        }
        Ok(())
    }

    fn told_chain_is_a_chain(&self) -> Outcome {
        let mut told = self.case.clone();
        told.windows.parents = told.windows.lens.iter().flat_map(|&len| (0..len as i32).map(|t| t - 1)).collect();
        for (n, capture) in [Capture::Final, Capture::DeltaLog].into_iter().enumerate() {
            let outcome = self.call(&told, capture, n)?;
            self.same_part(0..usize::MAX, &told, &outcome.out)?;
            self.same_state(&outcome.state, if capture == Capture::Final { self.longest() } else { 0 })?;
        }
        Ok(())
    }

    fn rounds_equal_decoding(&self) -> Outcome {
        for cut in 0..=self.longest() {
            let head = self.part(0..cut, &self.case.state);
            let decoded = self.call(&head, Capture::Final, cut)?;
            self.same_part(0..cut, &head, &decoded.out)?;
            self.same_state(&decoded.state, cut)?;
            let tail = self.part(cut..usize::MAX, &decoded.state);
            self.same_part(cut..usize::MAX, &tail, &self.call(&tail, Capture::Final, cut + 1)?.out)?;

            let first = self.call(&head, Capture::DeltaLog, cut)?;
            for n in [0, cut / 2, cut] {
                let mut next = self.part(n..usize::MAX, &first.state);
                next.log = first.log.clone();
                next.num_pending = self.case.windows.lens.iter().map(|&len| len.min(n) as u32).collect();
                let replay = next.pick(&next.windows.within(0..0));
                self.same_state(&self.call(&replay, Capture::DeltaLog, n)?.state, n)?;
                let verified = self.call(&next, Capture::DeltaLog, n + 1)?;
                self.same_part(n..usize::MAX, &next, &verified.out)?;
                self.same_state(&verified.state, n)?;
                log_holds_inputs(&next, &verified)?;
                let decoded = self.call(&next, Capture::Final, n + 2)?;
                self.same_part(n..usize::MAX, &next, &decoded.out)?;
                self.same_state(&decoded.state, self.longest())?;
            }
        }
        Ok(())
    }

    fn alone_equals_batch(&self) -> Outcome {
        let (c, len) = (self.case.dims.channels(), self.case.dims.state_len());
        for (seq, slot, tokens) in self.case.windows.live() {
            let alone = self.case.pick(&[(seq, 0..tokens.len())]).relocated(&[0], 1);
            let outcome = self.call(&alone, Capture::Final, seq)?;
            let at = |e| format!("sequence {seq}: {e}");
            compare::bits("out", &outcome.out, &self.out[tokens.start * c..tokens.end * c], &out_axes(&alone))
                .map_err(at)?;
            let expected = &self.states[self.longest()][slot * len..][..len];
            compare::bits("state", &outcome.state, expected, &state_axes(&alone)).map_err(at)?;
        }
        Ok(())
    }

    fn order_does_not_matter(&self) -> Outcome {
        let mut rng = Rng::new(self.index as u64 + 1);
        let num_seqs = self.case.windows.num_seqs();
        let order = rng.permutation(num_seqs);
        let picked: Vec<(usize, Range<usize>)> =
            order.iter().map(|&seq| (seq, 0..self.case.windows.lens[seq])).collect();
        let moved = self.case.pick(&picked).relocated(&rng.permutation(num_seqs + 2), num_seqs + 2);
        let outcome = self.call(&moved, Capture::Final, 1)?;
        let (_, tokens) = self.case.windows.pick(&picked);
        let expected = crate::cases::gather(&self.out, self.case.dims.channels(), &tokens);
        compare::bits("out", &outcome.out, &expected, &out_axes(&moved))?;
        let expected = self.case.pick(&picked).windows.carry(
            &moved.windows,
            self.case.dims.state_len(),
            &self.states[self.longest()],
        );
        compare::bits("state", &outcome.state, &expected, &state_axes(&moved))
    }

    fn causal(&self) -> Outcome {
        let c = self.case.dims.channels();
        for from in 1..self.longest() {
            let mut spoiled = self.case.clone();
            spoiled.spoil_from(from);
            let outcome = self.call(&spoiled, Capture::DeltaLog, from)?;
            for (seq, _, tokens) in self.case.windows.live() {
                let rows = tokens.start * c..(tokens.start + from.min(tokens.len())) * c;
                let axes = [("token", from.min(tokens.len())), ("channel", c)];
                compare::bits("out", &outcome.out[rows.clone()], &self.out[rows], &axes)
                    .map_err(|e| format!("tokens from {from} on are NaN, sequence {seq}: {e}"))?;
            }
        }
        Ok(())
    }
}
