//! The chunked form: near the recurrence, finite at every decay, the same bits on every run.

use undraft_core::{Backend, DType, Op, Rounding};

use super::Tally;
use super::fused_recurrent_gated_delta_rule::{out_axes, state_axes};
use crate::cases::fused_recurrent_gated_delta_rule::{DeltaRuleCase, NUM_PROMPTS};
use crate::compare;
use crate::harness::{Memory, chunk_gated_delta_rule::run};
use crate::tolerance::{Tensor, tolerance};

pub(super) fn values(backend: &dyn Backend, io: DType, tally: &mut Tally) -> Result<(), String> {
    for index in 0..NUM_PROMPTS {
        let case = DeltaRuleCase::nth_prompt(io, index);
        let at = |e| format!("{}: {e}", case.label());
        let Some([out, state]) = run(backend, &case, Memory::nth(index)).map_err(at)? else {
            tally.case(false);
            continue;
        };
        let oracle = case.oracle().solve(false);
        let bound = |tensor| tolerance(Op::ChunkGatedDeltaRule, tensor, io, case.rounding == Rounding::Io);
        let (of_out, of_state) = (bound(Tensor::Out), bound(Tensor::State));
        tally.deviation(compare::values("out", &out, &oracle.out, &out_axes(&case), of_out).map_err(at)?, of_out);
        let deviation = compare::values("state", &state, &oracle.state_after, &state_axes(&case), of_state);
        tally.deviation(deviation.map_err(at)?, of_state);
        tally.call(case.prompt_options(Memory::nth(index)));
        tally.case(true);
    }
    Ok(())
}

pub(super) fn exactness(backend: &dyn Backend, io: DType, tally: &mut Tally) -> Result<(), String> {
    for index in (0..NUM_PROMPTS).step_by(3) {
        let case = DeltaRuleCase::nth_prompt(io, index);
        let at = |e| format!("{}: {e}", case.label());
        let Some([out, state]) = run(backend, &case, Memory::PLAIN).map_err(at)? else {
            tally.case(false);
            continue;
        };
        // In turn the same memory once more, and another.
        let memory = Memory::nth(index + 1);
        let Some([again, state_again]) = run(backend, &case, memory).map_err(at)? else { continue };
        let twice = |e| format!("run again in {memory:?}: {}: {e}", case.label());
        compare::bits("out", &again, &out, &out_axes(&case)).map_err(twice)?;
        compare::bits("state", &state_again, &state, &state_axes(&case)).map_err(twice)?;
        tally.call(case.prompt_options(Memory::PLAIN));
        tally.case(true);
    }
    Ok(())
}
