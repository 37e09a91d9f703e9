//! Where the states live and the kernels run.

use std::sync::Arc;

use undraft_core::Backend;
use undraft_cpu::CpuBackend;

/// A device. Cloning is cheap.
///
/// ```
/// use undraft::{Device, Backend};
/// let device = Device::cpu();
/// assert!(device.backend().caps().backend.starts_with("cpu-"));
/// ```
#[derive(Clone, Debug)]
pub struct Device {
    cpu: Arc<CpuBackend>,
}

impl Device {
    /// The CPU with its best instruction set and one thread.
    pub fn cpu() -> Self {
        Self::cpu_with(CpuBackend::new())
    }
    /// The CPU as set up by the caller: instruction set, executor.
    pub fn cpu_with(backend: CpuBackend) -> Self {
        Self { cpu: Arc::new(backend) }
    }
    /// The operations.
    pub fn backend(&self) -> &dyn Backend {
        &*self.cpu
    }
    /// The CPU back end.
    pub fn cpu_backend(&self) -> &CpuBackend {
        &self.cpu
    }
}
