//! What can go wrong on the way to a GPU and on it.

use cudarc::driver::DriverError;

/// Result of a launch or of opening a device.
pub type Result<T, E = CudaError> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver's library is not on this machine.
    #[error("no NVIDIA driver found, expected one of the libraries {}", names.join(", "))]
    NoDriver {
        /// Names that were tried.
        names: &'static [&'static str],
    },
    /// There is no such device.
    #[error("CUDA device {ordinal} was asked for, expected 0..{count}, the devices of this machine")]
    NoDevice {
        /// Device that was asked for.
        ordinal: usize,
        /// Devices of this machine.
        count: usize,
    },
    /// The device is older than the kernels.
    #[error("CUDA device {ordinal} has compute capability {major}.{minor}, expected 8.0 or later")]
    ComputeCapability {
        /// Device.
        ordinal: usize,
        /// Major number.
        major: i32,
        /// Minor number.
        minor: i32,
    },
    /// A call of the driver failed.
    #[error("`{call}` failed with {source}")]
    Driver {
        /// The call.
        call: &'static str,
        /// What the driver says.
        source: DriverError,
    },
    /// A call of a driver other than CUDA's failed.
    #[error("`{call}` failed: {why}")]
    OtherDriver {
        /// The call.
        call: &'static str,
        /// What that driver says.
        why: String,
    },
    /// A kernel takes another parameter.
    #[error("the parameter of the kernel has {got} bytes, expected {expected}")]
    Params {
        /// Bytes that were given.
        got: usize,
        /// Bytes that the kernel takes.
        expected: usize,
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
    /// A buffer was used on a stream of another driver.
    #[error("the stream belongs to another driver, expected one of the buffer's")]
    ForeignStream,
    /// NVRTC is not on this machine.
    #[error("no compiler of kernels found, expected the library NVRTC of CUDA 12 or later")]
    NoCompiler,
    /// NVRTC failed.
    #[error("`{call}` failed: {why}")]
    Compiler {
        /// The call.
        call: &'static str,
        /// What NVRTC says.
        why: String,
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
}

impl CudaError {
    /// Names the call that failed.
    pub(crate) fn driver(call: &'static str) -> impl FnOnce(DriverError) -> Self {
        move |source| CudaError::Driver { call, source }
    }
}

impl From<CudaError> for undraft_core::Error {
    fn from(e: CudaError) -> Self {
        undraft_core::Error::Device { backend: crate::backend::NAME, why: e.to_string() }
    }
}
