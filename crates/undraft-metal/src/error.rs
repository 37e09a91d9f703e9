//! What can go wrong on the way to a GPU and on it.

/// Result of a launch or of opening a device.
pub type Result<T, E = MetalError> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MetalError {
    /// Metal is a part of Apple's systems.
    #[error("this is no Apple system, expected one for a Metal device")]
    NotApple,
    /// The system has no Metal device.
    #[error("this system has no Metal device")]
    NoDevice,
    /// The kernels did not compile.
    #[error("the kernels `{library}` did not compile: {why}")]
    Compile {
        /// File of kernels.
        library: &'static str,
        /// What the compiler says.
        why: String,
    },
    /// A kernel could not be made ready.
    #[error("no pipeline of the kernel `{kernel}`: {why}")]
    Pipeline {
        /// The kernel.
        kernel: String,
        /// Why not.
        why: String,
    },
    /// The device failed, or refused a call.
    #[error("`{call}` failed: {why}")]
    Device {
        /// The call.
        call: &'static str,
        /// What the device says.
        why: String,
    },
    /// A buffer cannot be so large.
    #[error("a buffer of {elements} elements was asked for, expected fewer bytes than addresses")]
    TooLarge {
        /// Elements that were asked for.
        elements: usize,
    },
    /// Elements beyond the end of a buffer.
    #[error("elements {start}..{end} of a buffer, expected a range of 0..{len}")]
    OutOfBuffer {
        /// First element.
        start: usize,
        /// Behind the last element.
        end: usize,
        /// Elements of the buffer.
        len: usize,
    },
    /// The call does not fit a launch of this device.
    #[error("`{op}` needs {got} {what}, expected at most {most}")]
    Launch {
        /// Operation.
        op: &'static str,
        /// What it needs.
        what: &'static str,
        /// How much of it.
        got: u64,
        /// How much there is.
        most: u64,
    },
    /// A launch has an argument that its kernel does not take.
    #[error("`{op}`: `{arg}` is {got}, expected {expected}")]
    Argument {
        /// Operation.
        op: &'static str,
        /// Argument.
        arg: &'static str,
        /// Value that came.
        got: i64,
        /// What it must be.
        expected: &'static str,
    },
}

impl From<MetalError> for undraft_core::Error {
    fn from(e: MetalError) -> Self {
        undraft_core::Error::Device { backend: crate::backend::NAME, why: e.to_string() }
    }
}
