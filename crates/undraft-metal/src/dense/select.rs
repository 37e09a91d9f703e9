//! Which kernel runs a dense part: pure functions of sizes, without a GPU.

use undraft_core::DType;

use crate::sources::{self, Library};

/// A kernel of the dense parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DenseKernel {
    ArgmaxParts,
    Argmax,
    AttentionParts,
    Attention,
    Embed,
    MoeRoute,
    MoeSum,
    RmsNorm,
    Rotate,
    SiluMul,
    /// `rows` at a time, one of `TILES`; it changes no result.
    Linear {
        weight: DType,
        rows: usize,
    },
}

const WEIGHTS: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];
/// Rows that are compiled.
const TILES: [usize; 3] = [1, 4, 8];

/// Kernels there are.
pub(crate) const NUM_KERNELS: usize = 10 + WEIGHTS.len() * TILES.len();

impl DenseKernel {
    pub(crate) fn library(self) -> Library {
        match self {
            DenseKernel::ArgmaxParts | DenseKernel::Argmax => sources::DENSE_ARGMAX,
            DenseKernel::AttentionParts | DenseKernel::Attention => sources::DENSE_ATTENTION,
            DenseKernel::Embed => sources::DENSE_EMBED,
            DenseKernel::MoeRoute | DenseKernel::MoeSum => sources::DENSE_MOE,
            DenseKernel::RmsNorm => sources::DENSE_RMS_NORM,
            DenseKernel::Rotate => sources::DENSE_ROTATE,
            DenseKernel::SiluMul => sources::DENSE_SILU_MUL,
            DenseKernel::Linear { .. } => sources::DENSE_LINEAR,
        }
    }
    pub(crate) fn name(self) -> String {
        match self {
            DenseKernel::ArgmaxParts => "dense_argmax_parts".into(),
            DenseKernel::AttentionParts => "dense_attention_parts".into(),
            DenseKernel::MoeRoute => "dense_moe_route".into(),
            DenseKernel::MoeSum => "dense_moe_sum".into(),
            DenseKernel::Linear { weight, rows } => format!("dense_linear_{}_t{rows}", weight.name()),
            _ => self.library().name.into(),
        }
    }
    /// All kernels.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        use DenseKernel::*;
        let others =
            [ArgmaxParts, Argmax, AttentionParts, Attention, Embed, MoeRoute, MoeSum, RmsNorm, Rotate, SiluMul];
        let linear = |weight| TILES.map(|rows| Linear { weight, rows });
        others.into_iter().chain(WEIGHTS.into_iter().flat_map(linear))
    }
    /// Its place in [`DenseKernel::all`].
    pub(crate) fn index(self) -> usize {
        Self::all().position(|kernel| kernel == self).unwrap_or(0)
    }
}

/// Rows that a simdgroup of `dense_linear` takes: one where each has an expert of its own, else as they come.
pub(crate) fn linear_rows(num_rows: usize, has_experts: bool) -> usize {
    match num_rows {
        _ if has_experts => 1,
        0..=1 => 1,
        2..=4 => 4,
        _ => 8,
    }
}
