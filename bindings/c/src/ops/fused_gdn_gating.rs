//! Log decay and beta from the raw gates.

use std::ffi::c_char;

use undraft::ops::FusedGdnGatingArgs;

use super::run;
use crate::device::undraft_device;
use crate::pointer::sized;
use crate::status::undraft_status;
use crate::tensor::{F32, undraft_tensor};

/// Arguments of [`undraft_fused_gdn_gating`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_fused_gdn_gating_args {
    /// Bytes of the struct.
    pub size: usize,
    /// `[N, HV]` or `[N, HV, K]`.
    pub a: undraft_tensor,
    /// `[N, HV]`.
    pub b: undraft_tensor,
    /// `[HV]`.
    pub a_log: undraft_tensor,
    /// `[HV]` or `[HV, K]`.
    pub dt_bias: undraft_tensor,
    /// `[N, HV]` or `[N, HV, K]`.
    pub g: undraft_tensor,
    /// `[N, HV]`.
    pub beta: undraft_tensor,
}
sized!(undraft_fused_gdn_gating_args);

/// Log decay and beta from the raw gates.
///
/// # Safety
/// Pointers are null or lead to what the header says, as do the tensors of the struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_fused_gdn_gating(
    device: *const undraft_device,
    args: *const undraft_fused_gdn_gating_args,
    message: *mut *mut c_char,
) -> undraft_status {
    // SAFETY: the same contract.
    unsafe {
        run(device, args, message, |device, args, mut tensors| {
            let (num_tokens, num_v_heads) = (args.b.axis(0), args.b.axis(1));
            let num_axes = if args.a.ndim == 3 { 3 } else { 2 };
            let decay_dim = if num_axes == 3 { args.a.axis(2) } else { 1 };
            let axes = [("num_tokens", num_tokens), ("num_v_heads", num_v_heads), ("head_k_dim", decay_dim)];
            let a = tensors.rows("a", &args.a, &axes[..num_axes])?;
            let b = tensors.rows("b", &args.b, &axes[..2])?;
            let a_log = tensors.read("a_log", &args.a_log, F32, &axes[1..2])?;
            let dt_bias = tensors.read("dt_bias", &args.dt_bias, F32, &axes[1..num_axes])?;
            let g = tensors.write("g", &args.g, F32, &axes[..num_axes])?;
            let beta = tensors.write("beta", &args.beta, F32, &axes[..2])?;
            let shown = tensors.disjoint()?;
            let args = FusedGdnGatingArgs {
                num_tokens,
                num_v_heads,
                decay_dim,
                a: a.rows(&shown),
                b: b.rows(&shown),
                a_log: a_log.f32s(&shown),
                dt_bias: dt_bias.f32s(&shown),
                g: g.f32s_mut(&shown),
                beta: beta.f32s_mut(&shown),
            };
            Ok(device.device.backend().fused_gdn_gating(args.check()?)?)
        })
    }
}
