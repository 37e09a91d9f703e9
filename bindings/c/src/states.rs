//! A slot's states out and in, with the layout converted at the border.

use std::ffi::c_char;

use undraft::{
    ConvDims, DType, DataMut, GdnDims, LayerDims, StateLayout, bf16, conv_state_to_channel_major,
    conv_state_to_time_major, f16,
};

use crate::choices::{ConvLayout, conv_layout, state_layout, undraft_conv_layout, undraft_state_layout};
use crate::pool::{Pool, undraft_pool, undraft_slot, with_pool};
use crate::status::{Failure, Result, undraft_status};
use crate::tensor::{F32, FLOAT, Tensors, View, read_tensor, undraft_tensor};

fn state_shape(dims: &GdnDims, layout: StateLayout) -> [(&'static str, usize); 3] {
    let (hv, k, v) =
        (("num_v_heads", dims.num_v_heads()), ("head_k_dim", dims.head_k_dim()), ("head_v_dim", dims.head_v_dim()));
    match layout {
        StateLayout::ValueMajor => [hv, v, k],
        StateLayout::KeyMajor => [hv, k, v],
    }
}

fn conv_shape(dims: &LayerDims, layout: ConvLayout) -> [(&'static str, usize); 2] {
    let (channels, taps) = (("channels", dims.gdn.conv_dim()), ("conv_width - 1", dims.conv_width - 1));
    match layout {
        ConvLayout::TimeMajor => [taps, channels],
        ConvLayout::ChannelMajor => [channels, taps],
    }
}

/// f32 everywhere, and 16 bits where nothing is lost.
fn check_state_dtype(arg: &'static str, view: &View, states: DType, is_export: bool) -> Result<()> {
    let got = view.dtype();
    if got == DType::F32 || got == states || (states == DType::F32 && !is_export) {
        return Ok(());
    }
    let or = if states == DType::F32 { String::new() } else { format!(" or {}", states.name()) };
    Err(Failure::invalid(format!("`{arg}` is {}, expected f32{or} with the pool's `state_dtype`", got.name())))
}

/// Copies a recurrent state out.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_slot_export_state(
    pool: *mut undraft_pool,
    slot: undraft_slot,
    layer: usize,
    layout: undraft_state_layout,
    to: *const undraft_tensor,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = |pool: &mut Pool| {
        let (slot, dims, layout) = (pool.slot(slot)?, pool.layer(layer)?.gdn, state_layout("layout", layout)?);
        // SAFETY: by this function's contract.
        let (to, mut tensors) = unsafe { (read_tensor("to", to)?, Tensors::new()) };
        let to = tensors.write("to", &to, FLOAT, &state_shape(&dims, layout))?;
        check_state_dtype("to", &to, pool.state_dtype, true)?;
        let shown = tensors.disjoint()?;
        match to.data_mut(&shown) {
            DataMut::F32(to) => {
                pool.states.export_recurrent(layer, slot, layout, to).map_err(|error| pool.failure(error))?;
            }
            // Exact: the state has this dtype.
            to => {
                let mut values = vec![0.0; dims.state_len()];
                pool.states.export_recurrent(layer, slot, layout, &mut values).map_err(|error| pool.failure(error))?;
                match to {
                    DataMut::F32(to) => to.copy_from_slice(&values),
                    DataMut::Bf16(to) => to.iter_mut().zip(values).for_each(|(to, x)| *to = bf16::from_f32(x)),
                    DataMut::F16(to) => to.iter_mut().zip(values).for_each(|(to, x)| *to = f16::from_f32(x)),
                }
            }
        }
        Ok(())
    };
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, body) }
}

/// Overwrites a recurrent state.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_slot_import_state(
    pool: *mut undraft_pool,
    slot: undraft_slot,
    layer: usize,
    layout: undraft_state_layout,
    from: *const undraft_tensor,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = |pool: &mut Pool| {
        let (slot, dims, layout) = (pool.slot(slot)?, pool.layer(layer)?.gdn, state_layout("layout", layout)?);
        // SAFETY: by this function's contract.
        let (from, mut tensors) = unsafe { (read_tensor("from", from)?, Tensors::new()) };
        let from = tensors.read("from", &from, FLOAT, &state_shape(&dims, layout))?;
        check_state_dtype("from", &from, pool.state_dtype, false)?;
        let shown = tensors.disjoint()?;
        let values = from.data(&shown).to_f32();
        pool.states.import_recurrent(layer, slot, layout, &values).map_err(|error| pool.failure(error))
    };
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, body) }
}

/// Copies a convolution state out.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_slot_export_conv(
    pool: *mut undraft_pool,
    slot: undraft_slot,
    layer: usize,
    layout: undraft_conv_layout,
    to: *const undraft_tensor,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = |pool: &mut Pool| {
        let (slot, dims, layout) = (pool.slot(slot)?, pool.layer(layer)?, conv_layout("layout", layout)?);
        // SAFETY: by this function's contract.
        let (to, mut tensors) = unsafe { (read_tensor("to", to)?, Tensors::new()) };
        let to = tensors.write("to", &to, F32, &conv_shape(&dims, layout))?;
        let shown = tensors.disjoint()?;
        let conv = ConvDims::new(dims.gdn.conv_dim(), dims.conv_width)?;
        let state = match pool.states.conv_state(layer, slot) {
            Ok(state) => state,
            Err(error) => return Err(pool.failure(error)),
        };
        match layout {
            ConvLayout::TimeMajor => to.f32s_mut(&shown).copy_from_slice(state),
            ConvLayout::ChannelMajor => conv_state_to_channel_major(&conv, state, to.f32s_mut(&shown))?,
        }
        Ok(())
    };
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, body) }
}

/// Overwrites a convolution state.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_slot_import_conv(
    pool: *mut undraft_pool,
    slot: undraft_slot,
    layer: usize,
    layout: undraft_conv_layout,
    from: *const undraft_tensor,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = |pool: &mut Pool| {
        let (slot, dims, layout) = (pool.slot(slot)?, pool.layer(layer)?, conv_layout("layout", layout)?);
        // SAFETY: by this function's contract.
        let (from, mut tensors) = unsafe { (read_tensor("from", from)?, Tensors::new()) };
        let from = tensors.read("from", &from, F32, &conv_shape(&dims, layout))?;
        let shown = tensors.disjoint()?;
        let from = from.f32s(&shown);
        let conv = ConvDims::new(dims.gdn.conv_dim(), dims.conv_width)?;
        let mut values = vec![0.0; conv.state_len()];
        match layout {
            ConvLayout::TimeMajor => values.copy_from_slice(from),
            ConvLayout::ChannelMajor => conv_state_to_time_major(&conv, from, &mut values)?,
        }
        pool.states.import_conv(layer, slot, &values).map_err(|error| pool.failure(error))
    };
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, body) }
}
