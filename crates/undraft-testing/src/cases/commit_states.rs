//! Cases of the replay.

use undraft_core::{DType, GdnDims, HeadMap};

use super::fused_recurrent_gated_delta_rule::{LogData, dims, sizes};
use super::{Windows, normals, seed, widen};
use crate::oracle::commit_states::Commit;

/// One call, as plain arrays.
#[derive(Clone, Debug)]
pub struct CommitCase {
    /// Sizes.
    pub dims: GdnDims,
    /// Key head of a value head.
    pub head_map: HeadMap,
    /// `[slots, HV, V, K]`.
    pub state: Vec<f32>,
    /// The log.
    pub log: LogData,
    /// Sequences; only their slots count.
    pub windows: Windows,
    /// Tokens of each sequence that stay.
    pub num_kept: Vec<u32>,
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
        let dims = dims(HEAD_SIZES[index % HEAD_SIZES.len()], index, 50_000);
        let windows = Windows::batch(&mut rng, index);
        let max_tokens = [8, 1, 5, 0, 3][index % 5];
        let kept = |&slot: &i32| if slot < 0 { u32::MAX } else { rng.below(max_tokens + 1) as u32 };
        let num_kept = windows.slots.iter().map(kept).collect();
        Self {
            dims,
            head_map: if (index / 2).is_multiple_of(2) { HeadMap::Grouped } else { HeadMap::Tiled },
            state: normals(&mut rng, DType::F32, windows.num_slots * dims.state_len(), 1.0),
            log: LogData::random(&mut rng, &dims, windows.num_slots, max_tokens),
            windows,
            num_kept,
        }
    }

    /// What the error messages call it.
    pub fn label(&self) -> String {
        let d = &self.dims;
        format!(
            "H={} HV={} K={} V={} {:?} slots={:?} kept={:?}",
            d.num_k_heads(),
            d.num_v_heads(),
            d.head_k_dim(),
            d.head_v_dim(),
            self.head_map,
            self.windows.slots,
            self.num_kept,
        )
    }

    /// Kept tokens of a sequence, 0 at padding.
    pub fn kept(&self, seq: usize) -> usize {
        if self.windows.slots[seq] < 0 { 0 } else { self.num_kept[seq] as usize }
    }

    /// The same for the oracle.
    pub fn oracle(&self) -> Commit {
        Commit {
            sizes: sizes(&self.dims),
            head_map: self.head_map,
            state: widen(&self.state),
            log: self.log.oracle(),
            slots: self.windows.optional_slots(),
            kept: (0..self.windows.num_seqs()).map(|seq| self.kept(seq)).collect(),
        }
    }
}
