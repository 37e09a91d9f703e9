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

use undraft_core::{Capture, DType};

pub use crate::ops::causal_conv1d_update::{ConvBuffers, ConvParams};
pub use crate::ops::commit_states::{CommitBuffers, CommitParams};
pub use crate::ops::fused_gdn_gating::{GatingBuffers, GatingParams};
pub use crate::ops::fused_recurrent_gated_delta_rule::{RecurrentBuffers, RecurrentParams};
pub use crate::ops::rms_norm_gated::{NormBuffers, NormParams};

/// The place of a list that is not given.
pub const NONE: u32 = u32::MAX;

/// Element type of a tensor, as kernels know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Elements {
    /// f32.
    #[default]
    F32 = 0,
    /// bf16.
    Bf16 = 1,
    /// f16.
    F16 = 2,
}

impl Elements {
    /// The number that a kernel is given.
    pub fn word(self) -> u32 {
        self as u32
    }
}

impl From<DType> for Elements {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::F32 => Elements::F32,
            DType::Bf16 => Elements::Bf16,
            DType::F16 => Elements::F16,
        }
    }
}

/// How the decay is given; see [`undraft_core::Decay`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum DecayForm {
    /// `g`; the factor is `exp(g)`.
    #[default]
    Log = 0,
    /// The factor.
    Linear = 1,
    /// `-g`.
    NegLog = 2,
    /// `a`, with `a_log` and `dt_bias`.
    Gate = 3,
}

impl DecayForm {
    /// The number that a kernel is given.
    pub fn word(self) -> u32 {
        self as u32
    }
}

/// What a window leaves; see [`Capture`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Captured {
    /// The state after the window.
    #[default]
    Final = 0,
    /// The state after each token.
    PerToken = 1,
    /// The window's log.
    DeltaLog = 2,
}

impl Captured {
    /// The number that a kernel is given.
    pub fn word(self) -> u32 {
        self as u32
    }
}

impl From<Capture> for Captured {
    fn from(capture: Capture) -> Self {
        match capture {
            Capture::Final => Captured::Final,
            Capture::PerToken => Captured::PerToken,
            Capture::DeltaLog => Captured::DeltaLog,
        }
    }
}
