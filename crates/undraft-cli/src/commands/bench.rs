//! `undraft bench`: medians next to a copy of the same bytes, in one run.

mod measure;

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde_json::json;

use crate::common::{self, IsaArg, bytes};
use measure::{Recurrent, Row};

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
    /// An empty job of the thread pool.
    ForkJoin,
}

pub fn run(args: &Args) -> Result<bool> {
    let (h, hv) = parse_heads(&args.heads)?;
    let most = if args.op == OpArg::Recurrent { measure::MAX_TOKENS } else { 1 << 16 };
    let dims = undraft::GdnDims::new(h, hv, args.dim, args.dim)?;
    for (name, list, max) in [("--tokens", &args.tokens, most), ("--batch", &args.batch, 1 << 12)] {
        if let Some(n) = list.iter().find(|&&n| n == 0 || n > max) {
            bail!("`{name}` has {n}, expected 1..={max}");
        }
    }
    let backend = common::cpu(args.isa, Some(args.threads))?;
    let state_bytes = match args.state_bytes {
        Some(n) if n <= 1 << 36 => n,
        Some(n) => bail!("`--state-bytes` is {n}, expected at most {}", 1usize << 36),
        None => 2 * measure::last_level_cache(),
    };
    let mut header = format!(
        "cpu-{}, {} threads, H={h} HV={hv} K=V={}, f32, L2 norm and gates in the kernel",
        backend.isa(),
        args.threads,
        args.dim
    );
    let rows: Vec<Row> = match args.op {
        OpArg::ForkJoin => measure::fork_join(&backend),
        OpArg::Chunk => measure::chunk(&backend, &dims, &args.tokens)?,
        OpArg::Recurrent => {
            let mut recurrent = Recurrent::new(&backend, dims, state_bytes)?;
            header += &format!(", {} of states rotated", bytes(recurrent.state_bytes()));
            let mut rows = Vec::new();
            for &batch in &args.batch {
                rows.extend(recurrent.rows(batch, &args.tokens)?);
            }
            rows
        }
    };
    if args.json {
        let rows: Vec<_> = rows.iter().map(Row::to_json).collect();
        let log = dims.log_len() * 4;
        let all =
            json!({ "setting": header, "log_bytes_per_token": log, "state_bytes": dims.state_len() * 4, "rows": rows });
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(true);
    }
    println!("{header}");
    println!(
        "state of a sequence and layer {}, delta log of a token {}",
        bytes(dims.state_len() * 4),
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
