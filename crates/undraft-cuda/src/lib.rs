//! CUDA back end of undraft: Gated DeltaNet kernels for NVIDIA GPUs (sm_80 and up) whose verify window equals
//! single-token decoding bit for bit.
//!
//! * [`CudaBackend`] is an [`undraft_core::Backend`]: host memory in, host memory out.
//! * [`raw`] launches the same kernels on device pointers and a stream of the caller: no allocation, no
//!   synchronisation, fit for a CUDA graph.
//! * [`dense`] launches the other parts of a model in the same way.
//! * [`driver`] is all that the crate asks of a driver, behind one trait, and device memory, streams and graphs on top of it.
//!
//! The kernels are embedded as machine code and PTX, so that a build needs no CUDA toolkit and a user needs the driver
//! alone, which is loaded when the first back end is made.
//!
//! ```
//! use undraft_cuda::{CudaBackend, CudaError};
//!
//! match CudaBackend::new(0) {
//!     Ok(backend) => println!("{backend:?}"),
//!     Err(CudaError::NoDriver { .. }) => println!("this machine has no NVIDIA driver"),
//!     Err(e) => println!("{e}"),
//! }
//! ```

mod backend;
pub mod dense;
mod device;
pub mod driver;
mod error;
mod nvrtc;
mod ops;
pub mod raw;
mod select;

pub use backend::CudaBackend;
pub use cudarc;
pub use driver::{DeviceBuffer, Driver};
pub use error::{CudaError, Result};
