//! wgpu back end of undraft: Gated DeltaNet kernels in WGSL for Vulkan, DirectX 12, Metal and WebGPU, whose verify window
//! equals single-token decoding bit for bit.
//!
//! * [`WgpuBackend`] is an [`undraft_core::Backend`]: host memory in, host memory out.
//! * [`raw`] adds the same kernels to a [`Batch`] on buffers of the caller's; a finished batch is encoded into any compute pass.
//! * [`dense`] adds the other parts of a model in the same way.
//! * [`Device`] is an adapter that was opened: its limits, what was measured of it ([`Facts`]), memory, and its kernels. Kernels
//!   of others ([`KernelSource`]) run on it in the same way.
//!
//! ```
//! use undraft_wgpu::{WgpuBackend, WgpuError};
//!
//! match WgpuBackend::new(0) {
//!     Ok(backend) => println!("{}: {:?}", backend.device().adapter().name, backend.device().facts()),
//!     Err(WgpuError::NoAdapter) => println!("this machine has no driver that wgpu knows"),
//!     Err(e) => println!("{e}"),
//! }
//! ```
#![forbid(unsafe_code)]

mod adapter;
mod backend;
mod batch;
mod buffer;
pub mod dense;
mod device;
mod error;
mod host;
mod kernel;
#[cfg(test)]
mod math_tests;
mod ops;
mod probe;
pub mod raw;
mod select;

pub use adapter::{AdapterInfo, adapters};
pub use backend::WgpuBackend;
pub use batch::{Batch, Recorded};
pub use buffer::Binding;
pub use device::{Device, DeviceOptions, Pipeline};
pub use error::{Result, WgpuError};
pub use kernel::{Access, Constants, KernelSource, Params, Word};
pub use probe::Facts;
pub use wgpu;
