//! What the crate asks of a driver, behind one trait: device memory, copies, launches, streams and graphs.
//!
//! [`CudaDriver`] calls NVIDIA's. Anything else that implements [`Driver`] runs the same host code: an emulator does so
//! in the tests.

mod buffer;
mod cuda;
mod stream;

use std::fmt::Debug;
use std::mem::MaybeUninit;

pub use buffer::{DeviceBuffer, DeviceElement};
pub use cuda::CudaDriver;
pub use cudarc::driver::sys::{CUdeviceptr as DevicePtr, CUstream};
pub use stream::{Graph, Stream};

use crate::error::{CudaError, Result};

/// What a device is and allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Number of the device among those of the driver.
    pub ordinal: usize,
    /// Product name.
    pub name: String,
    /// Compute capability, major and minor number.
    pub compute_capability: (i32, i32),
    /// Streaming multiprocessors, at least 1.
    pub num_sms: usize,
    /// Bytes of shared memory that a block may have.
    pub max_shared: usize,
    /// Bytes of shared memory of a multiprocessor.
    pub shared_per_sm: usize,
}

/// A kernel that a driver has loaded; stays valid for as long as the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Of CUDA's driver a `CUfunction`, of others what they take it for.
    pub handle: usize,
    /// Bytes of the kernel's one parameter.
    pub param_bytes: usize,
}

/// A graph that is ready to be launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphHandle(
    /// Of CUDA's driver a `CUgraphExec`, of others what they take it for.
    pub usize,
);

/// One launch of a kernel whose only parameter is a struct.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The kernel.
    pub function: Function,
    /// Blocks of the grid in x and y, each at least 1; x at most 2^31 - 1, y at most 65,535.
    pub blocks: (u32, u32),
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory of a block, beside what the kernel declares.
    pub shared: u32,
    /// Whether the launch may begin before the one before on the stream has ended, which the kernel waits for where it
    /// needs it. Devices that cannot do that begin it afterwards.
    pub overlap: bool,
    /// The parameter, as it lies in memory: [`Function::param_bytes`] of it.
    pub params: &'a [MaybeUninit<u8>],
}

/// One device. Calls on a stream return before their work is done, and are done in the order of the calls.
///
/// Streams are [`CUstream`]s, opaque handles: null is the device's default stream, others come from
/// [`Driver::create_stream`] or, of CUDA's driver, from the caller's own code.
///
/// # Errors
/// Every method fails with [`crate::CudaError::Driver`] (or [`crate::CudaError::OtherDriver`]) where the driver does. A failure of
/// work that was put on a stream earlier may come from any later call.
pub trait Driver: Debug + Send + Sync {
    /// What the device is and allows.
    fn attributes(&self) -> &DeviceAttributes;

    /// Compiles CUDA C++ text and looks kernels of it up, which stay as long as the driver.
    ///
    /// # Errors
    /// [`crate::CudaError::NoCompiler`] where there is none, which is what a driver does that has no such method;
    /// [`crate::CudaError::Compiler`] if the text does not compile.
    fn compile(&self, source: &str, names: &[String]) -> Result<Vec<Function>> {
        let (_, _) = (source, names);
        Err(CudaError::NoCompiler)
    }

    /// Looks a kernel up and makes it ready: nothing is left for its first launch, which may be one that is captured.
    ///
    /// # Errors
    /// See [`Driver`]; also if there is no such kernel.
    fn function(&self, name: &str) -> Result<Function>;

    /// Device memory of `bytes` bytes, at least 1, aligned to 256; what lies in it is arbitrary.
    ///
    /// # Errors
    /// See [`Driver`]; also if there is not so much memory.
    fn alloc(&self, bytes: usize) -> Result<DevicePtr>;

    /// Gives device memory back, once all work that was put on the device before is done.
    ///
    /// # Errors
    /// See [`Driver`].
    ///
    /// # Safety
    /// The address comes from `alloc` of this driver, and is not used after this call.
    unsafe fn free(&self, address: DevicePtr) -> Result<()>;

    /// Copies to the device. Pageable memory has been read when the call returns.
    ///
    /// # Errors
    /// See [`Driver`].
    ///
    /// # Safety
    /// `from.len()` bytes at `to` are device memory, which nothing else touches until the copy is done; `from`, if it is
    /// page-locked, stays as it is until then.
    unsafe fn copy_to_device(&self, stream: CUstream, to: DevicePtr, from: &[u8]) -> Result<()>;

    /// Copies from the device.
    ///
    /// # Errors
    /// See [`Driver`].
    ///
    /// # Safety
    /// `to.len()` bytes at `from` are device memory, which nothing else writes until the copy is done; nothing else touches
    /// `to` until the stream has been synchronised.
    unsafe fn copy_to_host(&self, stream: CUstream, to: &mut [u8], from: DevicePtr) -> Result<()>;

    /// Copies within the device.
    ///
    /// # Errors
    /// See [`Driver`].
    ///
    /// # Safety
    /// `bytes` bytes at `from` and at `to` are device memory, do not overlap, and nothing else writes them, or reads those at
    /// `to`, until the copy is done.
    unsafe fn copy_on_device(&self, stream: CUstream, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<()>;

    /// Sets every byte to `value`.
    ///
    /// # Errors
    /// See [`Driver`].
    ///
    /// # Safety
    /// `bytes` bytes at `at` are device memory, which nothing else touches until this is done.
    unsafe fn fill(&self, stream: CUstream, at: DevicePtr, value: u8, bytes: usize) -> Result<()>;

    /// Puts a kernel on the stream. Allocates nothing and does not synchronise.
    ///
    /// # Errors
    /// See [`Driver`]; also if `params` has another length than the kernel's parameter.
    ///
    /// # Safety
    /// The function is of this driver, and what the parameter points to is as the kernel expects until it is done.
    unsafe fn launch(&self, stream: CUstream, launch: &Launch<'_>) -> Result<()>;

    /// A stream that does not wait for the default stream.
    ///
    /// # Errors
    /// See [`Driver`].
    fn create_stream(&self) -> Result<CUstream>;

    /// Gives a stream back; its work is still done.
    ///
    /// # Errors
    /// See [`Driver`].
    ///
    /// # Safety
    /// The stream comes from `create_stream` of this driver and is not used after this call.
    unsafe fn destroy_stream(&self, stream: CUstream) -> Result<()>;

    /// Waits until the stream's work is done.
    ///
    /// # Errors
    /// See [`Driver`].
    ///
    /// # Safety
    /// The stream is of this driver's device.
    unsafe fn synchronize(&self, stream: CUstream) -> Result<()>;

    /// From here on work that is put on the stream is recorded and not done.
    ///
    /// # Errors
    /// See [`Driver`]; also if the stream is recording already.
    ///
    /// # Safety
    /// The stream is of this driver's device, and not the default stream.
    unsafe fn begin_capture(&self, stream: CUstream) -> Result<()>;

    /// Ends the recording.
    ///
    /// # Errors
    /// See [`Driver`]; also if the stream is not recording, or something was put on it that cannot be recorded.
    ///
    /// # Safety
    /// As for `begin_capture`.
    unsafe fn end_capture(&self, stream: CUstream) -> Result<GraphHandle>;

    /// Puts all that was recorded on the stream.
    ///
    /// # Errors
    /// See [`Driver`].
    ///
    /// # Safety
    /// The graph is of this driver and not destroyed; what was promised for each recorded call holds again.
    unsafe fn launch_graph(&self, stream: CUstream, graph: GraphHandle) -> Result<()>;

    /// Gives a graph back, once its launches are done.
    ///
    /// # Errors
    /// See [`Driver`].
    ///
    /// # Safety
    /// The graph is of this driver and not used after this call.
    unsafe fn destroy_graph(&self, graph: GraphHandle) -> Result<()>;
}

/// The kernels use instructions of compute capability 8.0.
pub(crate) fn check_capability(attributes: &DeviceAttributes) -> Result<()> {
    let DeviceAttributes { ordinal, compute_capability: (major, minor), .. } = *attributes;
    if major < 8 { Err(CudaError::ComputeCapability { ordinal, major, minor }) } else { Ok(()) }
}

/// For implementations of [`Driver::launch`]: that the parameter has the kernel's length.
///
/// # Errors
/// [`CudaError::Params`] if not.
pub fn check_params(launch: &Launch<'_>) -> Result<()> {
    let (got, expected) = (launch.params.len(), launch.function.param_bytes);
    if got == expected { Ok(()) } else { Err(CudaError::Params { got, expected }) }
}
