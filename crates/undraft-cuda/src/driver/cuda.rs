//! NVIDIA's driver, loaded at run time.

use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{
    self, CUdevice_attribute, CUfunction, CUfunction_attribute, CUgraphExec, CUgraphInstantiate_flags,
    CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig, CUmodule, CUstreamCaptureMode,
};
use cudarc::driver::{CudaContext, result};

use super::{CUstream, DeviceAttributes, DevicePtr, Driver, Function, GraphHandle, Launch};
use crate::error::{CudaError, Result};
use crate::nvrtc;

/// Machine code for sm_80, sm_90a, sm_100 and sm_120, and PTX of compute_80 for what comes later.
static FATBIN: &[u8] = include_bytes!("../../kernels/undraft.fatbin");

const DRIVER_LIBRARIES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// A GPU in its primary context, with the embedded kernels.
///
/// Every call makes the context current in the calling thread.
#[derive(Debug)]
pub struct CudaDriver {
    context: Arc<CudaContext>,
    module: CUmodule,
    /// What was compiled.
    compiled: Mutex<Vec<CUmodule>>,
    attributes: DeviceAttributes,
}

// SAFETY: the module stays valid for as long as the context, which `CudaDriver` keeps, and the driver may be called with it
// from every thread.
unsafe impl Send for CudaDriver {}
// SAFETY: as above; nothing is changed after `open`.
unsafe impl Sync for CudaDriver {}

impl CudaDriver {
    /// Opens the device and loads the kernels.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`] on a machine without the driver, [`CudaError::NoDevice`] without such a device,
    /// [`CudaError::Driver`] if the driver fails.
    pub fn open(ordinal: usize) -> Result<Self> {
        // SAFETY: loading the driver's library runs its initialisers, as every CUDA program does.
        let present = |name: &&str| unsafe { libloading::Library::new(*name) }.is_ok();
        if !DRIVER_LIBRARIES.iter().any(present) {
            return Err(CudaError::NoDriver { names: DRIVER_LIBRARIES });
        }
        result::init().map_err(CudaError::driver("cuInit"))?;
        let count = CudaContext::device_count().map_err(CudaError::driver("cuDeviceGetCount"))?;
        let count = usize::try_from(count).unwrap_or(0);
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal).map_err(CudaError::driver("cuDevicePrimaryCtxRetain"))?;
        let attribute = |a| context.attribute(a).map_err(CudaError::driver("cuDeviceGetAttribute"));
        let bytes = |a| attribute(a).map(|x| x.max(0) as usize);
        let attributes = DeviceAttributes {
            ordinal,
            name: context.name().map_err(CudaError::driver("cuDeviceGetName"))?,
            compute_capability: (
                attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            num_sms: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1) as usize,
            max_shared: bytes(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            shared_per_sm: bytes(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        };
        super::check_capability(&attributes)?;
        // SAFETY: the image is a whole fat binary, written by the build of the kernels; `new` made the context current.
        let module = unsafe { result::module::load_data(FATBIN.as_ptr().cast()) };
        let module = module.map_err(CudaError::driver("cuModuleLoadData"))?;
        Ok(Self { context, module, compiled: Mutex::default(), attributes })
    }

    /// A kernel, which gets all the shared memory that there is; that loads it.
    ///
    /// # Safety
    /// The module is loaded in this context, which is current.
    unsafe fn function_of(&self, module: CUmodule, name: &str) -> Result<Function> {
        let name = CString::new(name).unwrap_or_default();
        let (mut offset, mut param_bytes) = (0, 0);
        // SAFETY: the caller's promise; the function belongs to the module; both sizes are written before the call returns.
        unsafe {
            let function =
                result::module::get_function(module, name).map_err(CudaError::driver("cuModuleGetFunction"))?;
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            result::function::set_function_attribute(function, attribute, self.attributes.max_shared as i32)
                .map_err(CudaError::driver("cuFuncSetAttribute"))?;
            sys::cuFuncGetParamInfo(function, 0, &mut offset, &mut param_bytes)
                .result()
                .map_err(CudaError::driver("cuFuncGetParamInfo"))?;
            Ok(Function { handle: function as usize, param_bytes })
        }
    }

    /// Makes the context current in this thread.
    fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(CudaError::driver("cuCtxSetCurrent"))
    }
}

impl Driver for CudaDriver {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn function(&self, name: &str) -> Result<Function> {
        self.bind()?;
        // SAFETY: the module is loaded.
        unsafe { self.function_of(self.module, name) }
    }
    fn compile(&self, source: &str, names: &[String]) -> Result<Vec<Function>> {
        let ptx = nvrtc::compile(source, self.attributes.compute_capability)?;
        self.bind()?;
        // SAFETY: the image is text that ends with 0.
        let module = unsafe { result::module::load_data(ptx.as_ptr().cast()) };
        let module = module.map_err(CudaError::driver("cuModuleLoadData"))?;
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner).push(module);
        // SAFETY: the module is loaded, and stays so until the driver is dropped.
        names.iter().map(|name| unsafe { self.function_of(module, name) }).collect()
    }

    fn alloc(&self, bytes: usize) -> Result<DevicePtr> {
        self.bind()?;
        // SAFETY: the context is current; the caller is told that the memory holds anything.
        unsafe { result::malloc_sync(bytes) }.map_err(CudaError::driver("cuMemAlloc"))
    }
    unsafe fn free(&self, address: DevicePtr) -> Result<()> {
        self.bind()?;
        // SAFETY: the caller's promise.
        unsafe { result::free_sync(address) }.map_err(CudaError::driver("cuMemFree"))
    }

    unsafe fn copy_to_device(&self, stream: CUstream, to: DevicePtr, from: &[u8]) -> Result<()> {
        self.bind()?;
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_htod_async(to, from, stream) }.map_err(CudaError::driver("cuMemcpyHtoDAsync"))
    }
    unsafe fn copy_to_host(&self, stream: CUstream, to: &mut [u8], from: DevicePtr) -> Result<()> {
        self.bind()?;
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_dtoh_async(to, from, stream) }.map_err(CudaError::driver("cuMemcpyDtoHAsync"))
    }
    unsafe fn copy_on_device(&self, stream: CUstream, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<()> {
        self.bind()?;
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_dtod_async(to, from, bytes, stream) }.map_err(CudaError::driver("cuMemcpyDtoDAsync"))
    }
    unsafe fn fill(&self, stream: CUstream, at: DevicePtr, value: u8, bytes: usize) -> Result<()> {
        self.bind()?;
        // SAFETY: the caller's promise.
        unsafe { result::memset_d8_async(at, value, bytes, stream) }.map_err(CudaError::driver("cuMemsetD8Async"))
    }

    unsafe fn launch(&self, stream: CUstream, launch: &Launch<'_>) -> Result<()> {
        super::check_params(launch)?;
        self.bind()?;
        let mut arguments = [launch.params.as_ptr().cast::<c_void>().cast_mut()];
        let mut overlap = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = CUlaunchConfig {
            gridDimX: launch.blocks.0,
            gridDimY: launch.blocks.1,
            gridDimZ: 1,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared,
            hStream: stream,
            attrs: &raw mut overlap,
            numAttrs: u32::from(launch.overlap && self.attributes.compute_capability >= (9, 0)),
        };
        let function = launch.function.handle as CUfunction;
        // SAFETY: the kernel takes one parameter of the length that was checked, which the driver copies before it returns, as
        // it does the attribute; the caller vouches for the function and for what the parameter points to.
        unsafe { sys::cuLaunchKernelEx(&raw const config, function, arguments.as_mut_ptr(), std::ptr::null_mut()) }
            .result()
            .map_err(CudaError::driver("cuLaunchKernelEx"))
    }

    fn create_stream(&self) -> Result<CUstream> {
        self.bind()?;
        result::stream::create(result::stream::StreamKind::NonBlocking).map_err(CudaError::driver("cuStreamCreate"))
    }
    unsafe fn destroy_stream(&self, stream: CUstream) -> Result<()> {
        self.bind()?;
        // SAFETY: the caller's promise.
        unsafe { result::stream::destroy(stream) }.map_err(CudaError::driver("cuStreamDestroy"))
    }
    unsafe fn synchronize(&self, stream: CUstream) -> Result<()> {
        self.bind()?;
        // SAFETY: the caller's promise.
        unsafe { result::stream::synchronize(stream) }.map_err(CudaError::driver("cuStreamSynchronize"))
    }

    unsafe fn begin_capture(&self, stream: CUstream) -> Result<()> {
        self.bind()?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the caller's promise.
        unsafe { result::stream::begin_capture(stream, mode) }.map_err(CudaError::driver("cuStreamBeginCapture"))
    }
    unsafe fn end_capture(&self, stream: CUstream) -> Result<GraphHandle> {
        self.bind()?;
        // SAFETY: the caller's promise for the stream; the graph is what the driver has made, used here alone.
        unsafe {
            let graph = result::stream::end_capture(stream).map_err(CudaError::driver("cuStreamEndCapture"))?;
            let ready = result::graph::instantiate(graph, CUgraphInstantiate_flags(0));
            result::graph::destroy(graph).map_err(CudaError::driver("cuGraphDestroy"))?;
            ready.map(|ready| GraphHandle(ready as usize)).map_err(CudaError::driver("cuGraphInstantiate"))
        }
    }
    unsafe fn launch_graph(&self, stream: CUstream, graph: GraphHandle) -> Result<()> {
        self.bind()?;
        // SAFETY: the caller's promise.
        unsafe { result::graph::launch(graph.0 as CUgraphExec, stream) }.map_err(CudaError::driver("cuGraphLaunch"))
    }
    unsafe fn destroy_graph(&self, graph: GraphHandle) -> Result<()> {
        self.bind()?;
        // SAFETY: the caller's promise.
        unsafe { result::graph::exec_destroy(graph.0 as CUgraphExec) }.map_err(CudaError::driver("cuGraphExecDestroy"))
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        // A context that cannot be made current has lost its modules already.
        if self.bind().is_ok() {
            let compiled = self.compiled.get_mut().unwrap_or_else(PoisonError::into_inner);
            for &module in compiled.iter().chain([&self.module]) {
                // SAFETY: loaded in `open` and `compile`, unloaded here alone.
                let _ = unsafe { result::module::unload(module) };
            }
        }
    }
}
