//! `fused_gdn_gating`.

use undraft::Backend;
use undraft::cuda::raw::GatingParams;
use undraft::ops::FusedGdnGatingArgs;

use super::i32_of;
use crate::args::{Op, Values, op_args};
use crate::error::{Error, Result};
use crate::host;
use crate::tensor::Device;

pub(super) const OP: Op = Op { name: "fused_gdn_gating", params: Args::PARAMS, run };

op_args!(Args { In a, In b, In A_log, In dt_bias, Out g, Out beta });

fn run(values: &mut Values<'_>) -> Result<()> {
    let (args, device) = Args::read(values)?;
    let Args { a, b, A_log, dt_bias, g, beta } = &args;
    if !(2..=4).contains(&b.rank()) {
        return Err(Error::Rank { arg: "b", got: Box::new(b.shape), expected: "[num_tokens, HV] or [B, T, HV]" });
    }
    let leading = b.rank() - 1;
    const NAMES: [&str; 3] = ["axis 0", "axis 1", "axis 2"];
    let outer: Vec<_> = (0..leading).map(|axis| (NAMES[axis], b.size(axis))).collect();
    let per_channel = a.rank() == b.rank() + 1;
    let [hv, key] = [("num_v_heads", b.size(leading)), ("head_k_dim", a.size(leading + 1))];
    let of_decay = [hv, key];
    let of_decay = &of_decay[..if per_channel { 2 } else { 1 }];
    a.check_shape(&[&outer[..], of_decay].concat())?;
    g.check_shape(&[&outer[..], of_decay].concat())?;
    beta.check_shape(&[&outer[..], &[hv]].concat())?;
    A_log.check_shape(&[hv])?;
    dt_bias.check_shape(of_decay)?;
    a.float()?;
    b.float()?;
    for tensor in [A_log, dt_bias, g, beta] {
        tensor.check_f32()?;
        tensor.check_contiguous()?;
    }
    let (a_tokens, b_tokens) = (a.tokens(leading)?, b.tokens(leading)?);
    match device {
        Device::Cpu => {
            // SAFETY: the tensors lie in host memory, and torch or NumPy keeps them for this call; what is written shares no
            // memory with the rest.
            let args = unsafe {
                FusedGdnGatingArgs {
                    num_tokens: b_tokens.num,
                    num_v_heads: hv.1,
                    decay_dim: key.1,
                    a: a.rows(&a_tokens)?,
                    b: b.rows(&b_tokens)?,
                    a_log: A_log.f32s()?,
                    dt_bias: dt_bias.f32s()?,
                    g: g.f32s_mut()?,
                    beta: beta.f32s_mut()?,
                }
            };
            Ok(host::backend().fused_gdn_gating(args.check()?)?)
        }
        Device::Cuda(index) => {
            let params = GatingParams {
                a: a.data as u64,
                b: b.data as u64,
                a_log: A_log.data as u64,
                dt_bias: dt_bias.data as u64,
                g: g.data as u64,
                beta: beta.data as u64,
                a_stride: a_tokens.stride as i64,
                b_stride: b_tokens.stride as i64,
                num_tokens: b_tokens.num as i64,
                num_v_heads: i32_of("num_v_heads", hv.1)?,
                decay_dim: i32_of("head_k_dim", key.1)?,
                a_dtype: a.float()?.into(),
                b_dtype: b.float()?.into(),
            };
            let (launcher, stream) = values.caller.cuda(index)?;
            // SAFETY: sizes, strides, element types and overlap are checked; the caller's library keeps the tensors until the
            // stream's work is done.
            unsafe { launcher.fused_gdn_gating(stream, &params)? };
            Ok(())
        }
        got => Err(Error::UnsupportedDevice { arg: "a", got, expected: "a CPU or CUDA tensor" }),
    }
}
