//! `undraft bench`: medians next to a copy of the same bytes, in one run.

mod measure;
mod plot;
mod recurrent;
mod states;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::json;

use undraft::{DType, DecayShape};

use crate::common::{self, IsaArg, bytes};
use measure::Row;
use recurrent::Recurrent;

#[derive(clap::Args)]
pub struct Args {
    /// What to time.
    #[arg(long, value_enum, default_value = "recurrent")]
    op: OpArg,
    /// Key and value heads, H/HV.
    #[arg(long, default_value = "16/32")]
    heads: String,
    /// Head size, K = V.
    #[arg(long, default_value_t = 128)]
    dim: usize,
    /// Tokens of a window.
    #[arg(long, value_delimiter = ',', default_value = "1,4,8")]
    tokens: Vec<usize>,
    /// Sequences at once.
    #[arg(long, value_delimiter = ',', default_value = "1,8")]
    batch: Vec<usize>,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Instruction set; the best one by default.
    #[arg(long, value_enum)]
    isa: Option<IsaArg>,
    /// Bytes of states to rotate through; twice the last-level cache by default.
    #[arg(long)]
    state_bytes: Option<usize>,
    /// Dtype of the states.
    #[arg(long, value_enum, default_value = "f32")]
    state: StateArg,
    /// Whether the decay is one factor a head or one a channel (KDA).
    #[arg(long, value_enum, default_value = "head")]
    decay: DecayArg,
    /// Also write the table as bars to this file, in SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<std::path::PathBuf>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OpArg {
    /// Decode, verify and commit of the recurrence.
    Recurrent,
    /// The chunked form next to the recurrence, over `--tokens` tokens.
    Chunk,
    /// One thread against `--threads`, with states that fit the caches.
    Threads,
    /// An empty job of the thread pool.
    ForkJoin,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StateArg {
    F32,
    Bf16,
    F16,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DecayArg {
    Head,
    Channel,
}

pub fn run(args: &Args) -> Result<bool> {
    let (h, hv) = parse_heads(&args.heads)?;
    let most = if args.op == OpArg::Chunk { 1 << 16 } else { recurrent::MAX_TOKENS };
    let decay_shape = match args.decay {
        DecayArg::Head => DecayShape::PerHead,
        DecayArg::Channel => DecayShape::PerChannel,
    };
    let dims = undraft::GdnDims::new(h, hv, args.dim, args.dim)?.with_decay_shape(decay_shape);
    let dtype = match args.state {
        StateArg::F32 => DType::F32,
        StateArg::Bf16 => DType::Bf16,
        StateArg::F16 => DType::F16,
    };
    for (name, list, max) in [("--tokens", &args.tokens, most), ("--batch", &args.batch, 1 << 12)] {
        if let Some(n) = list.iter().find(|&&n| n == 0 || n > max) {
            bail!("`{name}` has {n}, expected 1..={max}");
        }
    }
    let backend = common::cpu(args.isa, Some(args.threads))?;
    let state_bytes = match args.state_bytes {
        Some(n) if n <= 1 << 36 => n,
        Some(n) => bail!("`--state-bytes` is {n}, expected at most {}", 1usize << 36),
        // Two calls' states for each thread's second-level cache.
        None if args.op == OpArg::Threads => dtype.size() * dims.state_len() * args.batch.iter().max().unwrap_or(&1),
        None => 2 * measure::last_level_cache(),
    };
    let mut header = format!(
        "cpu-{}, {} threads, H={h} HV={hv} K=V={}, {} states, {}, L2 norm and gates in the kernel",
        backend.isa(),
        args.threads,
        args.dim,
        dtype.name(),
        match args.decay {
            DecayArg::Head => "a decay a head",
            DecayArg::Channel => "a decay a channel",
        }
    );
    let rows: Vec<Row> = match args.op {
        OpArg::ForkJoin => measure::fork_join(&backend),
        OpArg::Chunk => measure::chunk(&backend, &dims, &args.tokens)?,
        OpArg::Recurrent | OpArg::Threads => {
            let mut recurrent = Recurrent::new(&backend, dims, dtype, state_bytes)?;
            header += &format!(", {} of states rotated", bytes(recurrent.state_bytes()));
            let mut rows = Vec::new();
            for &batch in &args.batch {
                rows.extend(match args.op {
                    OpArg::Threads => recurrent.scaling(batch, &args.tokens)?,
                    _ => recurrent.rows(batch, &args.tokens)?,
                });
            }
            rows
        }
    };
    if let Some(path) = &args.plot {
        std::fs::write(path, plot::svg(&header, &rows)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        let rows: Vec<_> = rows.iter().map(Row::to_json).collect();
        let log = dims.log_len() * 4;
        let all = json!({ "setting": header, "log_bytes_per_token": log, "state_bytes": dims.state_len() * dtype.size(), "rows": rows });
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(true);
    }
    println!("{header}");
    println!(
        "state of a sequence and layer {}, delta log of a token {}",
        bytes(dims.state_len() * dtype.size()),
        bytes(dims.log_len() * 4)
    );
    println!("{:<6} {:<46} {:>12} {:>10} {:>12}", "batch", "what", "median", "to copy", "to decode");
    for row in &rows {
        println!("{row}");
    }
    Ok(true)
}

fn parse_heads(heads: &str) -> Result<(usize, usize)> {
    let parts = heads.split_once('/').and_then(|(h, hv)| Some((h.parse().ok()?, hv.parse().ok()?)));
    match parts {
        Some(parts) => Ok(parts),
        None => bail!("`--heads` is {heads:?}, expected H/HV such as 16/32"),
    }
}
