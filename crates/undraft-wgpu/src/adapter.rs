//! The adapters of this machine, in a fixed order.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::error::{Result, WgpuError};

/// What wgpu tells of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterInfo {
    /// Number, from 0.
    pub ordinal: usize,
    /// The device's name.
    pub name: String,
    /// `Vulkan`, `Dx12`, `Metal` or `BrowserWebGpu`.
    pub api: String,
    /// Driver and its version, as far as the API tells.
    pub driver: String,
    /// `DiscreteGpu`, `IntegratedGpu`, `VirtualGpu`, `Cpu` or `Other`.
    pub kind: String,
    /// Lanes of a subgroup, at least and at most.
    pub subgroup_sizes: (u32, u32),
}

impl AdapterInfo {
    fn new(ordinal: usize, info: &wgpu::AdapterInfo) -> Self {
        let driver = [&info.driver, &info.driver_info].into_iter().filter(|text| !text.is_empty()).cloned();
        Self {
            ordinal,
            name: info.name.clone(),
            api: format!("{:?}", info.backend),
            driver: driver.collect::<Vec<_>>().join(" "),
            kind: format!("{:?}", info.device_type),
            subgroup_sizes: (info.subgroup_min_size, info.subgroup_max_size),
        }
    }
}

/// Every adapter of this machine: discrete GPUs first, then integrated ones, virtual ones and CPUs, each kind in the order of
/// its driver. None where there is no driver.
///
/// ```
/// for adapter in undraft_wgpu::adapters() {
///     println!("wgpu:{} is {}, {}", adapter.ordinal, adapter.name, adapter.driver);
/// }
/// ```
pub fn adapters() -> Vec<AdapterInfo> {
    enumerate().into_iter().map(|(_, info)| info).collect()
}

/// The adapter of a number.
pub(crate) fn by_number(ordinal: usize) -> Result<(wgpu::Adapter, AdapterInfo)> {
    let mut all = enumerate();
    match all.len() {
        0 => Err(WgpuError::NoAdapter),
        count if ordinal >= count => Err(WgpuError::NoSuchAdapter { ordinal, count }),
        _ => Ok(all.swap_remove(ordinal)),
    }
}

/// The first adapter whose name has this text in it, whatever the case.
pub(crate) fn by_name(name: &str) -> Result<(wgpu::Adapter, AdapterInfo)> {
    let mut all = enumerate();
    if all.is_empty() {
        return Err(WgpuError::NoAdapter);
    }
    match all.iter().position(|(_, info)| info.name.to_lowercase().contains(&name.to_lowercase())) {
        Some(ordinal) => Ok(all.swap_remove(ordinal)),
        None => {
            let names = all.into_iter().map(|(_, info)| info.name).collect();
            Err(WgpuError::NoAdapterNamed { name: name.into(), names })
        }
    }
}

/// All adapters with their numbers.
fn enumerate() -> Vec<(wgpu::Adapter, AdapterInfo)> {
    // `WGPU_BACKEND` and its like choose as in every program with wgpu; validation layers slow a debug build down.
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.flags = wgpu::InstanceFlags::empty();
    let instance = wgpu::Instance::new(descriptor.with_env());
    let mut all = ready(instance.enumerate_adapters(wgpu::Backends::all())).unwrap_or_default();
    let rank = |adapter: &wgpu::Adapter| match adapter.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    };
    all.sort_by_key(rank);
    let numbered = |(ordinal, adapter): (usize, wgpu::Adapter)| {
        let info = AdapterInfo::new(ordinal, &adapter.get_info());
        (adapter, info)
    };
    all.into_iter().enumerate().map(numbered).collect()
}

/// What a future gives that is ready at once, as wgpu's are everywhere but in a browser.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
