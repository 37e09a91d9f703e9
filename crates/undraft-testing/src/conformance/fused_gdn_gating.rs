//! The gate: nearly the correctly rounded value, element by element; no token depends on another.

use undraft_core::{Backend, DType, Op};

use super::Tally;
use crate::cases::fused_gdn_gating::{GatingCase, NUM_CASES};
use crate::compare;
use crate::harness::{Memory, fused_gdn_gating::run};
use crate::tolerance::{Tensor, tolerance};

pub(super) fn values(backend: &dyn Backend, io: DType, tally: &mut Tally) -> Result<(), String> {
    let bound = tolerance(Op::FusedGdnGating, Tensor::State, io, false).rel_rms;
    for index in 0..NUM_CASES {
        let case = GatingCase::nth(io, index);
        let at = |e| format!("{}: {e}", case.label());
        let Some([g, beta]) = run(backend, &case, Memory::nth(index)).map_err(at)? else {
            tally.case(false);
            continue;
        };
        let (oracle_g, oracle_beta) = case.oracle().solve();
        let axes = [("token", case.num_tokens), ("head", case.num_v_heads), ("decay", case.decay_dim)];
        tally.near(compare::each("g", &g, &oracle_g, &axes, bound).map_err(at)?, bound);
        let axes = &axes[..2];
        tally.near(compare::each("beta", &beta, &oracle_beta, axes, bound).map_err(at)?, bound);
        tally.call(case.options(Memory::nth(index)));
        tally.case(true);
    }
    Ok(())
}

pub(super) fn exactness(backend: &dyn Backend, io: DType, tally: &mut Tally) -> Result<(), String> {
    for index in 0..NUM_CASES {
        let case = GatingCase::nth(io, index);
        let at = |e| format!("{}: {e}", case.label());
        let Some(all) = run(backend, &case, Memory::nth(index)).map_err(at)? else {
            tally.case(false);
            continue;
        };
        for t in 0..case.num_tokens {
            let Some(one) = run(backend, &case.token(t), Memory::nth(index + t)).map_err(at)? else { continue };
            for (arg, all, one, decays) in [("g", &all[0], &one[0], case.decay_dim), ("beta", &all[1], &one[1], 1)] {
                let axes = [("head", case.num_v_heads), ("decay", decays)];
                let row = t * case.num_v_heads * decays..(t + 1) * case.num_v_heads * decays;
                let alone = |e| format!("token {t} of {}, alone: {e}", case.label());
                compare::bits(arg, one, &all[row], &axes).map_err(alone)?;
            }
        }
        tally.call(case.options(Memory::nth(index)));
        tally.case(true);
    }
    Ok(())
}
