//! What can be wrong with a call from Python; every sentence names the argument, what was expected and what came.

use std::fmt;

use undraft::OpError;
use undraft::cuda::CudaError;

use crate::tensor::{Device, ElementType, Shape};

/// Result of a check or a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was wrong; nothing was touched.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operation's own check, or its back end.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The CUDA device cannot be had, or has failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A tensor has the wrong shape.
    #[error("`{arg}` has shape {got}, expected {expected}{hint}")]
    Shape {
        /// Argument.
        arg: &'static str,
        /// Shape that came.
        got: Box<Shape>,
        /// Axes by name.
        expected: Axes,
        /// How to mend it, or nothing.
        hint: &'static str,
    },
    /// A tensor has the wrong number of axes.
    #[error("`{arg}` has shape {got}, expected {expected}")]
    Rank {
        /// Argument.
        arg: &'static str,
        /// Shape that came.
        got: Box<Shape>,
        /// Axes in words.
        expected: &'static str,
    },
    /// A tensor has the wrong dtype.
    #[error("`{arg}` is {got}, expected {expected}; convert it with {hint}")]
    Elements {
        /// Argument.
        arg: &'static str,
        /// Dtype that came.
        got: ElementType,
        /// Dtypes that are taken.
        expected: &'static str,
        /// A call that converts it.
        hint: &'static str,
    },
    /// A tensor lies on another device than the others.
    #[error("`{arg}` lies on {got}, expected {expected} as `{of_arg}`; move it there first")]
    Device {
        /// Argument.
        arg: &'static str,
        /// Device that came.
        got: Device,
        /// The other argument.
        of_arg: &'static str,
        /// Its device.
        expected: Device,
    },
    /// A tensor lies where the operations do not run.
    #[error("`{arg}` lies on {got}, expected {expected}")]
    UnsupportedDevice {
        /// Argument.
        arg: &'static str,
        /// Device that came.
        got: Device,
        /// Where it should lie.
        expected: &'static str,
    },
    /// Elements do not lie as they must.
    #[error("`{arg}` has shape {shape} and strides {strides}, expected {expected}; pass `{arg}.contiguous()`")]
    Strides {
        /// Argument.
        arg: &'static str,
        /// Its shape.
        shape: Box<Shape>,
        /// Strides that came.
        strides: Box<Shape>,
        /// How it should lie.
        expected: &'static str,
    },
    /// A tensor on CUDA does not begin where vectors may be loaded.
    #[error("`{arg}` begins at an address that is no multiple of {alignment} bytes; pass `{arg}.clone()`")]
    Alignment {
        /// Argument.
        arg: &'static str,
        /// Bytes.
        alignment: usize,
    },
    /// What a call writes lies over another of its tensors.
    #[error("`{arg}` is written and shares memory with `{other}`, expected memory of its own; pass another tensor")]
    Overlap {
        /// Argument that is written.
        arg: &'static str,
        /// The other argument.
        other: &'static str,
    },
    /// An array may not be written.
    #[error("`{arg}` is read-only, expected an array that can be written; pass a copy")]
    ReadOnly {
        /// Argument.
        arg: &'static str,
    },
    /// An argument is needed by the others and is absent.
    #[error("`{arg}` is missing, expected it {because}")]
    Missing {
        /// Argument.
        arg: &'static str,
        /// With what it belongs.
        because: &'static str,
    },
    /// An argument came without the one that it belongs to.
    #[error("`{arg}` came, expected it {only} alone")]
    Unexpected {
        /// Argument.
        arg: &'static str,
        /// With what it belongs.
        only: &'static str,
    },
    /// A number is none of those that mean something.
    #[error("`{arg}` is {got}, expected {expected}")]
    Number {
        /// Argument.
        arg: &'static str,
        /// What came.
        got: i64,
        /// What is taken.
        expected: &'static str,
    },
    /// The sequences do not end where the tokens do.
    #[error("`cu_seqlens` ends at {got}, expected {num_tokens}, the tokens of `{of_arg}`")]
    NumTokens {
        /// Last entry.
        got: i32,
        /// The other argument.
        of_arg: &'static str,
        /// Its tokens.
        num_tokens: usize,
    },
    /// A sequence is longer than was promised.
    #[error("`max_window` is {max_window}, expected at least {got}, the tokens of sequence {seq}")]
    MaxWindow {
        /// The promise.
        max_window: usize,
        /// Sequence of the call.
        seq: usize,
        /// Its tokens.
        got: usize,
    },
    /// The kernels of a device are needed in a capture and are not loaded.
    #[error(
        "the kernels of cuda:{index} are not loaded, and the stream is capturing a CUDA graph, which cannot load them; call \
         `undraft.torch.load({index})` before the capture"
    )]
    NotLoaded {
        /// Device.
        index: i32,
    },
    /// torch does not have what the operations need of it.
    #[error("torch cannot be used: {why}")]
    Torch {
        /// What is missing.
        why: String,
    },
    /// A defect of this library.
    #[error("internal error of undraft: {what}")]
    Internal {
        /// What happened.
        what: String,
    },
}

/// Axes by name and size, printed as `[B=2, num_v_heads=32]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axes(pub Vec<(&'static str, usize)>);

impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, (name, size)) in self.0.iter().enumerate() {
            write!(f, "{}{name}={size}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}
