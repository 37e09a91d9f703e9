//! Draft trees bit for bit: every node is what decoding along its path gives, whatever else the tree holds.

use std::cell::RefCell;

use undraft_core::{Backend, Capture};

use super::exactness::{Check, Outcome, commit_case, commits};
use super::values::in_token_order;
use super::{out_axes, slot_axes, state_axes};
use crate::Rng;
use crate::cases::commit_states::CommitCase;
use crate::cases::fused_recurrent_gated_delta_rule::{DeltaRuleCase, LogData};
use crate::compare;
use crate::coverage::Coverage;
use crate::harness::fused_recurrent_gated_delta_rule::{DeltaRuleOutcome, run, supports};
use crate::harness::{Memory, commit_states};

/// Checks a case with trees; gives its calls.
pub(super) fn check(backend: &dyn Backend, index: usize, case: DeltaRuleCase) -> Result<Coverage, String> {
    let mut suite = Suite { backend, index, decoded: Decoded::new(&case), case, calls: RefCell::default() };
    suite.decode()?;
    let checks: [Check<Suite<'_>>; 7] = [
        ("a tree under `DeltaLog` equals decoding along its paths", Suite::log_equals_decoding),
        ("a tree under `PerToken` equals decoding along its paths", Suite::per_token_equals_decoding),
        ("commit of a path equals decoding it", Suite::commit_equals_decoding),
        ("replay of a pending path equals commit", Suite::pending_equals_commit),
        ("tokens that are no ancestors do not matter", Suite::only_ancestors_matter),
        ("trees alone equal the batch", Suite::alone_equals_batch),
        ("heads alone equal the layer", Suite::heads_alone),
    ];
    for (what, check) in checks {
        check(&suite).map_err(|e| format!("{what}: {e}"))?;
    }
    Ok(suite.calls.into_inner())
}

/// Every node decoded as a single token from the state after its parent; `[T, ..]` in token order, zeros at padding.
struct Decoded {
    out: Vec<f32>,
    k: Vec<f32>,
    decay: Vec<f32>,
    delta: Vec<f32>,
    /// `[T][HV, V, K]`.
    states: Vec<Vec<f32>>,
}

impl Decoded {
    fn new(case: &DeltaRuleCase) -> Self {
        let (d, n) = (&case.dims, case.windows.num_tokens());
        let zeros = |row: usize| vec![0.0; n * row];
        let (out, delta) = (zeros(d.value_dim()), zeros(d.value_dim()));
        Self { out, k: zeros(d.key_dim()), decay: zeros(d.decay_len()), delta, states: vec![Vec::new(); n] }
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
    fn call(&self, case: &DeltaRuleCase, capture: Capture, n: usize) -> Result<DeltaRuleOutcome, String> {
        let memory = Memory::nth(self.index / 2 + n);
        let outcome = run(self.backend, case, capture, memory)?.ok_or_else(|| "was refused".to_owned())?;
        self.calls.borrow_mut().record(case.options(capture, memory), 0.0);
        Ok(outcome)
    }

    /// `[slots, HV, V, K]` with the state after node `nodes[seq]` of each sequence; `None` is the state as it was.
    fn states_after(&self, nodes: &[Option<usize>]) -> Vec<f32> {
        let (mut state, len) = (self.case.state.clone(), self.case.dims.state_len());
        for (seq, slot, tokens) in self.case.windows.live() {
            if let Some(node) = nodes[seq] {
                state[slot * len..][..len].copy_from_slice(&self.decoded.states[tokens.start + node]);
            }
        }
        state
    }

    fn decode(&mut self) -> Outcome {
        let (dims, len) = (self.case.dims, self.case.dims.state_len());
        let windows = self.case.windows.clone();
        for t in 0..windows.longest() {
            let parents: Vec<Option<usize>> = (0..windows.num_seqs())
                .map(|seq| if t < windows.lens[seq] { windows.parent(seq, t) } else { None })
                .collect();
            let mut step = self.case.pick(&windows.within(t..t + 1));
            step.state = self.states_after(&parents);
            let at = |e| format!("decoding position {t}: {e}");
            let moved = self.call(&step, Capture::Final, t).map_err(at)?;
            let logged = self.call(&step, Capture::DeltaLog, t + 1).map_err(at)?;
            let (k, decay, delta) = (
                in_token_order(&step, &logged.log.k, dims.key_dim()),
                in_token_order(&step, &logged.log.decay, dims.decay_len()),
                in_token_order(&step, &logged.log.delta, dims.value_dim()),
            );
            for ((_, slot, from), (_, _, to)) in step.windows.live().zip(windows.live()) {
                if from.is_empty() {
                    continue;
                }
                let (from, to) = (from.start, to.start + t);
                let copy = |to_rows: &mut [f32], rows: &[f32], row: usize| {
                    to_rows[to * row..(to + 1) * row].copy_from_slice(&rows[from * row..(from + 1) * row]);
                };
                copy(&mut self.decoded.out, &moved.out, dims.value_dim());
                copy(&mut self.decoded.k, &k, dims.key_dim());
                copy(&mut self.decoded.decay, &decay, dims.decay_len());
                copy(&mut self.decoded.delta, &delta, dims.value_dim());
                self.decoded.states[to] = moved.state[slot * len..][..len].to_vec();
            }
        }
        Ok(())
    }

    fn same_log(&self, log: &LogData) -> Outcome {
        let (case, d) = (&self.case, &self.case.dims);
        let (tokens, h, hv) =
            (("token", case.windows.num_tokens()), ("head", d.num_k_heads()), ("head", d.num_v_heads()));
        let k = in_token_order(case, &log.k, d.key_dim());
        compare::bits("log.k", &k, &self.decoded.k, &[tokens, h, ("column", d.head_k_dim())])?;
        let decay = in_token_order(case, &log.decay, d.decay_len());
        compare::bits("log.decay", &decay, &self.decoded.decay, &[tokens, hv, ("column", d.decay_dim())])?;
        let delta = in_token_order(case, &log.delta, d.value_dim());
        compare::bits("log.delta", &delta, &self.decoded.delta, &[tokens, hv, ("row", d.head_v_dim())])
    }

    fn log_equals_decoding(&self) -> Outcome {
        // Each memory: neither strides nor alignment may matter.
        for n in 0..4 {
            let outcome = self.call(&self.case, Capture::DeltaLog, n)?;
            compare::bits("out", &outcome.out, &self.decoded.out, &out_axes(&self.case))?;
            compare::bits("state", &outcome.state, &self.case.state, &state_axes(&self.case))?;
            self.same_log(&outcome.log)?;
        }
        Ok(())
    }

    fn per_token_equals_decoding(&self) -> Outcome {
        if !supports(self.backend, &self.case, Capture::PerToken) {
            return Ok(());
        }
        let outcome = self.call(&self.case, Capture::PerToken, 1)?;
        compare::bits("out", &outcome.out, &self.decoded.out, &out_axes(&self.case))?;
        compare::bits("state", &outcome.state, &self.case.state, &state_axes(&self.case))?;
        for (seq, _, tokens) in self.case.windows.live() {
            for (t, token) in tokens.enumerate() {
                let expected = &self.decoded.states[token];
                compare::bits("capture.states", outcome.captured(seq, t), expected, &slot_axes(&self.case))
                    .map_err(|e| format!("sequence {seq}, token {t}: {e}"))?;
            }
        }
        Ok(())
    }

    /// Choices of a node for each sequence: every position, then random ones and none.
    fn choices(&self) -> Vec<Vec<Option<usize>>> {
        let (windows, mut rng) = (&self.case.windows, Rng::new(self.index as u64));
        let seqs = 0..windows.num_seqs();
        let all = (0..windows.longest())
            .map(|t| seqs.clone().map(|seq| Some(t).filter(|&t| t < windows.lens[seq])).collect::<Vec<_>>());
        let mut any = || seqs.clone().map(|seq| rng.below(windows.lens[seq] + 1).checked_sub(1)).collect::<Vec<_>>();
        let random = [any(), any(), any()];
        all.chain(random).collect()
    }

    /// `num_kept` and `path` of these nodes; wild numbers at padding.
    fn paths_to(&self, nodes: &[Option<usize>]) -> (Vec<u32>, Vec<u32>) {
        let (windows, max_tokens) = (&self.case.windows, self.case.log.max_tokens);
        let mut counts = vec![u32::MAX; windows.num_seqs()];
        let mut paths = vec![u32::MAX; windows.num_seqs() * max_tokens];
        for (seq, _, _) in windows.live() {
            let path = nodes[seq].map_or_else(Vec::new, |node| windows.path(seq, node));
            counts[seq] = path.len() as u32;
            for (to, &entry) in paths[seq * max_tokens..].iter_mut().zip(&path) {
                *to = entry as u32;
            }
        }
        (counts, paths)
    }

    fn commit_equals_decoding(&self) -> Outcome {
        if !commits(self.backend, &self.case) {
            return Ok(());
        }
        let outcome = self.call(&self.case, Capture::DeltaLog, 2)?;
        for (n, nodes) in self.choices().iter().enumerate() {
            let (num_kept, path) = self.paths_to(nodes);
            let commit = CommitCase { path, ..commit_case(&self.case, &outcome.state, &outcome.log, num_kept) };
            let state = commit_states::run(self.backend, &commit, Memory::nth(self.index / 2 + n))?;
            let state = state.ok_or_else(|| "was refused".to_owned())?;
            compare::bits("state", &state, &self.states_after(nodes), &state_axes(&self.case))
                .map_err(|e| format!("nodes {nodes:?}: {e}"))?;
        }
        Ok(())
    }

    /// The next window, a tree or a chain, after a path of this one was chosen.
    fn pending_equals_commit(&self) -> Outcome {
        let verified = self.call(&self.case, Capture::DeltaLog, 3)?;
        let choices = self.choices();
        for (n, nodes) in choices.iter().enumerate().rev().take(5) {
            let (num_pending, pending_path) = self.paths_to(nodes);
            let mut plain = self.case.clone();
            plain.state = self.states_after(nodes);
            if n % 2 == 0 {
                plain.windows.parents.clear();
            }
            let mut next = DeltaRuleCase { num_pending, pending_path, log: verified.log.clone(), ..plain.clone() };
            next.state.clone_from(&verified.state);
            for capture in [Capture::DeltaLog, Capture::PerToken, Capture::Final] {
                if plain.windows.has_tree() && capture == Capture::Final || !supports(self.backend, &plain, capture) {
                    continue;
                }
                let (expected, got) = (self.call(&plain, capture, n)?, self.call(&next, capture, n + 1)?);
                let at = |e| format!("nodes {nodes:?}, capture {capture:?}: {e}");
                compare::bits("out", &got.out, &expected.out, &out_axes(&plain)).map_err(at)?;
                compare::bits("state", &got.state, &expected.state, &state_axes(&plain)).map_err(at)?;
                if capture == Capture::DeltaLog {
                    let delta = |log: &LogData| in_token_order(&plain, &log.delta, plain.dims.value_dim());
                    compare::bits("log.delta", &delta(&got.log), &delta(&expected.log), &out_axes(&plain))
                        .map_err(at)?;
                }
            }
            let none = next.pick(&next.windows.within(0..0));
            let replayed = self.call(&none, Capture::DeltaLog, n)?;
            compare::bits("state", &replayed.state, &plain.state, &state_axes(&plain))
                .map_err(|e| format!("nodes {nodes:?}, no token: {e}"))?;
        }
        Ok(())
    }

    fn only_ancestors_matter(&self) -> Outcome {
        let (windows, row) = (&self.case.windows, self.case.dims.value_dim());
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
            let delta = in_token_order(&self.case, &outcome.log.delta, row);
            for (seq, _, tokens) in windows.live() {
                for (t, token) in tokens.enumerate().filter(|&(t, _)| kept(seq, t)) {
                    let at = |e| format!("sequence {seq}, token {t}, all but {nodes:?} NaN: {e}");
                    let range = token * row..(token + 1) * row;
                    let axes = [("element", row)];
                    compare::bits("out", &outcome.out[range.clone()], &self.decoded.out[range.clone()], &axes)
                        .map_err(at)?;
                    compare::bits("log.delta", &delta[range.clone()], &self.decoded.delta[range], &axes).map_err(at)?;
                }
            }
        }
        Ok(())
    }

    fn alone_equals_batch(&self) -> Outcome {
        let row = self.case.dims.value_dim();
        for (seq, _, tokens) in self.case.windows.live() {
            let alone = self.case.pick(&[(seq, 0..tokens.len())]).relocated(&[1], 2);
            let outcome = self.call(&alone, Capture::DeltaLog, seq)?;
            let expected = &self.decoded.out[tokens.start * row..tokens.end * row];
            compare::bits("out", &outcome.out, expected, &out_axes(&alone))
                .map_err(|e| format!("sequence {seq}: {e}"))?;
        }
        Ok(())
    }

    fn heads_alone(&self) -> Outcome {
        let (hv, v) = (self.case.dims.num_v_heads(), self.case.dims.head_v_dim());
        for head in [0, hv / 2, hv - 1] {
            let alone = self.case.head(head);
            let outcome = self.call(&alone, Capture::DeltaLog, head)?;
            let rows = self.decoded.out.chunks_exact(hv * v);
            let expected: Vec<f32> = rows.flat_map(|row| row[head * v..][..v].iter().copied()).collect();
            compare::bits("out", &outcome.out, &expected, &out_axes(&alone))
                .map_err(|e| format!("head {head}: {e}"))?;
        }
        Ok(())
    }
}
