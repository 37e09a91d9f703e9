//! CPU back end of undraft: Gated DeltaNet kernels whose verify window equals single-token decoding bit for bit.
//!
//! ```
//! use undraft_cpu::{CpuBackend, Isa, ThreadPool};
//! use std::sync::Arc;
//!
//! let one_thread = CpuBackend::new();
//! let two_threads = CpuBackend::new().with_executor(Arc::new(ThreadPool::new(2)));
//! let scalar = CpuBackend::with_isa(Isa::Scalar)?; // any ISA of this machine, for tests
//! # let _ = (one_thread, two_threads, scalar);
//! # Ok::<(), undraft_core::Error>(())
//! ```
//!
//! Every ISA here runs the same 16-lane algorithm with fused multiply-adds (the scalar one computes them exactly in
//! software), so that scalar, AVX2, AVX-512 and NEON give the same bits.

mod aligned;
mod backend;
mod executor;
mod kernels;
mod shared;
pub mod simd;
mod thread_pool;

pub use aligned::AlignedBuffer;
pub use backend::CpuBackend;
#[cfg(feature = "rayon")]
pub use executor::RayonExecutor;
pub use executor::{Executor, Serial};
pub use shared::SharedMut;
pub use simd::Isa;
pub use thread_pool::ThreadPool;
