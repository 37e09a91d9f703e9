//! C interface of undraft. `include/undraft.h` and `include/undraft_ops.h` are its documentation; `tests/header.rs` holds them
//! against what is declared here.
//!
//! Every function that can fail runs in `status::guard`, which turns errors and panics into a status and a message. Pointers of
//! the caller become references in two places: `tensor.rs`, and `pointer.rs` for what is no tensor.
#![allow(non_camel_case_types)]

#[cfg(not(panic = "unwind"))]
compile_error!("undraft-c catches panics at the border to C, expected a profile with `panic = \"unwind\"`");

pub mod choices;
pub mod device;
pub mod layer;
pub mod ops;
mod pointer;
pub mod pool;
pub mod round;
pub mod sizes;
pub mod slots;
pub mod snapshot;
pub mod states;
pub mod status;
pub mod tensor;
