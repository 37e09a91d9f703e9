//! Metal back end of undraft: Gated DeltaNet kernels for Apple GPUs whose verify window equals single-token decoding bit for
//! bit.
//!
//! * [`MetalBackend`] is an [`undraft_core::Backend`]: host memory in, host memory out.
//! * [`raw`] encodes the same kernels into a compute encoder of the caller, on the caller's buffers and offsets: it allocates
//!   nothing and waits for nothing.
//! * [`dense`] has the other parts of a model in the same way.
//! * [`driver`] is all that the crate asks of Metal, behind one trait, with buffers and commands on top of it.
//! * [`sources`] is the text of the kernels in the Metal Shading Language, for engines that compile and launch them on their
//!   own; among them those with the names and slots of the family `gated_delta_net_decode_capture_f32_{1,2,4}`.
//!
//! The kernels are compiled when they are first used, with fast math off. They have been executed in emulation on the CPU and the
//! host code has been type-checked for macOS; neither has been run on Apple hardware yet.
//!
//! ```
//! use undraft_metal::{MetalBackend, MetalError};
//!
//! match MetalBackend::new() {
//!     Ok(backend) => println!("{backend:?}"),
//!     Err(MetalError::NotApple) => println!("this is no Apple system"),
//!     Err(e) => println!("{e}"),
//! }
//! ```

mod backend;
pub mod dense;
pub mod driver;
mod error;
mod host;
mod memory;
mod ops;
pub mod raw;
mod select;
pub mod sources;

pub use backend::MetalBackend;
pub use driver::{DeviceBuffer, Driver};
pub use error::{MetalError, Result};
