//! `undraft bench`: medians next to a copy of the same bytes, in one run.

mod cuda;
mod measure;
mod plot;
mod recurrent;
mod states;
mod wgpu;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::json;

use undraft::cuda::CudaBackend;
use undraft::wgpu::Device as WgpuDevice;
use undraft::{DType, DecayShape, GdnDims};

use crate::common::{self, DeviceArg, IsaArg, bytes};
use cuda::Gpu;
use measure::Row;
use recurrent::Recurrent;
use wgpu::Adapter;

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
    /// Tokens of a window; by default 1,4,8, on CUDA 4,8, and 8192 for `--op chunk` there.
    #[arg(long, value_delimiter = ',')]
    tokens: Option<Vec<usize>>,
    /// Sequences at once; by default 1,8, on CUDA 1,64,256.
    #[arg(long, value_delimiter = ',')]
    batch: Option<Vec<usize>>,
    /// Where the kernels run: `cpu`, `cuda`, `cuda:N`, `wgpu` or `wgpu:N`.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceArg,
    /// Threads of the CPU; 1 by default.
    #[arg(long)]
    threads: Option<usize>,
    /// Instruction set of the CPU; the best one by default.
    #[arg(long, value_enum)]
    isa: Option<IsaArg>,
    /// Bytes of states to rotate through; by default twice the last-level cache, on CUDA 400 MiB.
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

/// The options that every device has.
struct Setting {
    dims: GdnDims,
    state: DType,
    tokens: Vec<usize>,
    batch: Vec<usize>,
}

pub fn run(args: &Args) -> Result<bool> {
    let setting = Setting::new(args)?;
    let (dims, dtype) = (setting.dims, setting.state);
    let shape = format!(
        "H={} HV={} K=V={}, {} states, {}",
        dims.num_k_heads(),
        dims.num_v_heads(),
        dims.head_k_dim(),
        dtype.name(),
        match args.decay {
            DecayArg::Head => "a decay a head",
            DecayArg::Channel => "a decay a channel",
        }
    );
    let (header, rows) = match args.device {
        DeviceArg::Cpu => on_cpu(args, &setting, &shape)?,
        DeviceArg::Wgpu(_) => {
            refuse_on_wgpu(args)?;
            let device = common::device(args.device, args.isa, args.threads)?;
            match device.wgpu_backend() {
                Some(backend) => on_wgpu(backend.device(), args, &setting, &shape)?,
                None => bail!("`--device` is {}, expected wgpu", device.name()),
            }
        }
        DeviceArg::Cuda(_) => {
            refuse_on_cuda(args)?;
            let device = common::device(args.device, args.isa, args.threads)?;
            match device.cuda_backend() {
                Some(backend) => on_cuda(backend, args, &setting, &shape)?,
                None => bail!("`--device` is {}, expected cuda", device.name()),
            }
        }
    };
    if let Some(path) = &args.plot {
        std::fs::write(path, plot::svg(&header, &rows)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        let rows: Vec<_> = rows.iter().map(Row::to_json).collect();
        let log = dims.log_len() * 4;
        let all = json!({ "setting": header, "log_bytes_per_token": log, "state_bytes": dims.state_len() * dtype.size(), "rows": rows });
        outln!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(true);
    }
    outln!("{header}");
    outln!(
        "state of a sequence and layer {}, delta log of a token {}",
        bytes(dims.state_len() * dtype.size()),
        bytes(dims.log_len() * 4)
    );
    outln!("{:<6} {:<46} {:>12} {:>10} {:>12}", "batch", "what", "median", "to copy", "to decode");
    for row in &rows {
        outln!("{row}");
    }
    Ok(true)
}

impl Setting {
    fn new(args: &Args) -> Result<Self> {
        let (h, hv) = parse_heads(&args.heads)?;
        let decay_shape = match args.decay {
            DecayArg::Head => DecayShape::PerHead,
            DecayArg::Channel => DecayShape::PerChannel,
        };
        let dims = GdnDims::new(h, hv, args.dim, args.dim)?.with_decay_shape(decay_shape);
        let state = match args.state {
            StateArg::F32 => DType::F32,
            StateArg::Bf16 => DType::Bf16,
            StateArg::F16 => DType::F16,
        };
        let (tokens, batch): (&[usize], &[usize]) = match (args.device, args.op) {
            (DeviceArg::Cpu, _) => (&[1, 4, 8], &[1, 8]),
            (DeviceArg::Cuda(_), OpArg::Chunk) => (&[8192], &[1]),
            (DeviceArg::Cuda(_) | DeviceArg::Wgpu(_), _) => (&[4, 8], &[1, 64, 256]),
        };
        let tokens = args.tokens.clone().unwrap_or_else(|| tokens.to_vec());
        let batch = args.batch.clone().unwrap_or_else(|| batch.to_vec());
        let most = if args.op == OpArg::Chunk { 1 << 16 } else { recurrent::MAX_TOKENS };
        for (name, list, max) in [("--tokens", &tokens, most), ("--batch", &batch, 1 << 12)] {
            if let Some(n) = list.iter().find(|&&n| n == 0 || n > max) {
                bail!("`{name}` has {n}, expected 1..={max}");
            }
        }
        if let Some(n) = args.state_bytes.filter(|&n| n > 1 << 36) {
            bail!("`--state-bytes` is {n}, expected at most {}", 1usize << 36);
        }
        Ok(Self { dims, state, tokens, batch })
    }
}

/// What is timed, in words, and the table.
fn on_cpu(args: &Args, setting: &Setting, shape: &str) -> Result<(String, Vec<Row>)> {
    let Setting { dims, state, tokens, batch } = setting;
    let threads = args.threads.unwrap_or(1);
    let backend = common::cpu(args.isa, Some(threads))?;
    let state_bytes = match args.state_bytes {
        Some(n) => n,
        // Two calls' states for each thread's second-level cache.
        None if args.op == OpArg::Threads => state.size() * dims.state_len() * batch.iter().max().unwrap_or(&1),
        None => 2 * measure::last_level_cache(),
    };
    let mut header = format!("cpu-{}, {threads} threads, {shape}, L2 norm and gates in the kernel", backend.isa());
    let rows: Vec<Row> = match args.op {
        OpArg::ForkJoin => measure::fork_join(&backend),
        OpArg::Chunk => measure::chunk(&backend, dims, tokens)?,
        OpArg::Recurrent | OpArg::Threads => {
            let mut recurrent = Recurrent::new(&backend, *dims, *state, state_bytes)?;
            header += &format!(", {} of states rotated", bytes(recurrent.state_bytes()));
            let mut rows = Vec::new();
            for &batch in batch {
                rows.extend(match args.op {
                    OpArg::Threads => recurrent.scaling(batch, tokens)?,
                    _ => recurrent.rows(batch, tokens)?,
                });
            }
            rows
        }
    };
    Ok((header, rows))
}

/// The same on a GPU.
fn on_cuda(backend: &CudaBackend, args: &Args, setting: &Setting, shape: &str) -> Result<(String, Vec<Row>)> {
    let state_bytes = args.state_bytes.unwrap_or(cuda::STATE_BYTES);
    let gpu = Gpu::new(backend, setting.dims, setting.state, state_bytes)?;
    let device = backend.launcher().driver().attributes();
    let mut header = format!(
        "cuda:{}, {}, {shape}, bf16 q, k, v, gates and o, L2 norm and gates in the kernel, launches in a CUDA graph",
        device.ordinal, device.name
    );
    if args.op == OpArg::Chunk {
        return Ok((header, gpu.chunk(&setting.tokens)?));
    }
    header += &format!(", time a layer, layers with {} of states or more", bytes(state_bytes));
    let mut rows = Vec::new();
    for &batch in &setting.batch {
        rows.extend(gpu.recurrent(batch, &setting.tokens)?);
    }
    Ok((header, rows))
}

/// The same through wgpu.
fn on_wgpu(device: &WgpuDevice, args: &Args, setting: &Setting, shape: &str) -> Result<(String, Vec<Row>)> {
    let state_bytes = args.state_bytes.unwrap_or(cuda::STATE_BYTES);
    let adapter = Adapter::new(device, setting.dims, setting.state, state_bytes);
    let info = device.adapter();
    let header = format!(
        "wgpu:{}, {}, {}, {shape}, bf16 q, k, v, gates and o, L2 norm and gates in the kernel, time a layer, layers with {} of \
         states or more",
        info.ordinal,
        info.name,
        info.driver,
        bytes(state_bytes)
    );
    let mut rows = Vec::new();
    for &batch in &setting.batch {
        rows.extend(adapter.recurrent(batch, &setting.tokens)?);
    }
    Ok((header, rows))
}

/// What is not measured there.
fn refuse_on_wgpu(args: &Args) -> Result<()> {
    match args.op {
        OpArg::Threads => bail!("`--op threads` needs `--device cpu`"),
        OpArg::ForkJoin => bail!("`--op fork-join` needs `--device cpu`"),
        OpArg::Chunk => bail!("`--op chunk` needs `--device cpu` or `cuda`"),
        OpArg::Recurrent => Ok(()),
    }
}

/// Options that mean nothing there; those of threads and instruction set are refused with the device.
fn refuse_on_cuda(args: &Args) -> Result<()> {
    match args.op {
        OpArg::Threads => bail!("`--op threads` needs `--device cpu`"),
        OpArg::ForkJoin => bail!("`--op fork-join` needs `--device cpu`"),
        OpArg::Chunk if args.batch.is_some() => {
            bail!("`--batch` needs `--op recurrent`, `--op chunk` has one sequence")
        }
        OpArg::Chunk if args.state_bytes.is_some() => bail!("`--state-bytes` needs `--op recurrent`"),
        OpArg::Chunk | OpArg::Recurrent => Ok(()),
    }
}

fn parse_heads(heads: &str) -> Result<(usize, usize)> {
    let parts = heads.split_once('/').and_then(|(h, hv)| Some((h.parse().ok()?, hv.parse().ok()?)));
    match parts {
        Some(parts) => Ok(parts),
        None => bail!("`--heads` is {heads:?}, expected H/HV such as 16/32"),
    }
}
