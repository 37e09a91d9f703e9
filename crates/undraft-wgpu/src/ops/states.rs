//! What the kernels of states have in common.

use undraft_core::DType;

use crate::raw::Elements;
use crate::select::{StateAccess, StateKind};

/// The text that loads and stores the states of a kind.
pub(super) fn state_file(kind: StateKind) -> &'static str {
    match (kind.dtype, kind.access) {
        (DType::F32, StateAccess::Fours) => include_str!("../../kernels/state_f32_x4.wgsl"),
        (DType::F32, StateAccess::Ones) => include_str!("../../kernels/state_f32_x1.wgsl"),
        (_, StateAccess::Fours) => include_str!("../../kernels/state_half_x4.wgsl"),
        (_, StateAccess::Ones) => include_str!("../../kernels/state_half_x1.wgsl"),
    }
}

/// As in the kernels' prelude.
const ANY_HALF: u32 = 3;

/// Constants of these states: element type, and elements that are moved at a time.
///
/// Without `fused`, where kernels are few rather than fast, one kernel serves both element types of 16 bits.
pub(super) fn state_constants(kind: StateKind, fused: bool) -> [(&'static str, u32); 2] {
    let dtype = match kind.dtype {
        DType::Bf16 | DType::F16 if !fused => ANY_HALF,
        dtype => Elements::from(dtype).word(),
    };
    let at_once = if kind.access == StateAccess::Fours { 4 } else { 1 };
    [("STATE", dtype), ("AT_ONCE", at_once)]
}
