//! The single operations, on memory of the caller.

pub mod causal_conv1d;
pub mod commit_states;
pub mod convert;
pub mod delta_rule;
pub mod fused_gdn_gating;
pub mod rms_norm_gated;

use std::ffi::c_char;

use undraft::{DecayShape, DeltaLogMut, GdnDims};

use crate::device::undraft_device;
use crate::pointer::{Sized_, object, read_sized};
use crate::status::{Failure, Result, guard, undraft_status};
use crate::tensor::{Disjoint, F32, Tensors, View, undraft_tensor};

/// Runs an operation on its argument struct.
///
/// # Safety
/// Pointers are null or lead to what the header says, as do the tensors of the struct.
unsafe fn run<T: Sized_>(
    device: *const undraft_device,
    args: *const T,
    message: *mut *mut c_char,
    body: impl FnOnce(&undraft_device, &T, Tensors<'_>) -> Result<()>,
) -> undraft_status {
    let body = || {
        // SAFETY: by this function's contract.
        let (device, args, tensors) = unsafe { (object("device", device)?, read_sized("args", args)?, Tensors::new()) };
        body(device, &args, tensors)
    };
    // SAFETY: `message` by this function's contract.
    unsafe { guard(message, body) }
}

/// The tensors' first axis is what the sequences add up to; everything else about them is checked by the operation.
fn check_total(cu_seqlens: &[i32], num_tokens: usize) -> Result<()> {
    match cu_seqlens.last() {
        Some(&last) if usize::try_from(last) != Ok(num_tokens) => {
            Err(Failure::invalid(format!("`cu_seqlens` ends with {last}, expected num_tokens = {num_tokens}")))
        }
        _ => Ok(()),
    }
}

/// `[N, HV]` or `[N, HV, K]`.
fn decay_axes(dims: &GdnDims, first: (&'static str, usize)) -> ([(&'static str, usize); 3], usize) {
    let axes = [first, ("num_v_heads", dims.num_v_heads()), ("head_k_dim", dims.head_k_dim())];
    (axes, if dims.decay_shape() == DecayShape::PerHead { 2 } else { 3 })
}

/// k as used, the decay factor and delta of each token.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_delta_log {
    /// `[num_slots, max_tokens, H, K]`.
    pub k: undraft_tensor,
    /// `[num_slots, max_tokens, HV]` or `[num_slots, max_tokens, HV, K]`.
    pub decay: undraft_tensor,
    /// `[num_slots, max_tokens, HV, V]`.
    pub delta: undraft_tensor,
}

/// A checked log.
struct LogViews {
    k: View,
    decay: View,
    delta: View,
    max_tokens: usize,
}

impl undraft_delta_log {
    fn is_absent(&self) -> bool {
        [&self.k, &self.decay, &self.delta].into_iter().all(|tensor| tensor.is_absent())
    }
    /// Tokens that a slot may hold.
    fn max_tokens(&self) -> usize {
        self.k.axis(1)
    }
    fn views(&self, tensors: &mut Tensors<'_>, dims: &GdnDims, num_slots: usize) -> Result<LogViews> {
        let max_tokens = self.max_tokens();
        let (slots, tokens) = (("num_slots", num_slots), ("max_tokens", max_tokens));
        let (h, hv) = (("num_k_heads", dims.num_k_heads()), ("num_v_heads", dims.num_v_heads()));
        let (of_k, of_v) = (("head_k_dim", dims.head_k_dim()), ("head_v_dim", dims.head_v_dim()));
        let decay = [slots, tokens, hv, of_k];
        let num_axes = if dims.decay_shape() == DecayShape::PerHead { 3 } else { 4 };
        Ok(LogViews {
            k: tensors.write("log.k", &self.k, F32, &[slots, tokens, h, of_k])?,
            decay: tensors.write("log.decay", &self.decay, F32, &decay[..num_axes])?,
            delta: tensors.write("log.delta", &self.delta, F32, &[slots, tokens, hv, of_v])?,
            max_tokens,
        })
    }
}

impl LogViews {
    fn log<'t>(self, shown: &'t Disjoint<'_>) -> DeltaLogMut<'t> {
        DeltaLogMut {
            k: self.k.f32s_mut(shown),
            decay: self.decay.f32s_mut(shown),
            delta: self.delta.f32s_mut(shown),
            max_tokens: self.max_tokens,
        }
    }
}

/// `[outer.., HV, V, K]`.
fn state_axes(dims: &GdnDims, outer: (&'static str, usize)) -> [(&'static str, usize); 4] {
    [outer, ("num_v_heads", dims.num_v_heads()), ("head_v_dim", dims.head_v_dim()), ("head_k_dim", dims.head_k_dim())]
}
