//! `chunk_gated_delta_rule`.

use undraft::cuda::raw::ChunkParams;
use undraft::ops::{CheckpointsMut, ChunkGatedDeltaRuleArgs};
use undraft::{Backend, CuSeqlens};

use super::delta_rule::{check_same_dtype, check_states, delta_rule, set_params};
use super::{address, i32_of};
use crate::args::{Op, Values, op_args};
use crate::error::{Error, Result};
use crate::host;
use crate::tensor::{Device, Shape};

pub(super) const OP: Op = Op { name: "chunk_gated_delta_rule", params: Args::PARAMS, run };

op_args!(Args {
    In q, In k, In v, In g, In beta, Out state, MaybeOut checkpoints, Out out, In cu_seqlens, In state_indices,
    MaybeIn A_log, MaybeIn dt_bias,
    Int decay, Bool beta_is_logit, Int head_map, Float qk_l2norm_eps, Int rounding, Float scale, Int checkpoint_every,
});

fn run(values: &mut Values<'_>) -> Result<()> {
    let (args, device) = Args::read(values)?;
    let rule = delta_rule!(args)?;
    let every = usize::try_from(args.checkpoint_every).unwrap_or(0);
    if let Some(states) = &args.checkpoints {
        if every == 0 {
            let got = args.checkpoint_every;
            return Err(Error::Number { arg: "checkpoint_every", got, expected: "1 or more with `checkpoints`" });
        }
        // No more than this are written, however the tokens are shared out among sequences.
        let most = rule.num_tokens() / every;
        let count = states.size(0);
        check_states(states, &[("num_checkpoints", count.max(most))], &rule.dims)?;
        check_same_dtype(states, &rule.state)?;
        states.check_contiguous()?;
    }
    match device {
        Device::Cpu => {
            // SAFETY: here and below: the tensors lie in host memory, and torch or NumPy keeps them for this call; what is
            // written shares no memory with the rest.
            let gates = unsafe { rule.gates()? };
            // SAFETY: as above.
            let inputs = unsafe { rule.inputs(&gates, &[], 0)? };
            let checkpoints = match &args.checkpoints {
                None => None,
                Some(all) => {
                    let seqs = CuSeqlens::new(inputs.cu_seqlens)?;
                    let count: usize = (0..seqs.num_seqs()).map(|seq| seqs.range(seq).len() / every).sum();
                    let mut sizes = all.shape.as_slice().to_vec();
                    sizes[0] = count as i64;
                    let first = crate::tensor::Tensor { shape: Shape::new(&sizes).unwrap_or(all.shape), ..*all };
                    // SAFETY: as above.
                    Some(CheckpointsMut { states: unsafe { first.states()? }, every })
                }
            };
            let args = ChunkGatedDeltaRuleArgs {
                inputs,
                num_slots: rule.num_slots,
                // SAFETY: as above.
                state: unsafe { rule.state.states()? },
                checkpoints,
                // SAFETY: as above.
                out: unsafe { rule.out.rows_mut(rule.out_tokens())? },
            };
            Ok(host::backend().chunk_gated_delta_rule(args.check()?)?)
        }
        Device::Cuda(index) => {
            let mut params = ChunkParams::new(&rule.dims, rule.num_seqs, rule.num_tokens());
            set_params!(params, rule);
            params.state_dtype = rule.state_elements()?;
            params.checkpoints = address(args.checkpoints.as_ref());
            if let Some(states) = &args.checkpoints {
                states.check_alignment(16)?;
                // Beyond every sequence's end there is no checkpoint.
                params.every = if every > rule.num_tokens() { 0 } else { i32_of("checkpoint_every", every)? };
            }
            let (launcher, stream) = values.caller.cuda(index)?;
            params.workspace = values.caller.scratch(index, launcher.chunk_workspace_bytes(&params) as usize)?;
            // SAFETY: sizes, strides, element types, alignment and overlap are checked; the workspace has the bytes that were
            // asked for; the caller's library keeps all of them until the stream's work is done; what the lists hold is the
            // caller's promise.
            unsafe { launcher.chunk_gated_delta_rule(stream, &params)? };
            Ok(())
        }
        got => Err(Error::UnsupportedDevice { arg: "q", got, expected: "a CPU or CUDA tensor" }),
    }
}
