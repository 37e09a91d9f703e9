//! The runner on CUDA, its kernels run on the CPU by the emulator.

#[path = "runner/mod.rs"]
mod runner;

mod cuda;
