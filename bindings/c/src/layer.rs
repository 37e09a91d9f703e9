//! Parameters of a layer.

use std::ffi::c_char;

use undraft::ops::DeltaRuleInputs;
use undraft::{DecayShape, GdnLayer, GdnLayerParams, QkNorm};

use crate::choices::{
    activation, has_qk_norm, head_map, rounding, undraft_activation, undraft_head_map, undraft_qk_norm,
    undraft_rounding,
};
use crate::pointer::{boxed, check_writable, free, read_sized, sized, write};
use crate::sizes::undraft_gdn_dims;
use crate::status::{Failure, Result, guard, undraft_status};
use crate::tensor::{F32, Tensors, undraft_tensor};

/// A layer's parameters.
#[derive(Debug)]
pub struct undraft_layer(pub(crate) GdnLayer);

/// What a layer is made from.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_layer_params {
    /// Bytes of the struct.
    pub size: usize,
    /// Sizes.
    pub dims: undraft_gdn_dims,
    /// `[C, W]` or `[C, 1, W]`.
    pub conv_weight: undraft_tensor,
    /// `[C]`, or absent.
    pub conv_bias: undraft_tensor,
    /// `[HV]`.
    pub a_log: undraft_tensor,
    /// `[HV]` or `[HV, K]`.
    pub dt_bias: undraft_tensor,
    /// After the convolution.
    pub activation: undraft_activation,
    /// Which key head a value head reads.
    pub head_map: undraft_head_map,
    /// Whether q and k are normalised.
    pub qk_norm: undraft_qk_norm,
    /// Rounding of beta, q and k.
    pub rounding: undraft_rounding,
    /// Of the L2 norm.
    pub qk_eps: f32,
    /// Of the output; 0 is `K^-0.5`.
    pub scale: f32,
}
sized!(undraft_layer_params);

/// L2 norm, or none.
pub(crate) fn qk_norm(norm: undraft_qk_norm, eps: f32) -> Result<QkNorm> {
    if !has_qk_norm("qk_norm", norm)? {
        return Ok(QkNorm::AsGiven);
    }
    match eps.is_finite() && eps >= 0.0 {
        true => Ok(QkNorm::L2Norm { eps }),
        false => Err(Failure::invalid(format!("`qk_eps` is {eps}, expected a finite number, at least 0"))),
    }
}

/// Makes a layer.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_layer_new(
    params: *const undraft_layer_params,
    layer: *mut *mut undraft_layer,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = || {
        check_writable("layer", layer)?;
        // SAFETY: by this function's contract, as the tensors of the struct.
        let (params, mut tensors) = unsafe { (read_sized("params", params)?, Tensors::new()) };
        let dims = params.dims.layer()?;
        let (gdn, width) = (dims.gdn, ("conv_width", dims.conv_width));
        let (channels, hv) = (("channels", gdn.conv_dim()), ("num_v_heads", gdn.num_v_heads()));
        let with_axis = [channels, ("1", 1), width];
        let weight: &[_] = if params.conv_weight.ndim == 3 { &with_axis } else { &[channels, width] };
        let of_dt_bias = [hv, ("head_k_dim", gdn.head_k_dim())];
        let num_axes = if gdn.decay_shape() == DecayShape::PerHead { 1 } else { 2 };
        let conv_weight = tensors.read("conv_weight", &params.conv_weight, F32, weight)?;
        let conv_bias = tensors.optional("conv_bias", &params.conv_bias, F32, &[channels])?;
        let a_log = tensors.read("a_log", &params.a_log, F32, &[hv])?;
        let dt_bias = tensors.read("dt_bias", &params.dt_bias, F32, &of_dt_bias[..num_axes])?;
        let shown = tensors.disjoint()?;
        let scale = if params.scale == 0.0 { DeltaRuleInputs::default_scale(&gdn) } else { params.scale };
        let made = GdnLayer::new(GdnLayerParams {
            conv_bias: conv_bias.as_ref().map(|bias| bias.f32s(&shown)),
            activation: activation("activation", params.activation)?,
            head_map: head_map("head_map", params.head_map)?,
            qk_norm: qk_norm(params.qk_norm, params.qk_eps)?,
            rounding: rounding("rounding", params.rounding)?,
            scale,
            ..GdnLayerParams::new(
                gdn,
                dims.conv_width,
                conv_weight.f32s(&shown),
                a_log.f32s(&shown),
                dt_bias.f32s(&shown),
            )
        })?;
        // SAFETY: `layer` by this function's contract.
        unsafe { write("layer", layer, boxed(undraft_layer(made))) }
    };
    // SAFETY: `message` by this function's contract.
    unsafe { guard(message, body) }
}

/// Frees a layer.
///
/// # Safety
/// `layer` is null or an object of this library that is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_layer_free(layer: *mut undraft_layer) {
    let body = || {
        // SAFETY: by this function's contract.
        unsafe { free(layer) };
        Ok(())
    };
    // SAFETY: no message is asked for.
    unsafe { guard(std::ptr::null_mut(), body) };
}
