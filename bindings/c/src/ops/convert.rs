//! Layouts of states and weights, converted.

use std::ffi::c_char;

use undraft::{
    ConvDims, GdnDims, StateLayout, conv_state_to_channel_major, conv_state_to_time_major, conv_weight_to_tap_major,
    state_to_key_major, state_to_value_major,
};

use crate::choices::{ConvLayout, conv_layout, state_layout, undraft_conv_layout, undraft_state_layout};
use crate::status::{Result, guard, undraft_status};
use crate::tensor::{F32, Tensors, read_tensor, undraft_tensor};

/// Converts a recurrent state.
///
/// # Safety
/// Pointers are null or lead to what the header says, as do the tensors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_convert_state(
    from_layout: undraft_state_layout,
    from: *const undraft_tensor,
    to_layout: undraft_state_layout,
    to: *const undraft_tensor,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = || {
        let from_layout = state_layout("from_layout", from_layout)?;
        let to_layout = state_layout("to_layout", to_layout)?;
        // SAFETY: by this function's contract.
        let (from, to, mut tensors) = unsafe { (read_tensor("from", from)?, read_tensor("to", to)?, Tensors::new()) };
        let (hv, k, v) = match from_layout {
            StateLayout::ValueMajor => (from.axis(0), from.axis(2), from.axis(1)),
            StateLayout::KeyMajor => (from.axis(0), from.axis(1), from.axis(2)),
        };
        let dims = GdnDims::new(hv, hv, k, v)?;
        let axes = |layout| {
            let (hv, k, v) = (("num_v_heads", hv), ("head_k_dim", k), ("head_v_dim", v));
            if layout == StateLayout::ValueMajor { [hv, v, k] } else { [hv, k, v] }
        };
        let from = tensors.read("from", &from, F32, &axes(from_layout))?;
        let to = tensors.write("to", &to, F32, &axes(to_layout))?;
        let shown = tensors.disjoint()?;
        let (from, to) = (from.f32s(&shown), to.f32s_mut(&shown));
        match (from_layout, to_layout) {
            (StateLayout::KeyMajor, StateLayout::ValueMajor) => state_to_value_major(&dims, from, to)?,
            (StateLayout::ValueMajor, StateLayout::KeyMajor) => state_to_key_major(&dims, from, to)?,
            _ => to.copy_from_slice(from),
        }
        Ok(())
    };
    // SAFETY: `message` by this function's contract.
    unsafe { guard(message, body) }
}

/// Converts a convolution state.
///
/// # Safety
/// Pointers are null or lead to what the header says, as do the tensors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_convert_conv_state(
    from_layout: undraft_conv_layout,
    from: *const undraft_tensor,
    to_layout: undraft_conv_layout,
    to: *const undraft_tensor,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = || {
        let from_layout = conv_layout("from_layout", from_layout)?;
        let to_layout = conv_layout("to_layout", to_layout)?;
        // SAFETY: by this function's contract.
        let (from, to, mut tensors) = unsafe { (read_tensor("from", from)?, read_tensor("to", to)?, Tensors::new()) };
        let (taps, channels) = match from_layout {
            ConvLayout::TimeMajor => (from.axis(0), from.axis(1)),
            ConvLayout::ChannelMajor => (from.axis(1), from.axis(0)),
        };
        let dims = ConvDims::new(channels, taps.saturating_add(1))?;
        let axes = |layout| {
            let (taps, channels) = (("conv_width - 1", taps), ("channels", channels));
            if layout == ConvLayout::TimeMajor { [taps, channels] } else { [channels, taps] }
        };
        let from = tensors.read("from", &from, F32, &axes(from_layout))?;
        let to = tensors.write("to", &to, F32, &axes(to_layout))?;
        let shown = tensors.disjoint()?;
        let (from, to) = (from.f32s(&shown), to.f32s_mut(&shown));
        match (from_layout, to_layout) {
            (ConvLayout::ChannelMajor, ConvLayout::TimeMajor) => conv_state_to_time_major(&dims, from, to)?,
            (ConvLayout::TimeMajor, ConvLayout::ChannelMajor) => conv_state_to_channel_major(&dims, from, to)?,
            _ => to.copy_from_slice(from),
        }
        Ok(())
    };
    // SAFETY: `message` by this function's contract.
    unsafe { guard(message, body) }
}

/// Converts a convolution weight.
///
/// # Safety
/// Pointers are null or lead to what the header says, as do the tensors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_convert_conv_weight(
    from: *const undraft_tensor,
    to: *const undraft_tensor,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = || -> Result<()> {
        // SAFETY: by this function's contract.
        let (from, to, mut tensors) = unsafe { (read_tensor("from", from)?, read_tensor("to", to)?, Tensors::new()) };
        let last = if from.ndim == 3 { 2 } else { 1 };
        let dims = ConvDims::new(from.axis(0), from.axis(last))?;
        let (channels, width) = (("channels", dims.channels()), ("conv_width", dims.width()));
        let with_axis = [channels, ("1", 1), width];
        let axes: &[_] = if from.ndim == 3 { &with_axis } else { &[channels, width] };
        let from = tensors.read("from", &from, F32, axes)?;
        let to = tensors.write("to", &to, F32, &[width, channels])?;
        let shown = tensors.disjoint()?;
        Ok(conv_weight_to_tap_major(&dims, from.f32s(&shown), to.f32s_mut(&shown))?)
    };
    // SAFETY: `message` by this function's contract.
    unsafe { guard(message, body) }
}
