//! `rms_norm_gated`.

use undraft::Backend;
use undraft::cuda::raw::NormParams;
use undraft::ops::{GateActivation, RmsNormGatedArgs};

use super::i32_of;
use crate::args::{Op, Values, op_args};
use crate::error::{Error, Result};
use crate::host;
use crate::tensor::{Device, Tensor};

pub(super) const OP: Op = Op { name: "rms_norm_gated", params: Args::PARAMS, run };

op_args!(Args { In x, In z, In weight, Out out, Float eps, Bool silu });

fn run(values: &mut Values<'_>) -> Result<()> {
    let (args, device) = Args::read(values)?;
    let Args { x, z, weight, out, eps, silu } = &args;
    let rank = x.rank();
    if !(2..=5).contains(&rank) {
        return Err(Error::Rank { arg: "x", got: Box::new(x.shape), expected: "[.., HV, V] or [num_rows, V]" });
    }
    // Of two axes the first counts rows of one head.
    let leading = if rank == 2 { 1 } else { rank - 2 };
    let num_heads = if rank == 2 { 1 } else { x.size(rank - 2) };
    let head_dim = x.size(rank - 1);
    const NAMES: [&str; 5] = ["axis 0", "axis 1", "axis 2", "axis 3", "axis 4"];
    let shape: Vec<_> = (0..rank).map(|axis| (NAMES[axis], x.size(axis))).collect();
    for tensor in [z, out] {
        tensor.check_shape(&shape)?;
    }
    weight.check_shape(&[("head_v_dim", head_dim)])?;
    weight.check_f32()?;
    weight.check_contiguous()?;
    let tokens = |tensor: &Tensor| tensor.float().and_then(|_| tensor.tokens(leading));
    let [x_rows, z_rows, out_rows] = [tokens(x)?, tokens(z)?, tokens(out)?];
    match device {
        Device::Cpu => {
            // SAFETY: the tensors lie in host memory, and torch or NumPy keeps them for this call; what is written shares no
            // memory with the rest.
            let args = unsafe {
                RmsNormGatedArgs {
                    num_rows: x_rows.num,
                    num_heads,
                    head_dim,
                    x: x.rows(&x_rows)?,
                    z: z.rows(&z_rows)?,
                    weight: weight.f32s()?,
                    eps: *eps as f32,
                    activation: if *silu { GateActivation::Silu } else { GateActivation::Sigmoid },
                    out: out.rows_mut(&out_rows)?,
                }
            };
            Ok(host::backend().rms_norm_gated(args.check()?)?)
        }
        Device::Cuda(index) => {
            let params = NormParams {
                x: x.data as u64,
                z: z.data as u64,
                weight: weight.data as u64,
                out: out.data as u64,
                x_stride: x_rows.stride as i64,
                z_stride: z_rows.stride as i64,
                out_stride: out_rows.stride as i64,
                num_rows: x_rows.num as i64,
                num_heads: i32_of("num_heads", num_heads)?,
                head_dim: i32_of("head_dim", head_dim)?,
                x_dtype: x.float()?.into(),
                z_dtype: z.float()?.into(),
                out_dtype: out.float()?.into(),
                sigmoid: (!silu).into(),
                eps: *eps as f32,
            };
            let (launcher, stream) = values.caller.cuda(index)?;
            // SAFETY: sizes, strides, element types and overlap are checked; the caller's library keeps the tensors until the
            // stream's work is done.
            unsafe { launcher.rms_norm_gated(stream, &params)? };
            Ok(())
        }
        got => Err(Error::UnsupportedDevice { arg: "x", got, expected: "a CPU or CUDA tensor" }),
    }
}
