//! What can go wrong on the way to an adapter and on it.

/// Result of opening a device, of a kernel or of a dispatch.
pub type Result<T, E = WgpuError> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WgpuError {
    /// There is no adapter at all: no driver, or none that wgpu knows.
    #[error("no adapter found, expected a driver of Vulkan, DirectX 12 or Metal")]
    NoAdapter,
    /// There is no adapter of this number.
    #[error("wgpu adapter {ordinal} was asked for, expected 0..{count}, the adapters of this machine")]
    NoSuchAdapter {
        /// Number that was asked for.
        ordinal: usize,
        /// Adapters of this machine.
        count: usize,
    },
    /// No adapter has such a name.
    #[error("no wgpu adapter has a name with {name:?}, expected one of {}", names.join(", "))]
    NoAdapterNamed {
        /// Name, or part of it, that was asked for.
        name: String,
        /// Names of this machine's adapters.
        names: Vec<String>,
    },
    /// The adapter refused to make a device.
    #[error("adapter {adapter} makes no device: {why}")]
    NoDevice {
        /// Adapter.
        adapter: String,
        /// What wgpu says.
        why: String,
    },
    /// A call needs more than the adapter has.
    #[error("`{what}` is {got}, expected at most {most}, the limit `{limit}` of adapter {adapter}")]
    Limit {
        /// What is too large.
        what: String,
        /// How large it is.
        got: u64,
        /// How large it may be.
        most: u64,
        /// The limit by wgpu's name.
        limit: &'static str,
        /// Adapter.
        adapter: String,
    },
    /// The part of a buffer that is bound begins where no part may begin.
    #[error("`{what}` begins at byte {got}, expected a multiple of {of}, the limit `{limit}` of adapter {adapter}")]
    Alignment {
        /// What is bound.
        what: String,
        /// Byte that it begins at.
        got: u64,
        /// What that has to be a multiple of.
        of: u64,
        /// The limit by wgpu's name.
        limit: &'static str,
        /// Adapter.
        adapter: String,
    },
    /// A part of a buffer that is not there.
    #[error("`{what}` has bytes {start}..{end}, expected a range of 0..{len}")]
    OutOfBuffer {
        /// What is bound, read or written.
        what: String,
        /// First byte.
        start: u64,
        /// Behind the last byte.
        end: u64,
        /// Bytes of the buffer.
        len: u64,
    },
    /// A number that 32 bits do not hold, where a kernel has no more.
    #[error("`{arg}` is {got}, expected at most {}, what a kernel counts to", u32::MAX)]
    TooLarge {
        /// Argument.
        arg: &'static str,
        /// Value that came.
        got: u64,
    },
    /// A kernel takes another number of buffers.
    #[error("kernel {kernel} was given {got} buffers, expected {expected}")]
    Bindings {
        /// Kernel.
        kernel: String,
        /// Buffers that were given.
        got: usize,
        /// Buffers that it has.
        expected: usize,
    },
    /// The text of a kernel is not as it has to be.
    #[error("kernel {kernel}: {why}")]
    Kernel {
        /// Kernel.
        kernel: String,
        /// What is wrong.
        why: String,
    },
    /// wgpu or the driver failed.
    #[error("adapter {adapter}: {why}")]
    Device {
        /// Adapter.
        adapter: String,
        /// What wgpu says.
        why: String,
    },
}

/// The operations' error type has no variant for a device, so that a failure of one comes as `Unsupported` with the words
/// of [`WgpuError`].
impl From<WgpuError> for undraft_core::Error {
    fn from(e: WgpuError) -> Self {
        undraft_core::Error::Unsupported {
            backend: crate::backend::NAME,
            what: e.to_string(),
            hint: "the device could not run the call",
        }
    }
}
