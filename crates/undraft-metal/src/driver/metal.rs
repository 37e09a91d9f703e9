//! Metal's own calls, on Apple's systems.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBuffer, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue, MTLCompileOptions,
    MTLComputeCommandEncoder, MTLComputePipelineState, MTLCreateSystemDefaultDevice, MTLDevice, MTLLibrary,
    MTLMathFloatingPointFunctions, MTLMathMode, MTLResourceOptions, MTLSize,
};

use super::{BufferHandle, CommandsHandle, DeviceAttributes, Dispatch, Driver, EncoderHandle, Pipeline, Slice};
use crate::error::{MetalError, Result};
use crate::sources::Library;

// The system has a default device only for programs that link to this.
#[cfg(target_os = "macos")]
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

type Object<T> = Retained<ProtocolObject<T>>;

/// A Metal device with a command queue. Buffers are in shared storage.
#[derive(Debug)]
pub struct MetalDriver {
    attributes: DeviceAttributes,
    device: Object<dyn MTLDevice>,
    queue: Object<dyn MTLCommandQueue>,
    libraries: Mutex<HashMap<Library, Object<dyn MTLLibrary>>>,
    pipelines: Mutex<HashMap<String, Object<dyn MTLComputePipelineState>>>,
    open: Mutex<HashMap<usize, Open>>,
}

/// An encoder of this driver and its command buffer.
#[derive(Debug)]
struct Open {
    commands: Object<dyn MTLCommandBuffer>,
    encoder: Object<dyn MTLComputeCommandEncoder>,
}
// SAFETY: whoever has the handle uses the two from one thread at a time, which is all that Metal asks for.
unsafe impl Send for Open {}

/// The address of an object, which stays a valid one for as long as somebody retains it.
fn address<T: ?Sized>(object: &ProtocolObject<T>) -> usize {
    std::ptr::from_ref(object) as *const c_void as usize
}

/// The object at an address.
///
/// # Safety
/// It came from [`address`] of such an object, which is retained for as long as the result is used.
unsafe fn object<'a, T: ?Sized + 'a>(address: usize) -> &'a ProtocolObject<T> {
    // SAFETY: the caller's promise.
    unsafe { &*(address as *const ProtocolObject<T>) }
}

impl Slice {
    /// A buffer of Metal from a byte on. The caller retains the buffer until the work is done.
    pub fn of(buffer: &ProtocolObject<dyn MTLBuffer>, offset: usize) -> Self {
        Self::new(BufferHandle(address(buffer)), offset)
    }
}

impl EncoderHandle {
    /// An encoder of the caller's, who ends it and commits its command buffer.
    pub fn of(encoder: &ProtocolObject<dyn MTLComputeCommandEncoder>) -> Self {
        Self(address(encoder))
    }
}

impl MetalDriver {
    /// The system's default device.
    ///
    /// # Errors
    /// [`MetalError::NoDevice`] if there is none.
    pub fn open() -> Result<Self> {
        let device = MTLCreateSystemDefaultDevice().ok_or(MetalError::NoDevice)?;
        Self::with_device(device)
    }

    /// A device of the caller's.
    ///
    /// # Errors
    /// If it gives no command queue.
    pub fn with_device(device: Retained<ProtocolObject<dyn MTLDevice>>) -> Result<Self> {
        let queue = device
            .newCommandQueue()
            .ok_or_else(|| MetalError::Device { call: "newCommandQueue", why: "the device gave no queue".into() })?;
        let attributes = DeviceAttributes {
            name: device.name().to_string(),
            max_threadgroup_memory: device.maxThreadgroupMemoryLength(),
            max_threads: device.maxThreadsPerThreadgroup().width,
        };
        Ok(Self {
            attributes,
            device,
            queue,
            libraries: Mutex::default(),
            pipelines: Mutex::default(),
            open: Mutex::default(),
        })
    }

    fn library(&self, library: Library) -> Result<Object<dyn MTLLibrary>> {
        let mut libraries = self.libraries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = libraries.get(&library) {
            return Ok(compiled.clone());
        }
        let options = MTLCompileOptions::new();
        // Since macOS 15; before, there is the older switch.
        if options.respondsToSelector(sel!(setMathMode:)) {
            options.setMathMode(MTLMathMode::Safe);
            options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
        } else {
            #[allow(deprecated)]
            options.setFastMathEnabled(false);
        }
        let source = NSString::from_str(&library.source());
        let compiled = self
            .device
            .newLibraryWithSource_options_error(&source, Some(&options))
            .map_err(|e| MetalError::Compile { library: library.name, why: e.localizedDescription().to_string() })?;
        libraries.insert(library, compiled.clone());
        Ok(compiled)
    }

    fn buffer_at(&self, buffer: BufferHandle, at: usize) -> *mut u8 {
        // SAFETY: `write` and `read` take buffers of this driver, which are retained until `free`.
        let buffer = unsafe { object::<dyn MTLBuffer>(buffer.0) };
        buffer.contents().as_ptr().cast::<u8>().wrapping_add(at)
    }
}

fn size([width, height, depth]: [u32; 3]) -> MTLSize {
    MTLSize { width: width as usize, height: height as usize, depth: depth as usize }
}

impl Driver for MetalDriver {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn pipeline(&self, library: Library, kernel: &str) -> Result<Pipeline> {
        let mut pipelines = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = pipelines.get(kernel) {
            return Ok(Pipeline(address(pipeline)));
        }
        let failed = |why: String| MetalError::Pipeline { kernel: kernel.to_owned(), why };
        let function = self
            .library(library)?
            .newFunctionWithName(&NSString::from_str(kernel))
            .ok_or_else(|| failed("the library has no such function".into()))?;
        let pipeline = self
            .device
            .newComputePipelineStateWithFunction_error(&function)
            .map_err(|e| failed(e.localizedDescription().to_string()))?;
        let width = pipeline.threadExecutionWidth();
        if width != 32 {
            return Err(failed(format!("simdgroups of {width} threads, expected 32")));
        }
        let handle = Pipeline(address(&pipeline));
        pipelines.insert(kernel.to_owned(), pipeline);
        Ok(handle)
    }

    fn alloc(&self, bytes: usize) -> Result<BufferHandle> {
        let none = || MetalError::Device { call: "newBuffer", why: format!("{bytes} bytes are not to be had") };
        let buffer =
            self.device.newBufferWithLength_options(bytes, MTLResourceOptions::StorageModeShared).ok_or_else(none)?;
        Ok(BufferHandle(Retained::into_raw(buffer) as *const c_void as usize))
    }
    unsafe fn free(&self, buffer: BufferHandle) -> Result<()> {
        let buffer = buffer.0 as *mut ProtocolObject<dyn MTLBuffer>;
        // SAFETY: `alloc` gave away its reference, which nobody else takes back.
        drop(unsafe { Retained::from_raw(buffer) });
        Ok(())
    }
    unsafe fn write(&self, buffer: BufferHandle, at: usize, from: &[u8]) -> Result<()> {
        // SAFETY: the caller's promise: so many bytes lie in the buffer, and nobody looks at them.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.buffer_at(buffer, at), from.len()) };
        Ok(())
    }
    unsafe fn read(&self, buffer: BufferHandle, at: usize, to: &mut [u8]) -> Result<()> {
        // SAFETY: the caller's promise: so many bytes lie in the buffer, and nobody writes them.
        unsafe { std::ptr::copy_nonoverlapping(self.buffer_at(buffer, at), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn begin(&self) -> Result<EncoderHandle> {
        let none = |call| MetalError::Device { call, why: "the device gave nothing".into() };
        let (commands, encoder) = autoreleasepool(|_| {
            let commands = self.queue.commandBuffer().ok_or_else(|| none("commandBuffer"))?;
            let encoder = commands.computeCommandEncoder().ok_or_else(|| none("computeCommandEncoder"))?;
            Ok((commands, encoder))
        })?;
        let handle = EncoderHandle::of(&encoder);
        let open = Open { commands, encoder };
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(handle.0, open);
        Ok(handle)
    }

    unsafe fn dispatch(&self, encoder: EncoderHandle, dispatch: &Dispatch<'_>) -> Result<()> {
        // SAFETY: the caller's promise: the encoder is open, which retains it.
        let encoder = unsafe { object::<dyn MTLComputeCommandEncoder>(encoder.0) };
        // SAFETY: pipelines are retained for as long as this driver.
        let pipeline = unsafe { object::<dyn MTLComputePipelineState>(dispatch.pipeline.0) };
        let threads: u32 = dispatch.threads.iter().product();
        let most = pipeline.maxTotalThreadsPerThreadgroup();
        if threads as usize > most {
            let why = format!("{threads} threads a threadgroup, expected at most {most}, those of the pipeline");
            return Err(MetalError::Device { call: "dispatchThreadgroups", why });
        }
        encoder.setComputePipelineState(pipeline);
        // A slot that is not looked at gets any buffer, as the layers that check calls ask for.
        let any = dispatch.buffers.iter().find_map(|slice| slice.buffer());
        for (slot, slice) in dispatch.buffers.iter().enumerate() {
            let (buffer, offset) = (slice.buffer().or(any), slice.offset());
            // SAFETY: the caller's promise: buffers are retained until the work is done.
            let buffer = buffer.map(|buffer| unsafe { object::<dyn MTLBuffer>(buffer.0) });
            if slot != dispatch.params_slot {
                // SAFETY: the caller's promise: the kernel finds at the offset what it expects.
                unsafe { encoder.setBuffer_offset_atIndex(buffer, offset, slot) };
            }
        }
        if let Some(params) = NonNull::new(dispatch.params.as_ptr().cast_mut().cast::<c_void>()) {
            // SAFETY: so many bytes, which are copied; the kernel takes such parameters.
            unsafe { encoder.setBytes_length_atIndex(params, dispatch.params.len(), dispatch.params_slot) };
        }
        if dispatch.threadgroup_bytes > 0 {
            // SAFETY: a multiple of 16 that was checked against the device's limit.
            unsafe { encoder.setThreadgroupMemoryLength_atIndex(dispatch.threadgroup_bytes, 0) };
        }
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(dispatch.threadgroups), size(dispatch.threads));
        Ok(())
    }

    unsafe fn commit(&self, encoder: EncoderHandle) -> Result<CommandsHandle> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&encoder.0);
        let none = || MetalError::Device { call: "commit", why: "the encoder is not one of this driver's".into() };
        let Open { commands, encoder } = open.ok_or_else(none)?;
        encoder.endEncoding();
        commands.commit();
        Ok(CommandsHandle(Retained::into_raw(commands) as *const c_void as usize))
    }
    unsafe fn wait(&self, commands: CommandsHandle) -> Result<()> {
        let commands = commands.0 as *mut ProtocolObject<dyn MTLCommandBuffer>;
        // SAFETY: `commit` gave away its reference, which nobody else takes back.
        let Some(commands) = (unsafe { Retained::from_raw(commands) }) else {
            return Ok(());
        };
        commands.waitUntilCompleted();
        if commands.status() == MTLCommandBufferStatus::Completed {
            return Ok(());
        }
        let why = commands.error().map_or_else(
            || format!("the commands ended with status {:?}", commands.status()),
            |e| e.localizedDescription().to_string(),
        );
        Err(MetalError::Device { call: "waitUntilCompleted", why })
    }
}
