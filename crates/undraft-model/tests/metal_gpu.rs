//! The runner on Metal, on the default GPU of an Apple system. Elsewhere it is skipped, and said so; with `UNDRAFT_REQUIRE=metal`
//! that is a failure.

#[path = "runner/mod.rs"]
mod runner;

mod gpu;

use std::sync::OnceLock;

use undraft::metal::MetalError;
use undraft::{Device, Error};

type Gpu = undraft_model::metal::MetalGpu;

fn is_fast() -> bool {
    true
}

/// One for all tests, so that kernels are compiled once.
fn device() -> Option<Device> {
    static DEVICE: OnceLock<Option<Device>> = OnceLock::new();
    let open = || match Device::metal() {
        Ok(device) => Some(device),
        Err(Error::Metal(MetalError::NotApple | MetalError::NoDevice)) => {
            undraft_testing::skip_absent("metal");
            None
        }
        Err(e) => panic!("{e}"),
    };
    DEVICE.get_or_init(open).clone()
}
