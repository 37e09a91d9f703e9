//! The chunked form: near the recurrence wherever a prompt is cut, finite at every decay, causal, the same bits on every run.

use undraft_core::{Backend, DType, Op, Rounding};

use super::Tally;
use super::fused_recurrent_gated_delta_rule::{out_axes, slot_axes, state_axes};
use crate::cases::fused_recurrent_gated_delta_rule::{DeltaRuleCase, NUM_PROMPTS};
use crate::compare::{self, Axes};
use crate::harness::Memory;
use crate::harness::chunk_gated_delta_rule::{ChunkOutcome, run};
use crate::tolerance::{Tensor, Tolerance, tolerance};

/// Tokens between two checkpoints, in turn.
const EVERY: [Option<usize>; 5] = [None, Some(64), Some(1), Some(40), Some(128)];

/// Bounds of outputs and of states. A 16-bit state is compared with the oracle's f64 state rounded once, where it is stored.
fn bounds(case: &DeltaRuleCase) -> (Tolerance, Tolerance) {
    let of = |tensor| tolerance(Op::ChunkGatedDeltaRule, tensor, case.io, case.rounding == Rounding::Io);
    (of(Tensor::Out), of(Tensor::State).with_state(case.state_dtype, case.dims.state_len()))
}

pub(super) fn values(backend: &dyn Backend, io: DType, tally: &mut Tally) -> Result<(), String> {
    for index in 0..NUM_PROMPTS {
        let case = DeltaRuleCase::nth_prompt(io, index);
        let (every, memory) = (EVERY[index % EVERY.len()], Memory::nth(index));
        let at = |e| format!("checkpoints {every:?}, {}: {e}", case.label());
        let Some(outcome) = run(backend, &case, every, memory).map_err(at)? else {
            tally.case(false);
            continue;
        };
        compare_all(&case, every, &outcome, tally).map_err(at)?;
        tally.call(case.prompt_options(memory));
        tally.case(true);
    }
    Ok(())
}

fn compare_all(
    case: &DeltaRuleCase,
    every: Option<usize>,
    outcome: &ChunkOutcome,
    tally: &mut Tally,
) -> Result<(), String> {
    let mut oracle = case.oracle();
    oracle.state_dtype = DType::F32;
    let solution = oracle.solve(every.is_some());
    let (of_out, of_state) = bounds(case);
    let mut near = |arg: &str, got: &[f32], expected: &[f64], axes: Axes<'_>, bound| -> Result<(), String> {
        tally.deviation(compare::values(arg, got, expected, axes, bound)?, bound);
        Ok(())
    };
    near("out", &outcome.out, &solution.out, &out_axes(case), of_out)?;
    let stored = |state: &[f64]| -> Vec<f64> { state.iter().map(|&x| stored_as(case.state_dtype, x)).collect() };
    near("state", &outcome.state, &stored(&solution.state_after), &state_axes(case), of_state)?;
    let (len, mut checkpoint) = (case.dims.state_len(), 0);
    for (seq, tokens) in case.windows.ranges().into_iter().enumerate() {
        for n in 1..=every.map_or(0, |every| tokens.len() / every) {
            let got = &outcome.checkpoints[checkpoint * len..][..len];
            checkpoint += 1;
            if case.windows.slots[seq] >= 0 {
                let last = tokens.start + n * every.unwrap_or(0) - 1;
                near(
                    &format!("checkpoint {n} of sequence {seq}"),
                    got,
                    &stored(&solution.states[last]),
                    &slot_axes(case),
                    of_state,
                )?;
            }
        }
    }
    Ok(())
}

fn stored_as(dtype: DType, x: f64) -> f64 {
    if dtype == DType::F32 { x } else { f64::from(dtype.round(x as f32)) }
}

pub(super) fn exactness(backend: &dyn Backend, io: DType, tally: &mut Tally) -> Result<(), String> {
    for index in (0..NUM_PROMPTS).step_by(2) {
        let case = DeltaRuleCase::nth_prompt(io, index);
        let at = |e| format!("{}: {e}", case.label());
        let Some(first) = run(backend, &case, None, Memory::PLAIN).map_err(at)? else {
            tally.case(false);
            continue;
        };
        again(backend, &case, index, &first).map_err(at)?;
        causal(backend, &case, &first).map_err(at)?;
        cut(backend, &case, index, tally).map_err(at)?;
        tally.call(case.prompt_options(Memory::PLAIN));
        tally.case(true);
    }
    Ok(())
}

fn refused() -> String {
    "was refused although it ran before".to_owned()
}

/// In another memory, and with checkpoints at the ends of chunks: the same bits.
fn again(backend: &dyn Backend, case: &DeltaRuleCase, index: usize, first: &ChunkOutcome) -> Result<(), String> {
    for (every, memory) in [(None, Memory::nth(index + 1)), (Some(64), Memory::nth(index + 2))] {
        let twice = |e| format!("run again in {memory:?}, checkpoints {every:?}: {e}");
        let outcome = run(backend, case, every, memory)?.ok_or_else(refused)?;
        compare::bits("out", &outcome.out, &first.out, &out_axes(case)).map_err(twice)?;
        compare::bits("state", &outcome.state, &first.state, &state_axes(case)).map_err(twice)?;
    }
    Ok(())
}

/// Later tokens, also of the same chunk, do not change earlier outputs.
fn causal(backend: &dyn Backend, case: &DeltaRuleCase, first: &ChunkOutcome) -> Result<(), String> {
    let row = case.dims.value_dim();
    for from in [1, 17, 70] {
        let mut spoiled = case.clone();
        spoiled.spoil_from(from);
        let outcome = run(backend, &spoiled, None, Memory::nth(from))?.ok_or_else(refused)?;
        for (seq, _, tokens) in case.windows.live() {
            let rows = tokens.start * row..(tokens.start + from.min(tokens.len())) * row;
            let axes = [("token", from.min(tokens.len())), ("element", row)];
            compare::bits("out", &outcome.out[rows.clone()], &first.out[rows], &axes)
                .map_err(|e| format!("tokens from {from} on are NaN, sequence {seq}: {e}"))?;
        }
    }
    Ok(())
}

/// Cut in two, the state handed on: near the oracle as well, and at a multiple of 64 with f32 states the same bits.
fn cut(backend: &dyn Backend, case: &DeltaRuleCase, index: usize, tally: &mut Tally) -> Result<(), String> {
    let whole = run(backend, case, None, Memory::PLAIN)?.ok_or_else(refused)?;
    for at in [1, 40, 64, 1 + index % 99] {
        let head = case.pick(&case.windows.within(0..at));
        let first = run(backend, &head, None, Memory::nth(at))?.ok_or_else(refused)?;
        let mut tail = case.pick(&case.windows.within(at..usize::MAX));
        tail.state = first.state;
        let second = run(backend, &tail, None, Memory::nth(at + 1))?.ok_or_else(refused)?;
        let what = |e| format!("cut after {at} tokens: {e}");
        let joined =
            ChunkOutcome { out: join(case, at, &first.out, &second.out), state: second.state, checkpoints: Vec::new() };
        if at == 64 && case.state_dtype == DType::F32 {
            compare::bits("out", &joined.out, &whole.out, &out_axes(case)).map_err(what)?;
            compare::bits("state", &joined.state, &whole.state, &state_axes(case)).map_err(what)?;
        } else if case.state_dtype == DType::F32 {
            compare_all(case, None, &joined, tally).map_err(what)?;
        }
    }
    Ok(())
}

/// Outputs of the first `at` tokens of each sequence and of the rest, in the case's order.
fn join(case: &DeltaRuleCase, at: usize, first: &[f32], second: &[f32]) -> Vec<f32> {
    let row = case.dims.value_dim();
    let (mut joined, mut heads, mut tails) = (Vec::new(), 0, 0);
    for &len in &case.windows.lens {
        let (head, tail) = (len.min(at) * row, (len - len.min(at)) * row);
        joined.extend_from_slice(&first[heads..heads + head]);
        joined.extend_from_slice(&second[tails..tails + tail]);
        (heads, tails) = (heads + head, tails + tail);
    }
    joined
}
