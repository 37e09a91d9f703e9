//! RMS norm of each value head, then the gate.

use std::ffi::c_char;

use undraft::ops::RmsNormGatedArgs;

use super::run;
use crate::choices::{gate_activation, undraft_gate_activation};
use crate::device::undraft_device;
use crate::pointer::sized;
use crate::status::undraft_status;
use crate::tensor::{F32, undraft_tensor};

/// Arguments of [`undraft_rms_norm_gated`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_rms_norm_gated_args {
    /// Bytes of the struct.
    pub size: usize,
    /// What is done to the gate.
    pub activation: undraft_gate_activation,
    /// Added to the mean of squares.
    pub eps: f32,
    /// `[N, num_heads, D]`.
    pub x: undraft_tensor,
    /// `[N, num_heads, D]`.
    pub z: undraft_tensor,
    /// `[D]`.
    pub weight: undraft_tensor,
    /// `[N, num_heads, D]`.
    pub out: undraft_tensor,
}
sized!(undraft_rms_norm_gated_args);

/// RMS norm of each value head, then the gate.
///
/// # Safety
/// Pointers are null or lead to what the header says, as do the tensors of the struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_rms_norm_gated(
    device: *const undraft_device,
    args: *const undraft_rms_norm_gated_args,
    message: *mut *mut c_char,
) -> undraft_status {
    // SAFETY: the same contract.
    unsafe {
        run(device, args, message, |device, args, mut tensors| {
            let activation = gate_activation("activation", args.activation)?;
            let (num_rows, head_dim) = (args.x.axis(0), args.weight.axis(0));
            let num_heads = if args.x.ndim == 3 { args.x.axis(1) } else { args.x.axis(1) / head_dim.max(1) };
            let axes = [("num_rows", num_rows), ("num_heads", num_heads), ("head_dim", head_dim)];
            let x = tensors.rows("x", &args.x, &axes)?;
            let z = tensors.rows("z", &args.z, &axes)?;
            let weight = tensors.read("weight", &args.weight, F32, &axes[2..])?;
            let out = tensors.rows_mut("out", &args.out, &axes)?;
            let shown = tensors.disjoint()?;
            let args = RmsNormGatedArgs {
                num_rows,
                num_heads,
                head_dim,
                x: x.rows(&shown),
                z: z.rows(&shown),
                weight: weight.f32s(&shown),
                eps: args.eps,
                activation,
                out: out.rows_mut(&shown),
            };
            Ok(device.device.backend().rms_norm_gated(args.check()?)?)
        })
    }
}
