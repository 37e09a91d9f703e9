//! Words that kernels are given: numbers of 32 bits that stand for dtypes, decay forms and captures, the same on every device.

use crate::capture::Capture;
use crate::rows::DType;

/// Element type of a tensor, as kernels know it.
///
/// ```
/// use undraft_core::words::Elements;
/// use undraft_core::DType;
///
/// assert_eq!(Elements::from(DType::Bf16).word(), 1);
/// assert_eq!(DType::from(Elements::F16), DType::F16);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
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
    /// The number.
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

impl From<Elements> for DType {
    fn from(elements: Elements) -> Self {
        match elements {
            Elements::F32 => DType::F32,
            Elements::Bf16 => DType::Bf16,
            Elements::F16 => DType::F16,
        }
    }
}

/// How the decay is given; see [`crate::Decay`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
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
    /// The number.
    pub fn word(self) -> u32 {
        self as u32
    }
}

/// What a window leaves; see [`Capture`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
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
    /// The number.
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

/// A yes or no.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Switch {
    /// No.
    #[default]
    Off = 0,
    /// Yes.
    On = 1,
}

impl From<bool> for Switch {
    fn from(on: bool) -> Self {
        if on { Switch::On } else { Switch::Off }
    }
}
