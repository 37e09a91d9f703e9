//! ggml's CPU operation `ggml_gated_delta_net` next to undraft's recurrence, in one process: first whether both agree,
//! then how long each takes.

mod agreement;
mod ggml;
mod recurrence;
mod timing;
mod tokens;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};
use undraft::GdnDims;
use undraft::cpu::{CpuBackend, Isa};

/// Compares ggml's `ggml_gated_delta_net` with undraft's recurrence on one thread: values, then times.
#[derive(Parser)]
struct Args {
    /// Key and value heads of the timing, H/HV.
    #[arg(long, default_value = "16/32")]
    heads: String,
    /// Head size of the timing, K = V.
    #[arg(long, default_value_t = 128)]
    dim: usize,
    /// Instruction set of undraft; by default the one that ggml was compiled for.
    #[arg(long, value_enum)]
    isa: Option<IsaArg>,
    /// Bytes of states to rotate through; twice the last-level cache by default.
    #[arg(long)]
    state_bytes: Option<usize>,
    /// Compare values alone.
    #[arg(long)]
    check: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum IsaArg {
    Scalar,
    Avx2,
    Avx512,
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

fn main() -> Result<()> {
    let args = Args::parse();
    let Some((h, hv)) = args.heads.split_once('/').and_then(|(h, hv)| Some((h.parse().ok()?, hv.parse().ok()?))) else {
        bail!("`--heads` is {:?}, expected H/HV such as 16/32", args.heads);
    };
    let dims = GdnDims::new(h, hv, args.dim, args.dim)?;
    let state_bytes = match args.state_bytes {
        Some(n) if n <= 1 << 36 => n,
        Some(n) => bail!("`--state-bytes` is {n}, expected at most {}", 1usize << 36),
        None => 2 * timing::last_level_cache(),
    };
    let backend = CpuBackend::with_isa(args.isa.map_or_else(ggml::isa, Isa::from))?;
    println!(
        "ggml {}, compiled for {}; undraft cpu-{}; 1 thread, f32, load average {}",
        ggml::version(),
        ggml::isa(),
        backend.isa(),
        load_average()
    );
    println!();
    agreement::check(&backend)?;
    if args.check {
        return Ok(());
    }

    let mut bench = timing::Bench::new(&backend, dims, state_bytes)?;
    println!();
    println!(
        "H={h} HV={hv} K=V={}, q and k normalised before, log decay, tiled heads, {:.0} MB of states rotated",
        args.dim,
        bench.state_bytes() as f64 / 1e6
    );
    println!("{:<62} {:>12} {:>12} {:>9} {:>9}", "what", "median", "least", "to copy", "to ggml");
    for row in bench.rows()? {
        println!("{row}");
    }
    println!("load average {}", load_average());
    Ok(())
}

/// Of the last minute, where the system says it.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").into()
}
