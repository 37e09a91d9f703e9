//! The runner on wgpu, on the first adapter of this machine. Without one it is skipped, and said so; with `UNDRAFT_REQUIRE=wgpu`
//! that is a failure.

#[path = "runner/mod.rs"]
mod runner;

mod gpu;

use std::sync::OnceLock;

use undraft::wgpu::WgpuError;
use undraft::{Device, Error};

type Gpu = undraft_model::wgpu::WgpuGpu;

/// One for all tests, so that kernels are compiled once.
fn device() -> Option<Device> {
    static DEVICE: OnceLock<Option<Device>> = OnceLock::new();
    let open = || match Device::wgpu(0) {
        Ok(device) => Some(device),
        Err(Error::Wgpu(WgpuError::NoAdapter)) => {
            undraft_testing::skip_absent("wgpu");
            None
        }
        Err(e) => panic!("{e}"),
    };
    DEVICE.get_or_init(open).clone()
}

/// An adapter that is a CPU does less.
fn is_fast() -> bool {
    device().and_then(|device| Some(device.wgpu_backend()?.device().adapter().kind != "Cpu")).unwrap_or(false)
}
