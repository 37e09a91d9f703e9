//! Outputs, states, captures and log entries against the oracle.

use undraft_core::{Backend, Capture, DType, Op, Rounding};

use super::super::Tally;
use super::{out_axes, slot_axes, state_axes};
use crate::cases::fused_recurrent_gated_delta_rule::{DeltaRuleCase, NUM_CASES};
use crate::compare::{self, Axes};
use crate::harness::Memory;
use crate::harness::fused_recurrent_gated_delta_rule::{DeltaRuleOutcome, run};
use crate::oracle::fused_recurrent_gated_delta_rule::Solution;
use crate::tolerance::{Tensor, tolerance};

pub(in super::super) fn values(backend: &dyn Backend, io: DType, tally: &mut Tally) -> Result<(), String> {
    for index in 0..NUM_CASES {
        let case = DeltaRuleCase::nth(io, index);
        let oracle = case.oracle().solve(true);
        for (n, capture) in [Capture::Final, Capture::DeltaLog, Capture::PerToken].into_iter().enumerate() {
            if capture == Capture::Final && case.windows.has_tree() {
                continue;
            }
            let at = |e| format!("capture {capture:?}, {}: {e}", case.label());
            match run(backend, &case, capture, Memory::nth(index + n)).map_err(at)? {
                None => tally.case(false),
                Some(outcome) => {
                    compare_all(&case, capture, &outcome, &oracle, tally).map_err(at)?;
                    tally.call(case.options(capture, Memory::nth(index + n)));
                    tally.case(true);
                }
            }
        }
    }
    Ok(())
}

fn compare_all(
    case: &DeltaRuleCase,
    capture: Capture,
    outcome: &DeltaRuleOutcome,
    oracle: &Solution,
    tally: &mut Tally,
) -> Result<(), String> {
    let mut near = |arg: &str, tensor, got: &[f32], expected: &[f64], axes: Axes<'_>| -> Result<(), String> {
        let bound = tolerance(Op::FusedRecurrentGatedDeltaRule, tensor, case.io, case.rounding == Rounding::Io)
            .with_state(case.state_dtype, expected.len());
        tally.deviation(compare::values(arg, got, expected, axes, bound)?, bound);
        Ok(())
    };
    near("out", Tensor::Out, &outcome.out, &oracle.out, &out_axes(case))?;
    let state = if capture == Capture::Final { &oracle.state_after } else { &oracle.state_before };
    near("state", Tensor::State, &outcome.state, state, &state_axes(case))?;
    if capture == Capture::PerToken {
        for (seq, _, tokens) in case.windows.live() {
            for (t, token) in tokens.enumerate() {
                let arg = format!("capture.states of sequence {seq}, token {t}");
                near(&arg, Tensor::State, outcome.captured(seq, t), &oracle.states[token], &slot_axes(case))?;
            }
        }
    }
    if capture == Capture::DeltaLog {
        let (d, log) = (&case.dims, &outcome.log);
        let (h, hv) = (("head", d.num_k_heads()), ("head", d.num_v_heads()));
        let tokens = ("token", case.windows.num_tokens());
        let k = in_token_order(case, &log.k, d.key_dim());
        near("log.k", Tensor::State, &k, &oracle.k, &[tokens, h, ("column", d.head_k_dim())])?;
        let decay = in_token_order(case, &log.decay, d.decay_len());
        near("log.decay", Tensor::State, &decay, &oracle.decay, &[tokens, hv, ("column", d.decay_dim())])?;
        let delta = in_token_order(case, &log.delta, d.value_dim());
        near("log.delta", Tensor::State, &delta, &oracle.delta, &[tokens, hv, ("row", d.head_v_dim())])?;
    }
    Ok(())
}

/// Log entries of the window as `[T, row]`; zeros at padding.
pub(super) fn in_token_order(case: &DeltaRuleCase, log: &[f32], row: usize) -> Vec<f32> {
    let mut values = vec![0.0; case.windows.num_tokens() * row];
    for (_, slot, tokens) in case.windows.live() {
        let from = slot * case.log.max_tokens * row;
        values[tokens.start * row..tokens.end * row].copy_from_slice(&log[from..][..tokens.len() * row]);
    }
    values
}
