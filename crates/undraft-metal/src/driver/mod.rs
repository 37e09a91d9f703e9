//! What the crate asks of Metal, behind one trait: memory that host and device share, pipelines, command encoders.
//!
//! `MetalDriver` (on Apple's systems) calls Metal. Anything else that implements [`Driver`] runs the same host code: an
//! emulator does so in the tests.

mod buffer;
mod commands;
#[cfg(target_vendor = "apple")]
mod metal;

use std::fmt::Debug;
use std::mem::MaybeUninit;

pub use buffer::{DeviceBuffer, DeviceElement};
pub use commands::{Commands, Submitted};
#[cfg(target_vendor = "apple")]
pub use metal::MetalDriver;

use crate::error::Result;
use crate::sources::Library;

/// What a device is and allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Name of the device.
    pub name: String,
    /// Bytes of threadgroup memory that a threadgroup may have.
    pub max_threadgroup_memory: usize,
    /// Threads that a threadgroup may have.
    pub max_threads: usize,
}

/// A pipeline that a driver has made; stays valid for as long as the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipeline(
    /// Of Metal an `id<MTLComputePipelineState>`, of others what they take it for.
    pub usize,
);

/// A buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferHandle(
    /// Of Metal an `id<MTLBuffer>`, of others what they take it for; never 0.
    pub usize,
);

/// A compute command encoder, the driver's or the caller's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderHandle(
    /// Of Metal an `id<MTLComputeCommandEncoder>`, of others what they take it for.
    pub usize,
);

/// Commands that were handed to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandsHandle(
    /// Of Metal an `id<MTLCommandBuffer>`, of others what they take it for.
    pub usize,
);

/// Where a tensor begins: a buffer and an offset, or nothing where an operation may do without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// As [`BufferHandle`]; 0: no buffer.
    buffer: usize,
    /// In bytes.
    offset: usize,
}

impl Slice {
    /// No buffer.
    pub const NONE: Self = Self { buffer: 0, offset: 0 };

    /// A buffer from a byte on.
    pub fn new(buffer: BufferHandle, offset: usize) -> Self {
        Self { buffer: buffer.0, offset }
    }
    /// The buffer, if there is one.
    pub fn buffer(self) -> Option<BufferHandle> {
        (self.buffer != 0).then_some(BufferHandle(self.buffer))
    }
    /// The same buffer from so many bytes further on.
    #[must_use]
    pub fn skip(self, bytes: usize) -> Self {
        Self { offset: self.offset + bytes, ..self }
    }
    /// Bytes before the tensor.
    pub fn offset(self) -> usize {
        self.offset
    }
    /// Whether there is no buffer.
    pub fn is_none(self) -> bool {
        self.buffer == 0
    }
}

/// One launch of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Dispatch<'a> {
    /// The kernel.
    pub pipeline: Pipeline,
    /// Buffers of the slots 0, 1, ..; a slot without one is not looked at by the kernel.
    pub buffers: &'a [Slice],
    /// Slot of the parameters.
    pub params_slot: usize,
    /// The parameters, as they lie in memory: at most 4,096 bytes.
    pub params: &'a [MaybeUninit<u8>],
    /// Bytes of threadgroup memory at index 0, a multiple of 16; 0 where the kernel has none.
    pub threadgroup_bytes: usize,
    /// Threadgroups in x, y and z, each at least 1.
    pub threadgroups: [u32; 3],
    /// Threads of a threadgroup in x, y and z, each at least 1; x times y a multiple of 32.
    pub threads: [u32; 3],
}

/// One device.
///
/// # Errors
/// Every method fails with [`crate::MetalError::Device`] where the device does. What goes wrong in the work itself comes from
/// [`Driver::wait`].
pub trait Driver: Debug + Send + Sync {
    /// What the device is and allows.
    fn attributes(&self) -> &DeviceAttributes;

    /// Compiles a kernel, unless it has been before.
    ///
    /// # Errors
    /// [`crate::MetalError::Compile`], [`crate::MetalError::Pipeline`].
    fn pipeline(&self, library: Library, kernel: &str) -> Result<Pipeline>;

    /// Memory of `bytes` bytes, at least 1, that host and device share; what lies in it is arbitrary.
    ///
    /// # Errors
    /// See [`Driver`]; also if there is not so much memory.
    fn alloc(&self, bytes: usize) -> Result<BufferHandle>;

    /// Gives memory back.
    ///
    /// # Errors
    /// See [`Driver`].
    ///
    /// # Safety
    /// The buffer comes from `alloc` of this driver, is not used after this call, and no work on it is left to do.
    unsafe fn free(&self, buffer: BufferHandle) -> Result<()>;

    /// Copies into a buffer, from byte `at` on.
    ///
    /// # Errors
    /// See [`Driver`].
    ///
    /// # Safety
    /// The bytes lie in the buffer, which is of this driver, and no work that is left to do looks at them.
    unsafe fn write(&self, buffer: BufferHandle, at: usize, from: &[u8]) -> Result<()>;

    /// Copies out of a buffer, from byte `at` on.
    ///
    /// # Errors
    /// See [`Driver`].
    ///
    /// # Safety
    /// The bytes lie in the buffer, which is of this driver, and no work that is left to do writes them.
    unsafe fn read(&self, buffer: BufferHandle, at: usize, to: &mut [u8]) -> Result<()>;

    /// A new encoder; its launches are done one after the other.
    ///
    /// # Errors
    /// See [`Driver`].
    fn begin(&self) -> Result<EncoderHandle>;

    /// Puts a launch into an encoder. Allocates nothing on the device and waits for nothing.
    ///
    /// # Errors
    /// See [`Driver`].
    ///
    /// # Safety
    /// Pipeline and buffers are of this driver's device; the encoder is open, and used by no other thread at the same time; what
    /// the buffers hold is as the kernel expects until the work is done.
    unsafe fn dispatch(&self, encoder: EncoderHandle, dispatch: &Dispatch<'_>) -> Result<()>;

    /// Ends an encoder and hands its work to the device; work that is handed over earlier is done earlier.
    ///
    /// # Errors
    /// See [`Driver`].
    ///
    /// # Safety
    /// The encoder comes from `begin` of this driver and is not used after this call.
    unsafe fn commit(&self, encoder: EncoderHandle) -> Result<CommandsHandle>;

    /// Waits until work is done.
    ///
    /// # Errors
    /// See [`Driver`]; also if the work failed.
    ///
    /// # Safety
    /// The handle comes from `commit` of this driver and is not used after this call.
    unsafe fn wait(&self, commands: CommandsHandle) -> Result<()>;
}
