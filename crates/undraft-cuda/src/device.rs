//! A device: its context, the embedded kernels, and buffers that are copied to it and back.

use std::ffi::CString;
use std::sync::Arc;

use cudarc::driver::sys::{CUdevice_attribute, CUfunction, CUfunction_attribute, CUmodule};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut, DeviceRepr, result};
use undraft_core::{DType, Data, DataMut, Rows, bf16, f16};

use crate::error::{CudaError, Result};
use crate::raw::{DevicePtr, Elements};
use crate::select::Kernel;

/// Machine code for sm_80, sm_90a, sm_100 and sm_120, and PTX of compute_80 for what comes later.
static FATBIN: &[u8] = include_bytes!("../kernels/undraft.fatbin");

const DRIVER_LIBRARIES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// The kernels in one context, and what the device allows.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) context: Arc<CudaContext>,
    module: CUmodule,
    functions: Vec<CUfunction>,
    /// Streaming multiprocessors.
    pub(crate) num_sms: usize,
    /// Bytes of shared memory that a block may have.
    pub(crate) max_shared: usize,
    /// Bytes of shared memory of a multiprocessor.
    pub(crate) shared_per_sm: usize,
}

// SAFETY: the handles stay valid for as long as the context, which `Device` keeps, and the driver may be called with
// them from every thread.
unsafe impl Send for Device {}
// SAFETY: as above; nothing is changed after `open`.
unsafe impl Sync for Device {}

impl Device {
    pub(crate) fn open(ordinal: usize) -> Result<Self> {
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
        // SAFETY: buffers live in the calls of this crate alone, each on one stream, so that no stream waits for another.
        unsafe { context.disable_event_tracking() };
        let attribute = |a| context.attribute(a).map_err(CudaError::driver("cuDeviceGetAttribute"));
        let major = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        if major < 8 {
            return Err(CudaError::ComputeCapability { ordinal, major, minor });
        }
        let num_sms = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1) as usize;
        let most = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let max_shared = attribute(most)?.max(0) as usize;
        let per_sm = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR;
        let shared_per_sm = attribute(per_sm)?.max(0) as usize;
        // SAFETY: the image is a whole fat binary, written by the build of the kernels; the context is current.
        let module = unsafe { result::module::load_data(FATBIN.as_ptr().cast()) };
        let module = module.map_err(CudaError::driver("cuModuleLoadData"))?;
        let mut device = Self { context, module, functions: Vec::new(), num_sms, max_shared, shared_per_sm };
        for kernel in Kernel::all() {
            let function = device.function(&kernel)?;
            device.functions.push(function);
        }
        Ok(device)
    }

    /// Looks a kernel up and lets it have all the shared memory that there is, which loads it: nothing is left for the
    /// first launch, which may be one that is captured.
    fn function(&self, kernel: &Kernel) -> Result<CUfunction> {
        let name = CString::new(kernel.name()).unwrap_or_default();
        // SAFETY: the module is loaded; the function belongs to it.
        unsafe {
            let function =
                result::module::get_function(self.module, name).map_err(CudaError::driver("cuModuleGetFunction"))?;
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            result::function::set_function_attribute(function, attribute, self.max_shared as i32)
                .map_err(CudaError::driver("cuFuncSetAttribute"))?;
            Ok(function)
        }
    }

    pub(crate) fn get(&self, kernel: Kernel) -> CUfunction {
        self.functions[kernel.index()]
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // A context that cannot be made current has lost its modules already.
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: loaded in `open`, unloaded here alone.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}

/// Elements on the device for the length of a call; no memory where there are none.
pub(crate) struct Buffer<T>(Option<CudaSlice<T>>);

impl<T: DeviceRepr> Buffer<T> {
    pub(crate) fn none() -> Self {
        Self(None)
    }
    pub(crate) fn upload(stream: &Arc<CudaStream>, from: &[T]) -> Result<Self> {
        if from.is_empty() {
            return Ok(Self(None));
        }
        stream.clone_htod(from).map(|slice| Self(Some(slice))).map_err(CudaError::driver("cuMemcpyHtoDAsync"))
    }
    /// Memory for `len` elements, whatever it holds.
    pub(crate) fn scratch(stream: &Arc<CudaStream>, len: usize) -> Result<Self> {
        // SAFETY: kernels write what they read of it.
        unsafe { stream.alloc::<T>(len) }.map(|slice| Self(Some(slice))).map_err(CudaError::driver("cuMemAllocAsync"))
    }
    /// The address; 0 where there are no elements.
    pub(crate) fn address(&mut self, stream: &Arc<CudaStream>) -> DevicePtr {
        self.0.as_mut().map_or(0, |slice| slice.device_ptr_mut(stream).0)
    }
    pub(crate) fn download(&self, stream: &Arc<CudaStream>, to: &mut [T]) -> Result<()> {
        match &self.0 {
            None => Ok(()),
            Some(slice) => stream.memcpy_dtoh(slice, to).map_err(CudaError::driver("cuMemcpyDtoHAsync")),
        }
    }
}

/// A matrix to read, as it lies in host memory.
pub(crate) struct Input {
    data: AnyBuffer,
    row_stride: usize,
}

/// Elements to write, with the host memory that they go back to; what the kernel does not write comes back unchanged.
pub(crate) struct Output<'a> {
    data: AnyBuffer,
    to: DataMut<'a>,
}

enum AnyBuffer {
    F32(Buffer<f32>),
    Bf16(Buffer<bf16>),
    F16(Buffer<f16>),
}

impl AnyBuffer {
    fn address(&mut self, stream: &Arc<CudaStream>) -> DevicePtr {
        match self {
            AnyBuffer::F32(b) => b.address(stream),
            AnyBuffer::Bf16(b) => b.address(stream),
            AnyBuffer::F16(b) => b.address(stream),
        }
    }
    fn dtype(&self) -> DType {
        match self {
            AnyBuffer::F32(_) => DType::F32,
            AnyBuffer::Bf16(_) => DType::Bf16,
            AnyBuffer::F16(_) => DType::F16,
        }
    }
}

impl Input {
    pub(crate) fn upload(stream: &Arc<CudaStream>, rows: &Rows<'_>) -> Result<Self> {
        let data = match rows.data {
            Data::F32(d) => AnyBuffer::F32(Buffer::upload(stream, d)?),
            Data::Bf16(d) => AnyBuffer::Bf16(Buffer::upload(stream, d)?),
            Data::F16(d) => AnyBuffer::F16(Buffer::upload(stream, d)?),
        };
        Ok(Self { data, row_stride: rows.row_stride })
    }
    pub(crate) fn address(&mut self, stream: &Arc<CudaStream>) -> DevicePtr {
        self.data.address(stream)
    }
    /// Address, stride and element type.
    pub(crate) fn tensor(&mut self, stream: &Arc<CudaStream>) -> (DevicePtr, i64, Elements) {
        (self.data.address(stream), self.row_stride as i64, self.data.dtype().into())
    }
}

impl<'a> Output<'a> {
    pub(crate) fn upload(stream: &Arc<CudaStream>, to: DataMut<'a>) -> Result<Self> {
        let data = match &to {
            DataMut::F32(d) => AnyBuffer::F32(Buffer::upload(stream, d)?),
            DataMut::Bf16(d) => AnyBuffer::Bf16(Buffer::upload(stream, d)?),
            DataMut::F16(d) => AnyBuffer::F16(Buffer::upload(stream, d)?),
        };
        Ok(Self { data, to })
    }
    pub(crate) fn address(&mut self, stream: &Arc<CudaStream>) -> DevicePtr {
        self.data.address(stream)
    }
    pub(crate) fn dtype(&self) -> DType {
        self.data.dtype()
    }
    pub(crate) fn download(self, stream: &Arc<CudaStream>) -> Result<()> {
        match (&self.data, self.to) {
            (AnyBuffer::F32(from), DataMut::F32(to)) => from.download(stream, to),
            (AnyBuffer::Bf16(from), DataMut::Bf16(to)) => from.download(stream, to),
            (AnyBuffer::F16(from), DataMut::F16(to)) => from.download(stream, to),
            // `upload` made the buffer of the same element type.
            _ => Ok(()),
        }
    }
}
