//! Cases of the replay.

use undraft_core::{DType, DecayShape, GdnDims, HeadMap};

use super::fused_recurrent_gated_delta_rule::{LogData, dims, sizes};
use super::{Windows, decay_shape_name, entries, head_map_name, normals, paths, seed, widen};
use crate::coverage::{Axis, Options};
use crate::oracle::commit_states::Commit;

/// One call, as plain arrays.
#[derive(Clone, Debug)]
pub struct CommitCase {
    /// Sizes.
    pub dims: GdnDims,
    /// Key head of a value head.
    pub head_map: HeadMap,
    /// `[slots, HV, V, K]`, values of the dtype below.
    pub state: Vec<f32>,
    /// Dtype of the states.
    pub state_dtype: DType,
    /// The log.
    pub log: LogData,
    /// Sequences; only their slots count.
    pub windows: Windows,
    /// Tokens of each sequence that stay.
    pub num_kept: Vec<u32>,
    /// Which log entries those are, `[num_seqs, log.max_tokens]`; empty for the first ones.
    pub path: Vec<u32>,
}

/// `(K, V)`.
const HEAD_SIZES: [(usize, usize); 12] = [
    (64, 96),
    (1, 3),
    (17, 3),
    (128, 128),
    (3, 17),
    (96, 64),
    (32, 17),
    (192, 96),
    (1, 1),
    (256, 192),
    (33, 65),
    (8, 256),
];
/// Cases.
pub const NUM_CASES: usize = 38;

impl CommitCase {
    /// Case `index`.
    pub fn nth(index: usize) -> Self {
        let mut rng = seed("commit_states", DType::F32, index);
        let decay_shape = if index % 7 < 3 { DecayShape::PerChannel } else { DecayShape::PerHead };
        let dims = dims(HEAD_SIZES[index % HEAD_SIZES.len()], index, 50_000).with_decay_shape(decay_shape);
        let state_dtype = [DType::F32, DType::Bf16, DType::F16][index % 3];
        let windows = Windows::batch(&mut rng, index);
        let max_tokens = [8, 1, 5, 0, 3][index % 5];
        let kept = |&slot: &i32| if slot < 0 { u32::MAX } else { rng.below(max_tokens + 1) as u32 };
        let num_kept: Vec<u32> = windows.slots.iter().map(kept).collect();
        let has_path = matches!(index % 5, 0 | 2 | 4) && (index / 5).is_multiple_of(2);
        let path = if has_path { paths(&mut rng, &windows, &num_kept, max_tokens) } else { Vec::new() };
        Self {
            dims,
            head_map: if (index / 2).is_multiple_of(2) { HeadMap::Grouped } else { HeadMap::Tiled },
            state: normals(&mut rng, state_dtype, windows.num_slots * dims.state_len(), 1.0),
            state_dtype,
            log: LogData::random(&mut rng, &dims, windows.num_slots, max_tokens),
            windows,
            num_kept,
            path,
        }
    }

    /// What the error messages call it.
    pub fn label(&self) -> String {
        let d = &self.dims;
        format!(
            "state={} H={} HV={} K={} V={} {:?} {:?} slots={:?} kept={:?} path={:?}",
            self.state_dtype.name(),
            d.num_k_heads(),
            d.num_v_heads(),
            d.head_k_dim(),
            d.head_v_dim(),
            d.decay_shape(),
            self.head_map,
            self.windows.slots,
            self.num_kept,
            self.path,
        )
    }

    /// Options of a call.
    pub fn options(&self) -> Options {
        Options::new("f32")
            .with(Axis::State, self.state_dtype.name())
            .with(Axis::HeadMap, head_map_name(self.head_map))
            .with(Axis::DecayShape, decay_shape_name(self.dims.decay_shape()))
            .with(Axis::Replay, if self.path.is_empty() { "first" } else { "path" })
    }

    /// Kept tokens of a sequence, 0 at padding.
    pub fn kept(&self, seq: usize) -> usize {
        if self.windows.slots[seq] < 0 { 0 } else { self.num_kept[seq] as usize }
    }

    /// The log entries that stay, in order.
    pub fn kept_entries(&self, seq: usize) -> Vec<usize> {
        entries(&self.path, seq, self.kept(seq), self.log.max_tokens)
    }

    /// The same for the oracle.
    pub fn oracle(&self) -> Commit {
        Commit {
            sizes: sizes(&self.dims),
            head_map: self.head_map,
            state: widen(&self.state),
            log: self.log.oracle(),
            slots: self.windows.optional_slots(),
            state_dtype: self.state_dtype,
            kept: (0..self.windows.num_seqs()).map(|seq| self.kept_entries(seq)).collect(),
        }
    }
}
