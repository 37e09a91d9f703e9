//! One file an operation: the kernel's parameters, its dispatch, and the call over host memory.

pub(crate) mod fused_gdn_gating;
