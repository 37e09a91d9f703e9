//! Ugly inputs, the same on every run: odd sizes, ragged batches, extremes, values already rounded to the I/O dtype.

pub mod causal_conv1d_update;
pub mod commit_states;
pub mod fused_gdn_gating;
pub mod fused_recurrent_gated_delta_rule;
pub mod rms_norm_gated;
mod trees;
mod windows;

pub use trees::Topology;
pub use windows::Windows;
pub(crate) use windows::gather;

use undraft_core::{Capture, DType, DecayShape, HeadMap};

use crate::Rng;

/// Seed of case `index` of an operation.
pub(crate) fn seed(op: &str, io: DType, index: usize) -> Rng {
    let text = op.bytes().chain(io.name().bytes());
    let hash = text.fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    Rng::new(hash ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Normal numbers times `scale`, rounded to the I/O dtype.
pub(crate) fn normals(rng: &mut Rng, io: DType, len: usize, scale: f64) -> Vec<f32> {
    (0..len).map(|_| io.round((rng.normal() * scale) as f32)).collect()
}

/// f32 as f64.
pub(crate) fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

/// As many numbers below `bound`, rising.
pub(crate) fn rising(rng: &mut Rng, count: usize, bound: usize) -> Vec<u32> {
    let mut picked: Vec<u32> = rng.permutation(bound).into_iter().take(count).map(|n| n as u32).collect();
    picked.sort_unstable();
    picked
}

/// A path for each sequence, `[num_seqs, max_tokens]`: rising entries as far as `counts` says, wild numbers behind them and
/// at padding.
pub(crate) fn paths(rng: &mut Rng, windows: &Windows, counts: &[u32], max_tokens: usize) -> Vec<u32> {
    let mut paths = vec![u32::MAX; windows.num_seqs() * max_tokens];
    for (seq, _, _) in windows.live() {
        let entries = rising(rng, counts[seq] as usize, max_tokens);
        paths[seq * max_tokens..][..entries.len()].copy_from_slice(&entries);
    }
    paths
}

/// The log entries that `count` and `path` mean for a sequence, in order.
pub(crate) fn entries(path: &[u32], seq: usize, count: usize, max_tokens: usize) -> Vec<usize> {
    match path {
        [] => (0..count).collect(),
        path => path[seq * max_tokens..][..count].iter().map(|&entry| entry as usize).collect(),
    }
}

/// What [`crate::coverage`] calls a head map.
pub(crate) fn head_map_name(head_map: HeadMap) -> &'static str {
    match head_map {
        HeadMap::Grouped => "grouped",
        HeadMap::Tiled => "tiled",
    }
}

/// What [`crate::coverage`] calls a decay shape.
pub(crate) fn decay_shape_name(decay_shape: DecayShape) -> &'static str {
    match decay_shape {
        DecayShape::PerHead => "per-head",
        DecayShape::PerChannel => "per-channel",
    }
}

/// What [`crate::coverage`] calls a capture.
pub(crate) fn capture_name(capture: Capture) -> &'static str {
    match capture {
        Capture::Final => "final",
        Capture::PerToken => "per-token",
        Capture::DeltaLog => "delta-log",
    }
}

/// What [`crate::coverage`] calls the entries that are replayed.
pub(crate) fn replay_name(num_pending: &[u32], path: &[u32]) -> &'static str {
    match (num_pending, path) {
        ([], _) => "none",
        (_, []) => "first",
        _ => "path",
    }
}
