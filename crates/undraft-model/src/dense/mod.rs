//! The dense parts of a model: matrix products, norms, rotation, attention, MLP, experts.
//!
//! Everything here is batch-invariant: what comes out for a token is a function of that token (and of the positions
//! before it) alone. Every sum has one order of operations, fixed by the sizes of the weights; how many tokens come
//! in a call, how they are tiled, the instruction set and the number of threads only decide who computes which sums.
//!
//! Buffers are the caller's. Lengths are the caller's duty as well, as with slices: a wrong one is a panic that names
//! the numbers, and nothing that a model file or a prompt can cause.

pub mod attention;
mod block;
mod compute;
pub mod kv_cache;
pub(crate) mod lanes;
pub mod matmul;
pub mod mlp;
pub mod moe;
pub mod norm;
pub mod paths;
mod prefetch;
pub mod rope;
mod tile;

pub use compute::Compute;
pub use kv_cache::KvCache;
pub use matmul::Linear;
pub use mlp::Mlp;
pub use moe::Moe;
pub use norm::RmsNorm;
pub use paths::Paths;
pub use rope::Rope;

pub(crate) use undraft::cpu::AlignedBuffer;
