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

/// Constants of these states: element type, and elements that are moved at a time.
pub(super) fn state_constants(kind: StateKind) -> [(&'static str, u32); 2] {
    let at_once = if kind.access == StateAccess::Fours { 4 } else { 1 };
    [("STATE", Elements::from(kind.dtype).word()), ("AT_ONCE", at_once)]
}
