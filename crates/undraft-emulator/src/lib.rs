//! Runs the CUDA and Metal kernels of undraft on the CPU, for tests: the very `.cu` and `.metal` files, compiled by a C++ compiler
//! against headers that stand in for the device languages, behind the host code of `undraft-cuda` and `undraft-metal` down to the
//! driver's calls.
//!
//! [`EmulatedDriver`] is an [`undraft_cuda::Driver`], [`EmulatedMetal`] an [`undraft_metal::Driver`]. They are slow, and stricter than
//! a GPU: what would be undefined there is an error here, or shows as NaN.
//!
//! | mistake | how it is found |
//! | --- | --- |
//! | a collective or barrier that some threads do not reach, or other ones elsewhere | error, with both places |
//! | results that depend on the order of threads, as without a barrier | error, with [`Options::every_schedule`] |
//! | a read of shared or fresh device memory that nobody has written | NaN; error with [`Options::every_schedule`] if it changes a result |
//! | a read of what an asynchronous copy has not brought yet | the same |
//! | a write past the end of a buffer, or of shared memory | error after the launch |
//! | any access past the end of a buffer, of shared memory or of a thread's array | the address sanitizer's report, Metal alone, built with `UNDRAFT_SANITIZE=address` |
//! | accesses far beyond a buffer, to freed memory or through a wild pointer | error |
//! | copies and fills beyond a buffer, wrong parameters, grids and recordings | error |
//! | results that are used before the stream has been synchronised | work is only done then |
//!
//! ```
//! use std::sync::Arc;
//! use undraft_cuda::CudaBackend;
//! use undraft_emulator::{EmulatedDriver, Options};
//!
//! let driver = EmulatedDriver::new(Options::default()).unwrap();
//! let backend = CudaBackend::with_driver(Arc::new(driver)).unwrap();
//! println!("{backend:?}");
//! ```

mod driver;
mod engine;
mod memory;
mod metal;
mod options;
mod pages;
mod work;

pub use driver::EmulatedDriver;
pub use metal::EmulatedMetal;
pub use options::{Options, Order, Poison, Schedule};
