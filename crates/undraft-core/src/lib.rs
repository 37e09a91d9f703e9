//! Words, contracts and checks shared by every back end of undraft.
//!
//! This crate has no kernels and no `unsafe`. It says what a Gated DeltaNet (GDN) layer's sizes are ([`GdnDims`]), how
//! its tensors lie in memory ([`Rows`], [`StateLayout`]), which conventions a caller uses ([`Decay`], [`Beta`],
//! [`HeadMap`], [`QkNorm`]) and what every operation expects ([`ops`]). An argument struct becomes usable only through
//! its `check`, which returns [`Checked`]; back ends take nothing else, so a kernel may rely on the listed facts.
//!
//! ```
//! use undraft_core::{GdnDims, Error};
//!
//! let dims = GdnDims::new(16, 32, 128, 128)?;
//! assert_eq!(dims.conv_dim(), 2 * 16 * 128 + 32 * 128);
//! assert!(matches!(GdnDims::new(16, 40, 128, 128), Err(Error::NotMultiple { .. })));
//! # Ok::<(), Error>(())
//! ```
#![forbid(unsafe_code)]

mod backend;
mod capture;
mod conventions;
mod dims;
mod error;
mod layout;
pub mod ops;
mod rows;
mod seqlens;
pub mod words;

pub use backend::{Backend, Caps, Op, Support};
pub use capture::{Capture, CaptureMut, DeltaLogDims, DeltaLogMut};
pub use conventions::{Activation, Beta, Decay, DecayShape, HeadMap, QkNorm, Rounding};
pub use dims::{ConvDims, GdnDims, MAX_CONV_WIDTH, MAX_HEAD_DIM, MIN_CONV_WIDTH};
pub use error::{Error, NamedShape, Result};
pub use half::{bf16, f16};
pub use layout::{
    StateLayout, conv_state_to_channel_major, conv_state_to_time_major, conv_weight_to_tap_major, state_to_key_major,
    state_to_value_major,
};
pub use ops::Checked;
pub use rows::{DType, Data, DataMut, Rows, RowsMut};
pub use seqlens::{CuSeqlens, PAD_SLOT, StateIndices, is_chain};
