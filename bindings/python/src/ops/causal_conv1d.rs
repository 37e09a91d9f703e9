//! `causal_conv1d_update` and `causal_conv1d_fn`.

use undraft::cuda::raw::{ConvFnParams, ConvUpdateParams};
use undraft::ops::{CausalConv1dFnArgs, CausalConv1dUpdateArgs, ConvLogMut};
use undraft::{Activation, Backend, Capture, ConvDims};

use super::delta_rule::{check_ends, check_sequences};
use super::verify::check_path;
use super::{address, check_counts, i32_of};
use crate::args::{Op, Values, op_args};
use crate::error::{Error, Result};
use crate::host;
use crate::tensor::{Device, Tensor, Tokens};

pub(super) const UPDATE_OP: Op = Op { name: "causal_conv1d_update", params: Args::PARAMS, run };
pub(super) const FN_OP: Op = Op { name: "causal_conv1d_fn", params: FnArgs::PARAMS, run: run_fn };

op_args!(Args {
    In x, In weight, Out state, MaybeOut log, Out out, In cu_seqlens, In state_indices,
    MaybeIn bias, MaybeIn parents, MaybeIn num_pending, MaybeIn pending_path, Bool silu,
});

op_args!(FnArgs {
    In x, In weight, Out state, Out out, In cu_seqlens, In state_indices, MaybeIn bias, Bool silu,
});

/// Sizes of a call, checked.
struct Sizes {
    dims: ConvDims,
    x: Tokens,
    out: Tokens,
    num_slots: usize,
    num_seqs: usize,
}

impl Sizes {
    fn new(
        [x, weight, state, out]: [&Tensor; 4],
        bias: Option<&Tensor>,
        cu_seqlens: &Tensor,
        state_indices: &Tensor,
    ) -> Result<Self> {
        let leading = match x.rank() {
            2 => 1,
            3 => 2,
            _ => {
                let expected = "[B, T, C], or [num_tokens, C] with `cu_seqlens`";
                return Err(Error::Rank { arg: "x", got: Box::new(x.shape), expected });
            }
        };
        x.float()?;
        out.float()?;
        let c = ("channels", x.size(leading));
        let outer = [("B", x.size(0)), ("T", x.size(1))];
        let outer = if leading == 2 { &outer[..] } else { &[("num_tokens", x.size(0))] };
        out.check_shape(&[outer, &[c]].concat())?;
        let channel_major = weight.size(0) == c.1 && weight.size(1) != c.1;
        let hint = if channel_major { ": pass `conv_weight_to_tap_major(weight)`" } else { "" };
        if weight.rank() != 2 || weight.size(1) != c.1 {
            weight.check_shape_or(&[("conv_width", state.size(1) + 1), c], hint)?;
        }
        let dims = ConvDims::new(c.1, weight.size(0))?;
        let num_slots = state.size(0);
        state.check_shape(&[("num_slots", num_slots), ("conv_width - 1", dims.width() - 1), c])?;
        state.check_f32()?;
        for tensor in [Some(weight), bias].into_iter().flatten() {
            tensor.check_f32()?;
            tensor.check_contiguous()?;
        }
        bias.map_or(Ok(()), |bias| bias.check_shape(&[c]))?;
        let num_seqs = check_sequences(cu_seqlens, state_indices)?;
        Ok(Self { dims, x: x.tokens(leading)?, out: out.tokens(leading)?, num_slots, num_seqs })
    }
}

fn activation(silu: bool) -> Activation {
    if silu { Activation::Silu } else { Activation::None }
}

fn run(values: &mut Values<'_>) -> Result<()> {
    let (args, device) = Args::read(values)?;
    let Args {
        x, weight, state, log, out, cu_seqlens, state_indices, bias, parents, num_pending, pending_path, ..
    } = &args;
    let sizes = Sizes::new([x, weight, state, out], bias.as_ref(), cu_seqlens, state_indices)?;
    let num_seqs = ("num_seqs", sizes.num_seqs);
    let mut max_tokens = 0;
    if let Some(log) = log {
        max_tokens = log.size(1);
        let shape = [("num_slots", sizes.num_slots), ("max_tokens", max_tokens), ("channels", sizes.dims.channels())];
        log.check_shape(&shape)?;
        log.check_f32()?;
        log.check_contiguous()?;
    }
    if let Some(parents) = parents {
        parents.check_shape(&[("num_tokens", sizes.x.num)])?;
        parents.check_i32()?;
        parents.check_contiguous()?;
    }
    if let Some(num_pending) = num_pending {
        num_pending.check_shape(&[num_seqs])?;
        num_pending.check_i32()?;
        num_pending.check_contiguous()?;
        if log.is_none() {
            return Err(Error::Missing { arg: "log", because: "with `num_pending`" });
        }
    }
    check_path(pending_path.as_ref(), sizes.num_seqs, max_tokens)?;
    let capture = if log.is_some() { Capture::DeltaLog } else { Capture::Final };
    match device {
        Device::Cpu => {
            // SAFETY: the tensors lie in host memory, and torch or NumPy keeps them for this call; what is written shares no
            // memory with the rest.
            unsafe {
                let seqlens = cu_seqlens.i32s()?;
                check_ends(seqlens, "x", sizes.x.num, 0)?;
                let indices = state_indices.i32s()?;
                let pending = num_pending.map_or(Ok(&[][..]), |n| n.u32s())?;
                check_counts("num_pending", pending, indices)?;
                let log = log.map(|log| log.f32s_mut()).transpose()?;
                let args = CausalConv1dUpdateArgs {
                    dims: sizes.dims,
                    x: x.rows(&sizes.x)?,
                    weight: weight.f32s()?,
                    bias: bias.map(|bias| bias.f32s()).transpose()?,
                    activation: activation(args.silu),
                    cu_seqlens: seqlens,
                    state_indices: indices,
                    num_slots: sizes.num_slots,
                    state: state.f32s_mut()?,
                    log: log.map(|x| ConvLogMut { x, max_tokens }),
                    num_pending: pending,
                    pending_path: pending_path.map_or(Ok(&[][..]), |path| path.u32s())?,
                    parents: parents.map_or(Ok(&[][..]), |parents| parents.i32s())?,
                    capture,
                    out: out.rows_mut(&sizes.out)?,
                };
                Ok(host::backend().causal_conv1d_update(args.check()?)?)
            }
        }
        Device::Cuda(index) => {
            if parents.is_some() && capture == Capture::Final {
                return Err(Error::Missing { arg: "log", because: "with `parents`: a draft tree keeps the state" });
            }
            let params = ConvUpdateParams {
                x: x.data as u64,
                weight: weight.data as u64,
                bias: address(bias.as_ref()),
                state: state.data as u64,
                log: address(log.as_ref()),
                log_slots: 0,
                cu_seqlens: cu_seqlens.data as u64,
                state_indices: state_indices.data as u64,
                num_pending: address(num_pending.as_ref()),
                pending_path: address(pending_path.as_ref()),
                parents: address(parents.as_ref()),
                out: out.data as u64,
                x_stride: sizes.x.stride as i64,
                out_stride: sizes.out.stride as i64,
                state_stride: state.outer_stride(0)? as i64,
                channels: sizes.dims.channels() as i64,
                num_seqs: i32_of("B", sizes.num_seqs)?,
                width: sizes.dims.width() as i32,
                log_max: i32_of("max_tokens", max_tokens)?,
                x_dtype: x.float()?.into(),
                out_dtype: out.float()?.into(),
                silu: args.silu.into(),
                capture: capture.into(),
                channel_blocks: 0,
            };
            let (launcher, stream) = values.caller.cuda(index)?;
            // SAFETY: sizes, strides, element types and overlap are checked; the caller's library keeps the tensors until the
            // stream's work is done; what the lists hold is the caller's promise.
            unsafe { launcher.causal_conv1d_update(stream, &params)? };
            Ok(())
        }
        got => Err(Error::UnsupportedDevice { arg: "x", got, expected: "a CPU or CUDA tensor" }),
    }
}

fn run_fn(values: &mut Values<'_>) -> Result<()> {
    let (args, device) = FnArgs::read(values)?;
    let FnArgs { x, weight, state, out, cu_seqlens, state_indices, bias, .. } = &args;
    let sizes = Sizes::new([x, weight, state, out], bias.as_ref(), cu_seqlens, state_indices)?;
    match device {
        Device::Cpu => {
            // SAFETY: as in `run`.
            unsafe {
                let seqlens = cu_seqlens.i32s()?;
                check_ends(seqlens, "x", sizes.x.num, 0)?;
                let args = CausalConv1dFnArgs {
                    dims: sizes.dims,
                    x: x.rows(&sizes.x)?,
                    weight: weight.f32s()?,
                    bias: bias.map(|bias| bias.f32s()).transpose()?,
                    activation: activation(args.silu),
                    cu_seqlens: seqlens,
                    state_indices: state_indices.i32s()?,
                    num_slots: sizes.num_slots,
                    state: state.f32s_mut()?,
                    out: out.rows_mut(&sizes.out)?,
                };
                Ok(host::backend().causal_conv1d_fn(args.check()?)?)
            }
        }
        Device::Cuda(index) => {
            let params = ConvFnParams {
                x: x.data as u64,
                weight: weight.data as u64,
                bias: address(bias.as_ref()),
                state: state.data as u64,
                cu_seqlens: cu_seqlens.data as u64,
                state_indices: state_indices.data as u64,
                out: out.data as u64,
                x_stride: sizes.x.stride as i64,
                out_stride: sizes.out.stride as i64,
                state_stride: state.outer_stride(0)? as i64,
                channels: sizes.dims.channels() as i64,
                num_seqs: i32_of("B", sizes.num_seqs)?,
                width: sizes.dims.width() as i32,
                x_dtype: x.float()?.into(),
                out_dtype: out.float()?.into(),
                silu: args.silu.into(),
                channel_blocks: 0,
            };
            let longest = sizes.x.num.div_ceil(sizes.num_seqs.max(1));
            let (launcher, stream) = values.caller.cuda(index)?;
            // SAFETY: as in `run`.
            unsafe { launcher.causal_conv1d_fn(stream, &params, longest)? };
            Ok(())
        }
        got => Err(Error::UnsupportedDevice { arg: "x", got, expected: "a CPU or CUDA tensor" }),
    }
}
