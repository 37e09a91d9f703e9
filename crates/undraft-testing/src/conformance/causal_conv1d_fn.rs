//! The convolution over whole prompts: near the oracle, and bit for bit what updates token by token give and leave.

use undraft_core::{Backend, Capture, DType, Op};

use super::Tally;
use super::causal_conv1d_update::{out_axes, state_axes};
use crate::cases::causal_conv1d_update::{ConvCase, NUM_CASES};
use crate::compare;
use crate::harness::{Memory, causal_conv1d_fn::run, causal_conv1d_update};
use crate::tolerance::{Tensor, tolerance};

/// Without pending entries and trees.
fn case(io: DType, index: usize) -> ConvCase {
    let mut case = ConvCase::nth(io, index);
    case.windows.parents.clear();
    ConvCase { num_pending: Vec::new(), pending_path: Vec::new(), ..case }
}

pub(super) fn values(backend: &dyn Backend, io: DType, tally: &mut Tally) -> Result<(), String> {
    let bound = tolerance(Op::CausalConv1dFn, Tensor::Out, io, false);
    for index in 0..NUM_CASES {
        let case = case(io, index);
        let at = |e| format!("{}: {e}", case.label());
        let Some([out, state]) = run(backend, &case, Memory::nth(index)).map_err(at)? else {
            tally.case(false);
            continue;
        };
        let oracle = case.oracle().solve();
        let deviation = compare::values("out", &out, &oracle.out, &out_axes(&case), bound);
        tally.deviation(deviation.map_err(at)?, bound);
        // States hold inputs, which nothing rounds.
        let expected: Vec<f32> = oracle.state_after.iter().map(|&x| x as f32).collect();
        compare::bits("state", &state, &expected, &state_axes(&case)).map_err(at)?;
        tally.call(case.prompt_options(Memory::nth(index)));
        tally.case(true);
    }
    Ok(())
}

/// Needs `causal_conv1d_update`.
pub(super) fn exactness(backend: &dyn Backend, io: DType, tally: &mut Tally) -> Result<(), String> {
    for index in 0..NUM_CASES {
        let case = case(io, index);
        let at = |e| format!("{}: {e}", case.label());
        let Some([out, state]) = run(backend, &case, Memory::nth(index + 1)).map_err(at)? else {
            tally.case(false);
            continue;
        };
        let mut states = case.state.clone();
        for t in 0..case.windows.longest() {
            let mut step = case.pick(&case.windows.within(t..t + 1));
            step.state = states;
            let step_out = causal_conv1d_update::run(backend, &step, Capture::Final, Memory::PLAIN).map_err(at)?;
            let Some(outcome) = step_out else { return Err(at("`causal_conv1d_update` was refused".into())) };
            let c = case.dims.channels();
            for (from, to) in step.windows.ranges().into_iter().zip(case.windows.ranges()) {
                if !from.is_empty() {
                    let got = &out[(to.start + t) * c..][..c];
                    compare::bits("out", got, &outcome.out[from.start * c..][..c], &[("channel", c)])
                        .map_err(|e| at(format!("token {t}: {e}")))?;
                }
            }
            states = outcome.state;
        }
        compare::bits("state", &state, &states, &state_axes(&case)).map_err(at)?;
        tally.call(case.prompt_options(Memory::nth(index + 1)));
        tally.case(true);
    }
    Ok(())
}
