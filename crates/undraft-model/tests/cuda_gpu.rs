//! The runner on CUDA, on the first GPU of this machine. Without one it is skipped, and said so; with `UNDRAFT_REQUIRE=cuda`
//! that is a failure.

#[path = "runner/mod.rs"]
mod runner;

mod gpu;

use undraft::cuda::CudaError;
use undraft::{Device, Error};

type Gpu = undraft_model::cuda::CudaGpu;

fn is_fast() -> bool {
    true
}

fn device() -> Option<Device> {
    match Device::cuda(0) {
        Ok(device) => Some(device),
        Err(Error::Cuda(CudaError::NoDriver { .. } | CudaError::NoDevice { .. })) => {
            undraft_testing::skip_absent("cuda");
            None
        }
        Err(e) => panic!("{e}"),
    }
}
