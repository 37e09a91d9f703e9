//! Where the states live and the kernels run.

use std::sync::Arc;

use undraft_core::Backend;
use undraft_cpu::CpuBackend;
use undraft_cuda::CudaBackend;
use undraft_wgpu::WgpuBackend;

use crate::error::Result;

/// A device. Cloning is cheap.
///
/// ```
/// use undraft::{Device, Backend};
/// let device = Device::cpu();
/// assert!(device.backend().caps().backend.starts_with("cpu-"));
/// match Device::cuda(0) {
///     Ok(gpu) => assert!(gpu.cuda_backend().is_some()),
///     Err(e) => println!("{e}"), // which says whether the driver is missing, or the device
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Device(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Cpu(Arc<CpuBackend>),
    Cuda(Arc<CudaBackend>),
    Wgpu(Arc<WgpuBackend>),
}

impl Device {
    /// The CPU with its best instruction set and one thread.
    pub fn cpu() -> Self {
        Self::cpu_with(CpuBackend::new())
    }
    /// The CPU as set up by the caller: instruction set, executor.
    pub fn cpu_with(backend: CpuBackend) -> Self {
        Self(Kind::Cpu(Arc::new(backend)))
    }
    /// An NVIDIA GPU by its number.
    ///
    /// # Errors
    /// [`crate::Error::Cuda`] without driver or device, for a device that is too old, or if the driver fails.
    pub fn cuda(ordinal: usize) -> Result<Self> {
        Ok(Self::cuda_with(CudaBackend::new(ordinal)?))
    }
    /// A CUDA back end that is open already.
    pub fn cuda_with(backend: CudaBackend) -> Self {
        Self(Kind::Cuda(Arc::new(backend)))
    }

    /// An adapter of wgpu (Vulkan, DirectX 12 or Metal) by its number in [`undraft_wgpu::adapters`].
    ///
    /// # Errors
    /// [`crate::Error::Wgpu`] without a driver or such an adapter, or if it makes no device.
    pub fn wgpu(ordinal: usize) -> Result<Self> {
        Ok(Self::wgpu_with(WgpuBackend::new(ordinal)?))
    }
    /// A wgpu back end that is open already.
    pub fn wgpu_with(backend: WgpuBackend) -> Self {
        Self(Kind::Wgpu(Arc::new(backend)))
    }

    /// `cpu`, `cuda` or `wgpu`.
    pub fn name(&self) -> &'static str {
        match self.0 {
            Kind::Cpu(_) => "cpu",
            Kind::Cuda(_) => "cuda",
            Kind::Wgpu(_) => "wgpu",
        }
    }
    /// The operations over host memory.
    pub fn backend(&self) -> &dyn Backend {
        match &self.0 {
            Kind::Cpu(cpu) => &**cpu,
            Kind::Cuda(cuda) => &**cuda,
            Kind::Wgpu(wgpu) => &**wgpu,
        }
    }
    /// The CPU back end, if that is the device.
    pub fn cpu_backend(&self) -> Option<&CpuBackend> {
        match &self.0 {
            Kind::Cpu(cpu) => Some(cpu),
            Kind::Cuda(_) | Kind::Wgpu(_) => None,
        }
    }
    /// The CUDA back end, if that is the device.
    pub fn cuda_backend(&self) -> Option<&Arc<CudaBackend>> {
        match &self.0 {
            Kind::Cpu(_) | Kind::Wgpu(_) => None,
            Kind::Cuda(cuda) => Some(cuda),
        }
    }
    /// The wgpu back end, if that is the device.
    pub fn wgpu_backend(&self) -> Option<&Arc<WgpuBackend>> {
        match &self.0 {
            Kind::Cpu(_) | Kind::Cuda(_) => None,
            Kind::Wgpu(wgpu) => Some(wgpu),
        }
    }
}
