//! Causal depthwise convolution: windows, and whole prompts.

use std::ffi::c_char;

use undraft::ConvDims;
use undraft::ops::{CausalConv1dFnArgs, CausalConv1dUpdateArgs, ConvLogMut};

use super::{check_total, run};
use crate::choices::{activation, capture, undraft_activation, undraft_capture};
use crate::device::undraft_device;
use crate::pointer::{check_reserved, sized};
use crate::status::{Result, undraft_status};
use crate::tensor::{F32, I32, Tensors, U32, View, i32s_or_empty, u32s_or_empty, undraft_tensor};

/// Arguments of [`undraft_causal_conv1d_update`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_causal_conv1d_update_args {
    /// Bytes of the struct.
    pub size: usize,
    /// What follows the sum.
    pub activation: undraft_activation,
    /// What the window leaves.
    pub capture: undraft_capture,
    /// `[N, C]`.
    pub x: undraft_tensor,
    /// `[W, C]`.
    pub weight: undraft_tensor,
    /// `[C]`, or absent.
    pub bias: undraft_tensor,
    /// `[num_seqs + 1]`.
    pub cu_seqlens: undraft_tensor,
    /// `[num_seqs]`.
    pub state_indices: undraft_tensor,
    /// `[num_slots, W - 1, C]`.
    pub state: undraft_tensor,
    /// `[num_slots, max_tokens, C]`, or absent.
    pub log_x: undraft_tensor,
    /// `[num_seqs]`, or absent.
    pub num_pending: undraft_tensor,
    /// `[num_seqs, max_tokens]`, or absent.
    pub pending_path: undraft_tensor,
    /// `[N]`, or absent.
    pub parents: undraft_tensor,
    /// `[N, C]`.
    pub out: undraft_tensor,
}
sized!(undraft_causal_conv1d_update_args);

/// Arguments of [`undraft_causal_conv1d_fn`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_causal_conv1d_fn_args {
    /// Bytes of the struct.
    pub size: usize,
    /// What follows the sum.
    pub activation: undraft_activation,
    /// 0.
    pub reserved: u32,
    /// `[N, C]`.
    pub x: undraft_tensor,
    /// `[W, C]`.
    pub weight: undraft_tensor,
    /// `[C]`, or absent.
    pub bias: undraft_tensor,
    /// `[num_seqs + 1]`.
    pub cu_seqlens: undraft_tensor,
    /// `[num_seqs]`.
    pub state_indices: undraft_tensor,
    /// `[num_slots, W - 1, C]`.
    pub state: undraft_tensor,
    /// `[N, C]`.
    pub out: undraft_tensor,
}
sized!(undraft_causal_conv1d_fn_args);

/// What both forms are given.
struct Common<'a> {
    x: &'a undraft_tensor,
    weight: &'a undraft_tensor,
    bias: &'a undraft_tensor,
    cu_seqlens: &'a undraft_tensor,
    state_indices: &'a undraft_tensor,
    state: &'a undraft_tensor,
    out: &'a undraft_tensor,
}

struct CommonViews {
    dims: ConvDims,
    num_tokens: usize,
    num_slots: usize,
    x: View,
    weight: View,
    bias: Option<View>,
    cu_seqlens: View,
    state_indices: View,
    state: View,
    out: View,
}

impl Common<'_> {
    fn views(&self, tensors: &mut Tensors<'_>) -> Result<CommonViews> {
        let (num_tokens, num_slots, num_seqs) = (self.x.axis(0), self.state.axis(0), self.state_indices.axis(0));
        let dims = ConvDims::new(self.x.axis(1), self.weight.axis(0))?;
        let (n, channels, width) =
            (("num_tokens", num_tokens), ("channels", dims.channels()), ("conv_width", dims.width()));
        let state = [("num_slots", num_slots), ("conv_width - 1", dims.width() - 1), channels];
        Ok(CommonViews {
            dims,
            num_tokens,
            num_slots,
            x: tensors.rows("x", self.x, &[n, channels])?,
            weight: tensors.read("weight", self.weight, F32, &[width, channels])?,
            bias: tensors.optional("bias", self.bias, F32, &[channels])?,
            cu_seqlens: tensors.read("cu_seqlens", self.cu_seqlens, I32, &[("num_seqs + 1", num_seqs + 1)])?,
            state_indices: tensors.read("state_indices", self.state_indices, I32, &[("num_seqs", num_seqs)])?,
            state: tensors.write("state", self.state, F32, &state)?,
            out: tensors.rows_mut("out", self.out, &[n, channels])?,
        })
    }
}

/// Convolution of windows.
///
/// # Safety
/// Pointers are null or lead to what the header says, as do the tensors of the struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_causal_conv1d_update(
    device: *const undraft_device,
    args: *const undraft_causal_conv1d_update_args,
    message: *mut *mut c_char,
) -> undraft_status {
    // SAFETY: the same contract.
    unsafe {
        run(device, args, message, |device, args, mut tensors| {
            let activation = activation("activation", args.activation)?;
            let capture = capture("capture", args.capture)?;
            let undraft_causal_conv1d_update_args { x, weight, bias, cu_seqlens, state_indices, state, out, .. } = args;
            let common = Common { x, weight, bias, cu_seqlens, state_indices, state, out }.views(&mut tensors)?;
            let max_tokens = args.log_x.axis(1);
            let (seqs, tokens) = (("num_seqs", args.state_indices.axis(0)), ("max_tokens", max_tokens));
            let log = [("num_slots", common.num_slots), tokens, ("channels", common.dims.channels())];
            let log = match args.log_x.is_absent() {
                true => None,
                false => Some(tensors.write("log_x", &args.log_x, F32, &log)?),
            };
            let num_pending = tensors.optional("num_pending", &args.num_pending, U32, &[seqs])?;
            let pending_path = tensors.optional("pending_path", &args.pending_path, U32, &[seqs, tokens])?;
            let parents = tensors.optional("parents", &args.parents, I32, &[("num_tokens", common.num_tokens)])?;
            let shown = tensors.disjoint()?;
            check_total(common.cu_seqlens.i32s(&shown), common.num_tokens)?;
            let args = CausalConv1dUpdateArgs {
                dims: common.dims,
                x: common.x.rows(&shown),
                weight: common.weight.f32s(&shown),
                bias: common.bias.as_ref().map(|bias| bias.f32s(&shown)),
                activation,
                cu_seqlens: common.cu_seqlens.i32s(&shown),
                state_indices: common.state_indices.i32s(&shown),
                num_slots: common.num_slots,
                state: common.state.f32s_mut(&shown),
                log: log.map(|log| ConvLogMut { x: log.f32s_mut(&shown), max_tokens }),
                num_pending: u32s_or_empty(&num_pending, &shown),
                pending_path: u32s_or_empty(&pending_path, &shown),
                parents: i32s_or_empty(&parents, &shown),
                capture,
                out: common.out.rows_mut(&shown),
            };
            Ok(device.device.backend().causal_conv1d_update(args.check()?)?)
        })
    }
}

/// Convolution of whole prompts.
///
/// # Safety
/// Pointers are null or lead to what the header says, as do the tensors of the struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_causal_conv1d_fn(
    device: *const undraft_device,
    args: *const undraft_causal_conv1d_fn_args,
    message: *mut *mut c_char,
) -> undraft_status {
    // SAFETY: the same contract.
    unsafe {
        run(device, args, message, |device, args, mut tensors| {
            check_reserved("undraft_causal_conv1d_fn_args", &[args.reserved])?;
            let activation = activation("activation", args.activation)?;
            let undraft_causal_conv1d_fn_args { x, weight, bias, cu_seqlens, state_indices, state, out, .. } = args;
            let common = Common { x, weight, bias, cu_seqlens, state_indices, state, out }.views(&mut tensors)?;
            let shown = tensors.disjoint()?;
            check_total(common.cu_seqlens.i32s(&shown), common.num_tokens)?;
            let args = CausalConv1dFnArgs {
                dims: common.dims,
                x: common.x.rows(&shown),
                weight: common.weight.f32s(&shown),
                bias: common.bias.as_ref().map(|bias| bias.f32s(&shown)),
                activation,
                cu_seqlens: common.cu_seqlens.i32s(&shown),
                state_indices: common.state_indices.i32s(&shown),
                num_slots: common.num_slots,
                state: common.state.f32s_mut(&shown),
                out: common.out.rows_mut(&shown),
            };
            Ok(device.device.backend().causal_conv1d_fn(args.check()?)?)
        })
    }
}
