//! `fused_recurrent_gated_delta_rule`.

use undraft::cuda::raw::RecurrentParams;
use undraft::ops::FusedRecurrentArgs;
use undraft::{Backend, CaptureMut};

use super::delta_rule::{delta_rule, max_window, set_params};
use super::i32_of;
use crate::args::{Op, Values, op_args};
use crate::error::{Error, Result};
use crate::host;
use crate::tensor::Device;

pub(super) const OP: Op = Op { name: "fused_recurrent_gated_delta_rule", params: Args::PARAMS, run };

op_args!(Args {
    In q, In k, In v, In g, In beta, Out state, Out out, In cu_seqlens, In state_indices,
    MaybeIn A_log, MaybeIn dt_bias,
    Int decay, Bool beta_is_logit, Int head_map, Float qk_l2norm_eps, Int rounding, Float scale, Int max_window,
});

fn run(values: &mut Values<'_>) -> Result<()> {
    let (args, device) = Args::read(values)?;
    let rule = delta_rule!(args)?;
    let window = max_window(args.max_window)?;
    match device {
        Device::Cpu => {
            // SAFETY: the tensors lie in host memory, and torch or NumPy keeps them for this call; what is written shares no
            // memory with the rest.
            let (gates, state, out) =
                unsafe { (rule.gates()?, rule.state.states()?, rule.out.rows_mut(rule.out_tokens())?) };
            // SAFETY: as above.
            let inputs = unsafe { rule.inputs(&gates, &[], window)? };
            let args = FusedRecurrentArgs {
                inputs,
                num_slots: rule.num_slots,
                state,
                log: None,
                num_pending: &[],
                pending_path: &[],
                capture: CaptureMut::Final,
                out,
            };
            Ok(host::backend().fused_recurrent_gated_delta_rule(args.check()?)?)
        }
        Device::Cuda(index) => {
            let mut params = RecurrentParams::new(&rule.dims, rule.num_seqs);
            set_params!(params, rule);
            let longest = if window > 0 { window.min(rule.num_tokens()) } else { rule.num_tokens() };
            params.max_window = i32_of("max_window", longest)?;
            let (launcher, stream) = values.caller.cuda(index)?;
            // SAFETY: sizes, strides, element types, alignment and overlap are checked; the caller's library keeps the tensors
            // until the stream's work is done; what the lists hold is the caller's promise.
            unsafe { launcher.fused_recurrent_gated_delta_rule(stream, &params, rule.state_elements()?)? };
            Ok(())
        }
        got => Err(Error::UnsupportedDevice { arg: "q", got, expected: "a CPU or CUDA tensor" }),
    }
}
