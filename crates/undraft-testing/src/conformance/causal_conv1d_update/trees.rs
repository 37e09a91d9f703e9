//! Draft trees bit for bit: every node is what decoding along its path gives, whatever else the tree holds.

use std::cell::RefCell;

use undraft_core::{Backend, Capture};

use super::{Check, Outcome, log_holds_inputs, out_axes, state_axes};
use crate::Rng;
use crate::cases::causal_conv1d_update::ConvCase;
use crate::compare;
use crate::coverage::Coverage;
use crate::harness::Memory;
use crate::harness::causal_conv1d_update::{ConvOutcome, run};

/// Checks a case with trees; gives its calls.
pub(super) fn check(backend: &dyn Backend, index: usize, case: ConvCase) -> Result<Coverage, String> {
    let out = vec![0.0; case.windows.num_tokens() * case.dims.channels()];
    let states = vec![Vec::new(); case.windows.num_tokens()];
    let mut suite = Suite { backend, index, out, states, case, calls: RefCell::default() };
    suite.decode()?;
    let checks: [Check<Suite<'_>>; 4] = [
        ("a tree equals decoding along its paths", Suite::tree_equals_decoding),
        ("a pending path equals decoding it", Suite::pending_equals_decoding),
        ("tokens that are no ancestors do not matter", Suite::only_ancestors_matter),
        ("trees alone equal the batch", Suite::alone_equals_batch),
    ];
    for (what, check) in checks {
        check(&suite).map_err(|e| format!("{what}: {e}"))?;
    }
    Ok(suite.calls.into_inner())
}

struct Suite<'a> {
    backend: &'a dyn Backend,
    index: usize,
    case: ConvCase,
    /// `[T, C]`, each node decoded as a single token from the state after its parent.
    out: Vec<f32>,
    /// `[T][W - 1, C]` after each node; empty at padding.
    states: Vec<Vec<f32>>,
    calls: RefCell<Coverage>,
}

impl Suite<'_> {
    fn call(&self, case: &ConvCase, capture: Capture, n: usize) -> Result<ConvOutcome, String> {
        let memory = Memory::nth(self.index / 2 + n);
        let outcome = run(self.backend, case, capture, memory)?.ok_or_else(|| "was refused".to_owned())?;
        self.calls.borrow_mut().record(case.options(capture, memory), 0.0);
        Ok(outcome)
    }

    /// `[slots, W - 1, C]` with the state after node `nodes[seq]` of each sequence; `None` is the state as it was.
    fn states_after(&self, nodes: &[Option<usize>]) -> Vec<f32> {
        let (mut state, len) = (self.case.state.clone(), self.case.dims.state_len());
        for (seq, slot, tokens) in self.case.windows.live() {
            if let Some(node) = nodes[seq] {
                state[slot * len..][..len].copy_from_slice(&self.states[tokens.start + node]);
            }
        }
        state
    }

    fn decode(&mut self) -> Outcome {
        let (c, len) = (self.case.dims.channels(), self.case.dims.state_len());
        let windows = self.case.windows.clone();
        for t in 0..windows.longest() {
            let parents: Vec<Option<usize>> = (0..windows.num_seqs())
                .map(|seq| if t < windows.lens[seq] { windows.parent(seq, t) } else { None })
                .collect();
            let mut step = self.case.pick(&windows.within(t..t + 1));
            step.state = self.states_after(&parents);
            let outcome = self.call(&step, Capture::Final, t).map_err(|e| format!("decoding position {t}: {e}"))?;
            for ((_, slot, from), (_, _, to)) in step.windows.live().zip(windows.live()) {
                if !from.is_empty() {
                    self.out[(to.start + t) * c..][..c].copy_from_slice(&outcome.out[from.start * c..][..c]);
                    self.states[to.start + t] = outcome.state[slot * len..][..len].to_vec();
                }
            }
        }
        Ok(())
    }

    fn tree_equals_decoding(&self) -> Outcome {
        for n in 0..4 {
            let outcome = self.call(&self.case, Capture::DeltaLog, n)?;
            compare::bits("out", &outcome.out, &self.out, &out_axes(&self.case))?;
            compare::bits("state", &outcome.state, &self.case.state, &state_axes(&self.case))?;
            log_holds_inputs(&self.case, &outcome)?;
        }
        Ok(())
    }

    /// The next window, a tree or a chain, after a path of this one was chosen.
    fn pending_equals_decoding(&self) -> Outcome {
        let (windows, max_tokens) = (&self.case.windows, self.case.max_tokens);
        let verified = self.call(&self.case, Capture::DeltaLog, 3)?;
        let mut rng = Rng::new(self.index as u64);
        for n in 0..windows.longest() + 4 {
            let nodes: Vec<Option<usize>> = (0..windows.num_seqs())
                .map(|seq| match n.checked_sub(4) {
                    Some(t) => Some(t).filter(|&t| t < windows.lens[seq]),
                    None => rng.below(windows.lens[seq] + 1).checked_sub(1),
                })
                .collect();
            let mut num_pending = vec![u32::MAX; windows.num_seqs()];
            let mut pending_path = vec![u32::MAX; windows.num_seqs() * max_tokens];
            for (seq, _, _) in windows.live() {
                let path = nodes[seq].map_or_else(Vec::new, |node| windows.path(seq, node));
                num_pending[seq] = path.len() as u32;
                for (to, &entry) in pending_path[seq * max_tokens..].iter_mut().zip(&path) {
                    *to = entry as u32;
                }
            }
            let mut plain = self.case.clone();
            plain.state = self.states_after(&nodes);
            if n % 2 == 0 {
                plain.windows.parents.clear();
            }
            let mut next = ConvCase { num_pending, pending_path, log: verified.log.clone(), ..plain.clone() };
            next.state.clone_from(&verified.state);
            for capture in [Capture::DeltaLog, Capture::Final] {
                if plain.windows.has_tree() && capture == Capture::Final {
                    continue;
                }
                let (expected, got) = (self.call(&plain, capture, n)?, self.call(&next, capture, n + 1)?);
                let at = |e| format!("nodes {nodes:?}, capture {capture:?}: {e}");
                compare::bits("out", &got.out, &expected.out, &out_axes(&plain)).map_err(at)?;
                compare::bits("state", &got.state, &expected.state, &state_axes(&plain)).map_err(at)?;
            }
        }
        Ok(())
    }

    fn only_ancestors_matter(&self) -> Outcome {
        let (windows, c) = (&self.case.windows, self.case.dims.channels());
        let mut rng = Rng::new(self.index as u64 + 1);
        for n in 0..6 {
            // Half the time all later siblings, then everything but the path of one node of each sequence.
            let nodes: Vec<usize> = windows.lens.iter().map(|&len| rng.below(len.max(1))).collect();
            let kept = |seq: usize, t: usize| match n % 2 {
                _ if windows.lens[seq] == 0 => false,
                0 => t <= nodes[seq],
                _ => windows.path(seq, nodes[seq]).contains(&t),
            };
            let mut spoiled = self.case.clone();
            spoiled.spoil(|seq, t| !kept(seq, t));
            let outcome = self.call(&spoiled, Capture::DeltaLog, n)?;
            for (seq, _, tokens) in windows.live() {
                for (t, token) in tokens.enumerate().filter(|&(t, _)| kept(seq, t)) {
                    let range = token * c..(token + 1) * c;
                    compare::bits("out", &outcome.out[range.clone()], &self.out[range], &[("channel", c)])
                        .map_err(|e| format!("sequence {seq}, token {t}, all but {nodes:?} NaN: {e}"))?;
                }
            }
        }
        Ok(())
    }

    fn alone_equals_batch(&self) -> Outcome {
        let c = self.case.dims.channels();
        for (seq, _, tokens) in self.case.windows.live() {
            let alone = self.case.pick(&[(seq, 0..tokens.len())]).relocated(&[1], 2);
            let outcome = self.call(&alone, Capture::DeltaLog, seq)?;
            compare::bits("out", &outcome.out, &self.out[tokens.start * c..tokens.end * c], &out_axes(&alone))
                .map_err(|e| format!("sequence {seq}: {e}"))?;
        }
        Ok(())
    }
}
