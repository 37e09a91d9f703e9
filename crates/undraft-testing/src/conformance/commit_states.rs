//! The replay: near the oracle; the same bits in any memory and alone. That it equals decoding is checked with the
//! recurrence.

use undraft_core::{Backend, DType, Op};

use super::Tally;
use crate::cases::commit_states::{CommitCase, NUM_CASES};
use crate::compare;
use crate::harness::{Memory, commit_states::run};
use crate::tolerance::{Tensor, tolerance};

pub(super) fn values(backend: &dyn Backend, tally: &mut Tally) -> Result<(), String> {
    for index in 0..NUM_CASES {
        let case = CommitCase::nth(index);
        let bound = tolerance(Op::CommitStates, Tensor::State, DType::F32, false)
            .with_state(case.state_dtype, case.state.len());
        let at = |e| format!("{}: {e}", case.label());
        let Some(state) = run(backend, &case, Memory::nth(index)).map_err(at)? else {
            tally.case(false);
            continue;
        };
        let axes = state_axes(&case);
        tally.deviation(compare::values("state", &state, &case.oracle().solve(), &axes, bound).map_err(at)?, bound);
        tally.call(case.options());
        tally.case(true);
    }
    Ok(())
}

/// `S = S * decay`, then `S = fma(delta, k, S)`, then the rounding of the state: each rounds in one way only, so the bits
/// are known.
pub(super) fn exactness(backend: &dyn Backend, tally: &mut Tally) -> Result<(), String> {
    for index in 0..NUM_CASES {
        let case = CommitCase::nth(index);
        let at = |e| format!("{}: {e}", case.label());
        let Some(state) = run(backend, &case, Memory::nth(index + 1)).map_err(at)? else {
            tally.case(false);
            continue;
        };
        compare::bits("state", &state, &replayed(&case), &state_axes(&case)).map_err(at)?;
        tally.call(case.options());
        tally.case(true);
    }
    Ok(())
}

fn state_axes(case: &CommitCase) -> [(&'static str, usize); 4] {
    let d = &case.dims;
    let slots = case.windows.num_slots;
    [("slot", slots), ("head", d.num_v_heads()), ("row", d.head_v_dim()), ("column", d.head_k_dim())]
}

/// The two or three roundings of each element, in token order.
fn replayed(case: &CommitCase) -> Vec<f32> {
    let (h, hv) = (case.dims.num_k_heads(), case.dims.num_v_heads());
    let (k, v, factors) = (case.dims.head_k_dim(), case.dims.head_v_dim(), case.dims.decay_dim());
    let mut state = case.state.clone();
    for (seq, slot, _) in case.windows.live() {
        for t in case.kept_entries(seq) {
            let entry = slot * case.log.max_tokens + t;
            for head in 0..hv {
                let kh = crate::oracle::fused_recurrent_gated_delta_rule::key_head(case.head_map, head, h, hv);
                for i in 0..v {
                    for j in 0..k {
                        let s = &mut state[((slot * hv + head) * v + i) * k + j];
                        let delta = case.log.delta[(entry * hv + head) * v + i];
                        let factor = case.log.decay[(entry * hv + head) * factors + j.min(factors - 1)];
                        let sum = delta.mul_add(case.log.k[(entry * h + kh) * k + j], *s * factor);
                        *s = case.state_dtype.round(sum);
                    }
                }
            }
        }
    }
    state
}
