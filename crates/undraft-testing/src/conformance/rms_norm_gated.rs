//! The gated norm: near the oracle; no row depends on another.

use undraft_core::{Backend, DType, Op};

use super::Tally;
use crate::cases::rms_norm_gated::{NUM_CASES, NormCase};
use crate::compare;
use crate::harness::{Memory, rms_norm_gated::run};
use crate::tolerance::{Tensor, tolerance};

pub(super) fn values(backend: &dyn Backend, io: DType, tally: &mut Tally) -> Result<(), String> {
    let bound = tolerance(Op::RmsNormGated, Tensor::Out, io, false);
    for index in 0..NUM_CASES {
        let case = NormCase::nth(io, index);
        let at = |e| format!("{}: {e}", case.label());
        let Some(out) = run(backend, &case, Memory::nth(index)).map_err(at)? else {
            tally.case(false);
            continue;
        };
        let axes = [("row", case.num_rows), ("head", case.num_heads), ("element", case.head_dim)];
        tally.deviation(compare::values("out", &out, &case.oracle().solve(), &axes, bound).map_err(at)?, bound);
        tally.call(case.options(Memory::nth(index)));
        tally.case(true);
    }
    Ok(())
}

pub(super) fn exactness(backend: &dyn Backend, io: DType, tally: &mut Tally) -> Result<(), String> {
    for index in 0..NUM_CASES {
        let case = NormCase::nth(io, index);
        let at = |e| format!("{}: {e}", case.label());
        let Some(all) = run(backend, &case, Memory::nth(index)).map_err(at)? else {
            tally.case(false);
            continue;
        };
        let len = case.num_heads * case.head_dim;
        for row in 0..case.num_rows {
            let Some(one) = run(backend, &case.row(row), Memory::nth(index + row)).map_err(at)? else { continue };
            let axes = [("head", case.num_heads), ("element", case.head_dim)];
            compare::bits("out", &one, &all[row * len..(row + 1) * len], &axes)
                .map_err(|e| format!("row {row} of {}, alone: {e}", case.label()))?;
        }
        tally.call(case.options(Memory::nth(index)));
        tally.case(true);
    }
    Ok(())
}
