//! What the subcommands share.

use std::sync::Arc;

use anyhow::{Result, bail};
use clap::ValueEnum;
use undraft::Device;
use undraft::cpu::{CpuBackend, Isa, Serial, ThreadPool};

/// Instruction set, as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IsaArg {
    /// No SIMD asked for; slow, the same bits.
    Scalar,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 as of Ice Lake.
    Avx512,
    /// Arm NEON.
    Neon,
}

impl From<IsaArg> for Isa {
    fn from(isa: IsaArg) -> Self {
        match isa {
            IsaArg::Scalar => Isa::Scalar,
            IsaArg::Avx2 => Isa::Avx2,
            IsaArg::Avx512 => Isa::Avx512,
            IsaArg::Neon => Isa::Neon,
        }
    }
}

/// Threads that the machine offers.
pub fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The CPU with an instruction set (the best by default) and a number of threads (all by default).
pub fn cpu(isa: Option<IsaArg>, threads: Option<usize>) -> Result<CpuBackend> {
    let threads = threads.unwrap_or_else(available_threads);
    if !(1..=1024).contains(&threads) {
        bail!("`--threads` is {threads}, expected 1..=1024");
    }
    let backend = CpuBackend::with_isa(isa.map_or_else(Isa::best, Isa::from))?;
    Ok(match threads {
        1 => backend.with_executor(Arc::new(Serial)),
        n => backend.with_executor(Arc::new(ThreadPool::new(n))),
    })
}

/// [`cpu`] as a device.
pub fn device(isa: Option<IsaArg>, threads: Option<usize>) -> Result<Device> {
    cpu(isa, threads).map(Device::cpu_with)
}

/// Bytes with a unit, three digits.
pub fn bytes(n: usize) -> String {
    let n = n as f64;
    match n {
        n if n >= 1e9 => format!("{:.2} GB", n / 1e9),
        n if n >= 1e6 => format!("{:.1} MB", n / 1e6),
        n if n >= 1e3 => format!("{:.1} KB", n / 1e3),
        n => format!("{n} B"),
    }
}
