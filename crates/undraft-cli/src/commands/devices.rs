//! `undraft devices`.

use anyhow::Result;
use serde_json::json;
use undraft::cpu::{CpuBackend, Isa};
use undraft::cuda::driver::DeviceAttributes;
use undraft::{Backend, Device, GdnDims, LayerDims, PoolConfig, StatePool};

use crate::common::{available_threads, bytes, cuda_devices};

#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Shapes whose memory is shown: name, Gated DeltaNet layers, H, HV, head size.
const SHAPES: [(&str, usize, usize, usize, usize); 3] =
    [("Qwen3.5 27B", 48, 16, 48, 128), ("Qwen3.5 35B-A3B", 30, 16, 32, 128), ("the bundled model", 6, 2, 4, 128)];

pub fn run(args: &Args) -> Result<bool> {
    let best = Isa::best();
    let caps = CpuBackend::new();
    let caps = caps.caps();
    let ops: Vec<_> = caps.ops.iter().map(|op| op.name()).collect();
    let io: Vec<_> = caps.io.iter().map(|d| d.name()).collect();
    let states: Vec<_> = caps.states.iter().map(|d| d.name()).collect();
    let captures: Vec<_> = caps.captures.iter().map(|c| format!("{c:?}")).collect();
    let mut memory = Vec::new();
    for (name, num_layers, h, hv, dim) in SHAPES {
        let gdn = GdnDims::new(h, hv, dim, dim)?;
        let config = PoolConfig::new(vec![LayerDims { gdn, conv_width: 4 }], 1, 4);
        let layer = StatePool::new(&Device::cpu(), config)?.memory_per_slot();
        memory.push((name, num_layers, h, hv, dim, gdn.log_len() * 4, layer));
    }
    if args.json {
        let isas: Vec<_> =
            Isa::ALL.iter().map(|i| json!({ "name": i.name(), "available": i.is_available() })).collect();
        let memory: Vec<_> = memory
            .iter()
            .map(|(name, layers, h, hv, dim, log, m)| {
                json!({
                    "shape": name, "num_layers": layers, "num_k_heads": h, "num_v_heads": hv, "head_dim": dim,
                    "log_bytes_per_token_and_layer": log, "slot_bytes": m.total() * layers,
                    "recurrent_state_bytes": m.recurrent_state * layers, "conv_state_bytes": m.conv_state * layers,
                    "delta_log_bytes": m.delta_log * layers, "conv_log_bytes": m.conv_log * layers,
                })
            })
            .collect();
        let cpu = json!({
            "name": "cpu", "isas": isas, "best_isa": best.name(), "threads": available_threads(), "ops": ops,
            "io_dtypes": io, "state_dtypes": states, "captures": captures, "max_head_dim": caps.max_head_dim,
        });
        let mut devices = vec![cpu];
        devices.extend(cuda_devices().enumerate().map(|(ordinal, device)| cuda_json(ordinal, &device)));
        outln!("{}", serde_json::to_string_pretty(&json!({ "devices": devices, "memory_per_slot": memory }))?);
        return Ok(true);
    }
    outln!("cpu, {} threads", available_threads());
    for isa in Isa::ALL {
        let note = if isa == best { "available, used by default" } else { "available" };
        outln!("  {:<8} {}", isa.name(), if isa.is_available() { note } else { "not on this machine" });
    }
    outln!("  operations    {}", ops.join(", "));
    outln!("  i/o dtypes    {}", io.join(", "));
    outln!("  state dtypes  {}", states.join(", "));
    outln!("  captures      {}", captures.join(", "));
    outln!("  head sizes    1..={}, K and V of their own", caps.max_head_dim);
    for (ordinal, device) in cuda_devices().enumerate() {
        print_cuda(ordinal, &device);
    }
    outln!("\nmemory of one slot (one sequence), windows of 4 tokens");
    outln!(
        "  {:<18} {:>6} {:>6} {:>4} {:>10} {:>10} {:>10} {:>12} {:>10}",
        "shape",
        "layers",
        "H/HV",
        "K=V",
        "state",
        "conv",
        "log",
        "log a token",
        "total"
    );
    for (name, layers, h, hv, dim, log, m) in memory {
        let all = |n: usize| bytes(n * layers);
        outln!(
            "  {name:<18} {layers:>6} {:>6} {dim:>4} {:>10} {:>10} {:>10} {:>12} {:>10}",
            format!("{h}/{hv}"),
            all(m.recurrent_state),
            all(m.conv_state),
            all(m.delta_log + m.conv_log),
            format!("{log} B"),
            all(m.total()),
        );
    }
    outln!("  (log a token: k, decay and delta of one layer; the convolution's row comes on top)");
    Ok(true)
}

/// The device behind an operation's back end, if it is there.
fn attributes(device: &undraft::Result<Device>) -> Option<&DeviceAttributes> {
    Some(device.as_ref().ok()?.cuda_backend()?.launcher().driver().attributes())
}

fn cuda_json(ordinal: usize, device: &undraft::Result<Device>) -> serde_json::Value {
    let name = format!("cuda:{ordinal}");
    let (major, minor) = attributes(device).map_or((0, 0), |a| a.compute_capability);
    match (attributes(device), device) {
        (Some(a), Ok(device)) => json!({
            "name": name, "device": a.name, "compute_capability": format!("{major}.{minor}"), "multiprocessors": a.num_sms,
            "ops": device.backend().caps().ops.iter().map(|op| op.name()).collect::<Vec<_>>(),
        }),
        (_, Err(why)) => json!({ "name": name, "unavailable": why.to_string() }),
        (None, Ok(_)) => json!({ "name": name }),
    }
}

fn print_cuda(ordinal: usize, device: &undraft::Result<Device>) {
    match (attributes(device), device) {
        (Some(a), Ok(device)) => {
            let (major, minor) = a.compute_capability;
            outln!("\ncuda:{ordinal}, {}", a.name);
            outln!("  compute capability {major}.{minor}, {} multiprocessors", a.num_sms);
            let ops: Vec<_> = device.backend().caps().ops.iter().map(|op| op.name()).collect();
            outln!("  operations    {}", ops.join(", "));
        }
        (_, Err(why)) => outln!("\ncuda:{ordinal}, not available: {why}"),
        (None, Ok(_)) => {}
    }
}
