//! Dispatches on the caller's buffers.
//!
//! An operation is a method of [`Batch`](crate::Batch) that adds a dispatch; a finished batch is encoded into a compute pass of
//! the caller's, as often as one likes. Encoding waits for nothing and allocates nothing; putting a batch together makes bind
//! groups and one uniform buffer. Everything that changes from round to round (lengths, slots, counts of kept tokens, paths) is
//! read on the device when the kernel runs, so that a batch outlives the round.
//!
//! # Contract
//!
//! 1. Offsets (`.._first`) and strides count elements of the tensor, from the beginning of the part that is bound. A tensor of
//!    16-bit elements lies two a word, the first in the lower half. Numbers are 32 bits wide.
//! 2. The parts are as large as the documented shapes. Beyond their ends nothing is read or written, but what comes out is then
//!    unspecified.
//! 3. One buffer is bound for writing once in a dispatch; parts that are read may overlap.
//! 4. `cu_seqlens` rises from 0; `state_indices` are -1 or slots, each once; counts are at most the capacity that is given; paths
//!    rise; parents come before their children, and a window with another parent than the token before has a capture that keeps
//!    the state. These are the facts that `check` of [`undraft_core::ops`] lists.

pub use undraft_core::words::{Captured, DecayForm, Elements};

pub use crate::ops::causal_conv1d_update::{ConvBuffers, ConvParams};
pub use crate::ops::commit_states::{CommitBuffers, CommitParams};
pub use crate::ops::fused_gdn_gating::{GatingBuffers, GatingParams};
pub use crate::ops::fused_recurrent_gated_delta_rule::{RecurrentBuffers, RecurrentParams};
pub use crate::ops::rms_norm_gated::{NormBuffers, NormParams};

/// The place of a list that is not given.
pub const NONE: u32 = u32::MAX;
