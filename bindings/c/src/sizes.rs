//! Sizes of a layer.

use std::ffi::c_char;

use undraft::{ConvDims, GdnDims, LayerDims};

use crate::choices::{decay_shape, float_dtype, undraft_decay_shape, undraft_dtype};
use crate::pointer::{check_reserved, check_writable, list, sized, write_sized};
use crate::status::{Failure, Result, guard, undraft_status};

/// Sizes of one Gated DeltaNet layer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_gdn_dims {
    /// `H`.
    pub num_k_heads: u32,
    /// `HV`.
    pub num_v_heads: u32,
    /// `K`.
    pub head_k_dim: u32,
    /// `V`.
    pub head_v_dim: u32,
    /// Over what the state decays.
    pub decay_shape: undraft_decay_shape,
    /// `W`.
    pub conv_width: u32,
    /// 0.
    pub reserved: [u32; 2],
}

impl undraft_gdn_dims {
    /// Sizes without the convolution's.
    pub(crate) fn gdn(&self) -> Result<GdnDims> {
        check_reserved("undraft_gdn_dims", &self.reserved)?;
        let [h, hv, k, v] =
            [self.num_k_heads, self.num_v_heads, self.head_k_dim, self.head_v_dim].map(|size| size as usize);
        Ok(GdnDims::new(h, hv, k, v)?.with_decay_shape(decay_shape("decay_shape", self.decay_shape)?))
    }
    pub(crate) fn layer(&self) -> Result<LayerDims> {
        let dims = LayerDims { gdn: self.gdn()?, conv_width: self.conv_width as usize };
        ConvDims::new(dims.gdn.conv_dim(), dims.conv_width)?;
        Ok(dims)
    }
}

/// Elements and bytes of one layer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_gdn_sizes {
    /// Bytes of the struct.
    pub size: usize,
    /// `H K`.
    pub key_dim: usize,
    /// `HV V`.
    pub value_dim: usize,
    /// `C`.
    pub conv_dim: usize,
    /// `HV`, or `HV K`.
    pub decay_len: usize,
    /// `HV V K`.
    pub state_len: usize,
    /// `(W - 1) C`.
    pub conv_state_len: usize,
    /// Elements of a token of the delta log.
    pub log_len: usize,
    /// Bytes of a slot's recurrent state.
    pub state_bytes: usize,
    /// Bytes of a slot's convolution state.
    pub conv_state_bytes: usize,
    /// Bytes of a token of the delta log.
    pub log_bytes: usize,
    /// Bytes of a token of the convolution's log.
    pub conv_log_bytes: usize,
}
sized!(undraft_gdn_sizes);

/// Sizes of a layer.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_gdn_get_sizes(
    dims: *const undraft_gdn_dims,
    state_dtype: undraft_dtype,
    sizes: *mut undraft_gdn_sizes,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = || {
        // SAFETY: one struct, by this function's contract.
        let dims = unsafe { list("dims", dims, 1) }?;
        check_writable("sizes", sizes)?;
        let Some(dims) = dims.first() else { return Err(Failure::invalid("`dims` is empty, expected a struct")) };
        let LayerDims { gdn, conv_width } = dims.layer()?;
        let dtype = float_dtype("state_dtype", state_dtype)?;
        let conv_state_len = (conv_width - 1) * gdn.conv_dim();
        let values = undraft_gdn_sizes {
            size: size_of::<undraft_gdn_sizes>(),
            key_dim: gdn.key_dim(),
            value_dim: gdn.value_dim(),
            conv_dim: gdn.conv_dim(),
            decay_len: gdn.decay_len(),
            state_len: gdn.state_len(),
            conv_state_len,
            log_len: gdn.log_len(),
            state_bytes: dtype.size() * gdn.state_len(),
            conv_state_bytes: 4 * conv_state_len,
            log_bytes: 4 * gdn.log_len(),
            conv_log_bytes: 4 * gdn.conv_dim(),
        };
        // SAFETY: a struct of as many bytes as it says, by this function's contract.
        unsafe { write_sized("sizes", sizes, values) }
    };
    // SAFETY: `message` by this function's contract.
    unsafe { guard(message, body) }
}
