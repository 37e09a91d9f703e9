//! The chunked form: which kernels run a call, and what a block of them lays out.

use undraft_core::DType;

/// A kernel of the chunked form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkKernel {
    /// Which tokens each chunk has.
    Plan,
    /// Normalises q and k.
    Keys,
    /// Weights and inverse of a chunk and value head.
    Weights,
    /// From chunk to chunk, some rows of a state.
    Scan,
    /// What `Keys` and `Weights` do, for `MmaScan`.
    Tiles { padded_k: usize },
    /// `Scan` on tensor cores.
    MmaScan { padded_k: usize },
}

/// Tokens of a chunk.
pub(crate) const CHUNK: usize = 64;
/// Rows of a state that a block of a chunked scan takes.
pub(crate) const COLUMNS: usize = 32;
/// bf16 that an element of the chunked form's inverse, and of its outputs' weights, is the sum of.
pub(crate) const INVERSE_PARTS: usize = 3;
pub(crate) const ATTENTION_PARTS: usize = 2;

impl ChunkKernel {
    /// Every kernel.
    pub(super) const ALL: [ChunkKernel; 8] = [
        ChunkKernel::Plan,
        ChunkKernel::Keys,
        ChunkKernel::Weights,
        ChunkKernel::Scan,
        ChunkKernel::Tiles { padded_k: 64 },
        ChunkKernel::Tiles { padded_k: 128 },
        ChunkKernel::MmaScan { padded_k: 64 },
        ChunkKernel::MmaScan { padded_k: 128 },
    ];

    /// Position in [`ChunkKernel::ALL`].
    pub(super) fn index(self) -> usize {
        Self::ALL.iter().position(|&kernel| kernel == self).unwrap_or(0)
    }

    pub(super) fn name(self) -> String {
        match self {
            ChunkKernel::Plan => "chunk_plan".into(),
            ChunkKernel::Keys => "chunk_keys".into(),
            ChunkKernel::Weights => "chunk_weights".into(),
            ChunkKernel::Scan => "chunk_scan".into(),
            ChunkKernel::Tiles { padded_k } => format!("chunk_tiles_k{padded_k}"),
            ChunkKernel::MmaScan { padded_k } => format!("chunk_scan_mma_k{padded_k}"),
        }
    }

    /// Threads of a block.
    pub(crate) fn threads(self) -> u32 {
        if let ChunkKernel::Tiles { .. } = self { 128 } else { 256 }
    }

    /// Bytes that a block lays out; the kernels' offsets are the same sums.
    pub(crate) fn shared_memory(self, head_k_dim: usize, per_channel: bool) -> usize {
        let triangle = CHUNK * (CHUNK + 1);
        match self {
            ChunkKernel::Plan => 2 * 256 * 4,
            ChunkKernel::Keys => 0,
            ChunkKernel::Weights => {
                let decay = if per_channel { CHUNK * head_k_dim } else { CHUNK + 2 * CHUNK * 33 };
                4 * (2 * triangle + CHUNK + decay.max(triangle))
            }
            ChunkKernel::Scan => 4 * (2 * CHUNK * CHUNK + 2 * CHUNK * 36 + CHUNK * 32 + 4 * CHUNK + head_k_dim * 33),
            ChunkKernel::Tiles { padded_k } => {
                let triangles = 2 * CHUNK * (CHUNK + 4) + CHUNK / 2 * (CHUNK / 2 + 4);
                4 * (triangles.max(CHUNK * padded_k) + 6 * CHUNK + CHUNK * 17 + 1)
            }
            ChunkKernel::MmaScan { padded_k } => {
                let tiles = 2 * CHUNK * padded_k + (INVERSE_PARTS + ATTENTION_PARTS) * CHUNK * CHUNK;
                let copied = 2 * tiles + 4 * 4 * CHUNK;
                // A fragment of 16 x 16 elements in bf16, for two groups of warps; parts of S, values and both deltas.
                let fragment = 2 * 32 * 16;
                let fragments = 3 * (padded_k / 16) + (3 + 2 + 3) * (CHUNK / 16);
                2 * copied + fragments * fragment + 2 * 32 * 4
            }
        }
    }
}

/// What the choice of the chunked form's kernels depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkCall {
    pub(crate) q: DType,
    pub(crate) k: DType,
    pub(crate) head_k_dim: usize,
    pub(crate) per_channel: bool,
    /// Bytes of shared memory that a block may have.
    pub(crate) max_shared: usize,
}

/// The padded `K` of the tensor cores' kernels, where they can run the call: then products of k and q are exact in bf16.
pub(crate) fn on_tensor_cores(call: &ChunkCall) -> Option<usize> {
    let padded_k = [64, 128].into_iter().find(|&k| k >= call.head_k_dim)?;
    let bf16 = (call.q, call.k) == (DType::Bf16, DType::Bf16);
    let shared = ChunkKernel::MmaScan { padded_k }.shared_memory(call.head_k_dim, false);
    (bf16 && !call.per_channel && shared <= call.max_shared).then_some(padded_k)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shared memory of a block on sm_90 and on sm_120.
    const LARGE: usize = 232_448;
    const SMALL: usize = 101_376;

    fn call(head_k_dim: usize) -> ChunkCall {
        ChunkCall { q: DType::Bf16, k: DType::Bf16, head_k_dim, per_channel: false, max_shared: LARGE }
    }

    #[test]
    fn tensor_cores_take_what_is_exact_in_bf16() {
        let padded = [1, 64, 65, 96, 128, 129, 256].map(|k| on_tensor_cores(&call(k)));
        assert_eq!(padded, [Some(64), Some(64), Some(128), Some(128), Some(128), None, None]);
        for other in [
            ChunkCall { q: DType::F32, ..call(128) },
            ChunkCall { k: DType::F16, ..call(128) },
            ChunkCall { per_channel: true, ..call(128) },
            ChunkCall { max_shared: SMALL, ..call(128) },
        ] {
            assert_eq!(on_tensor_cores(&other), None, "{other:?}");
        }
    }

    #[test]
    fn every_size_runs_with_little_shared_memory() {
        for head_k_dim in 1..=256 {
            for per_channel in [false, true] {
                for kernel in [ChunkKernel::Plan, ChunkKernel::Keys, ChunkKernel::Weights, ChunkKernel::Scan] {
                    let shared = kernel.shared_memory(head_k_dim, per_channel);
                    assert!(shared <= SMALL, "{kernel:?} with K = {head_k_dim} takes {shared} bytes");
                }
            }
        }
    }
}
