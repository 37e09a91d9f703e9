//! What the subcommands share.

use std::io::Write;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::ValueEnum;
use undraft::Device;
use undraft::cpu::{CpuBackend, Isa, Serial, ThreadPool};
use undraft::cuda::CudaError;

/// Writes to standard output. A reader that has gone, as in `undraft bench | head`, ends the program quietly; any other failure
/// ends it with exit code 2.
pub fn write_out(text: std::fmt::Arguments<'_>) {
    if let Err(e) = std::io::stdout().write_fmt(text) {
        if e.kind() == std::io::ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        eprintln!("error: standard output: {e}");
        std::process::exit(2);
    }
}

/// [`write_out`], formatted as by `print!`.
macro_rules! out {
    ($($text:tt)*) => { $crate::common::write_out(format_args!($($text)*)) };
}

/// [`write_out`], formatted as by `println!`.
macro_rules! outln {
    () => { $crate::common::write_out(format_args!("\n")) };
    ($($text:tt)*) => { $crate::common::write_out(format_args!("{}\n", format_args!($($text)*))) };
}

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

/// Device, as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceArg {
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU by its number.
    Cuda(usize),
    /// An adapter of wgpu by its number.
    Wgpu(usize),
}

impl FromStr for DeviceArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("`{text}` is no device, expected cpu, cuda, cuda:N, wgpu or wgpu:N");
        let numbered = |prefix: &str| text.strip_prefix(prefix).and_then(|n| n.parse().ok());
        match text {
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            "wgpu" => Ok(Self::Wgpu(0)),
            _ => {
                let cuda = numbered("cuda:").map(Self::Cuda);
                cuda.or_else(|| numbered("wgpu:").map(Self::Wgpu)).ok_or_else(expected)
            }
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

/// The device that is asked for; instruction set and threads belong to the CPU.
pub fn device(device: DeviceArg, isa: Option<IsaArg>, threads: Option<usize>) -> Result<Device> {
    match device {
        DeviceArg::Cpu => cpu(isa, threads).map(Device::cpu_with),
        DeviceArg::Cuda(_) | DeviceArg::Wgpu(_) if isa.is_some() => bail!("`--isa` needs `--device cpu`"),
        DeviceArg::Cuda(_) | DeviceArg::Wgpu(_) if threads.is_some() => bail!("`--threads` needs `--device cpu`"),
        DeviceArg::Cuda(ordinal) => Ok(Device::cuda(ordinal)?),
        DeviceArg::Wgpu(ordinal) => Ok(Device::wgpu(ordinal)?),
    }
}

/// The CUDA devices of this machine, in order; one error where there is a reason that there are none, or where one that is
/// there cannot be used.
pub fn cuda_devices() -> impl Iterator<Item = undraft::Result<Device>> {
    (0..)
        .map_while(|ordinal| match Device::cuda(ordinal) {
            Err(undraft::Error::Cuda(CudaError::NoDevice { .. })) if ordinal > 0 => None,
            device => Some(device),
        })
        .scan(false, |ended, device| {
            let item = (!*ended).then_some(device)?;
            *ended =
                matches!(&item, Err(undraft::Error::Cuda(CudaError::NoDriver { .. } | CudaError::NoDevice { .. })));
            Some(item)
        })
}

/// The adapters of wgpu of this machine, in order.
pub fn wgpu_devices() -> impl Iterator<Item = undraft::Result<Device>> {
    (0..undraft::wgpu::adapters().len()).map(Device::wgpu)
}

/// Driver of an adapter and what was measured of it, in words.
pub fn wgpu_facts(device: &undraft::wgpu::Device) -> String {
    let (adapter, facts) = (device.adapter(), device.facts());
    let subgroups = match facts.subgroup_size {
        0 => "no subgroups".into(),
        size if facts.has_subgroups => format!("subgroups of {size}"),
        size => format!("subgroups of {size}, not used"),
    };
    format!(
        "{}, {}, {subgroups}, fma {}, subnormal numbers {}",
        adapter.api,
        adapter.driver,
        if facts.fma_is_fused { "fused" } else { "not fused: the state's is put together" },
        if facts.keeps_subnormals { "kept" } else { "taken for 0" }
    )
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
