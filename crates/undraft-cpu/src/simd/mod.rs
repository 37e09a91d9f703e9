//! The SIMD layer: which instruction sets there are, and a token that proves that the CPU has one.
//!
//! Kernels are generic over [`fearless_simd::Simd`] and hold no intrinsic; [`with_simd!`](crate::with_simd) makes the
//! token and compiles its body once for each instruction set, inside a function with the right target features.

mod isa;
mod lanes;
mod math;
mod prefetch;

pub use fearless_simd::prelude;
pub use fearless_simd::{Simd, f32x4, f32x8, f32x16, u16x16, u32x16};
pub use isa::{Isa, Token};
pub use lanes::{
    LANES, fma, fold, load, load_bf16, load_f16, round_bf16, round_bf16_half, round_f16, round_f16_half, software_fma,
    splat, store, sum, sum_each, zero,
};
pub use math::{exp, sigmoid, silu, softplus};
pub use prefetch::{Ahead, prefetch};
