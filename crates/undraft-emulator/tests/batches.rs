//! Large batches in emulation: of one multiprocessor, so that they are not many heads.

#[path = "../../undraft-cuda/tests/common/batches.rs"]
mod batches;

use std::sync::Arc;

use undraft_cuda::CudaBackend;
use undraft_emulator::{EmulatedDriver, Options};

#[test]
fn sequences_of_a_large_batch_equal_each_alone() {
    let driver = EmulatedDriver::new(Options { num_sms: 1, ..Options::default() }).unwrap();
    batches::sequences_of_a_large_batch_equal_each_alone(&CudaBackend::with_driver(Arc::new(driver)).unwrap(), 12);
}
