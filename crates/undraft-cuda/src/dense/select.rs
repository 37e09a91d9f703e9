//! Which kernel runs a dense part: pure functions of sizes, without a GPU.

use undraft_core::DType;

/// A function of the fat binary.
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

impl DenseKernel {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        use DenseKernel::*;
        let others =
            [ArgmaxParts, Argmax, AttentionParts, Attention, Embed, MoeRoute, MoeSum, RmsNorm, Rotate, SiluMul];
        let linear = |weight| TILES.map(|rows| Linear { weight, rows });
        others.into_iter().chain(WEIGHTS.into_iter().flat_map(linear))
    }

    /// Position in [`DenseKernel::all`].
    pub(crate) fn index(self) -> usize {
        Self::all().position(|kernel| kernel == self).unwrap_or(0)
    }

    pub(crate) fn name(self) -> String {
        match self {
            DenseKernel::ArgmaxParts => "dense_argmax_parts".into(),
            DenseKernel::Argmax => "dense_argmax".into(),
            DenseKernel::AttentionParts => "dense_attention_parts".into(),
            DenseKernel::Attention => "dense_attention".into(),
            DenseKernel::Embed => "dense_embed".into(),
            DenseKernel::MoeRoute => "dense_moe_route".into(),
            DenseKernel::MoeSum => "dense_moe_sum".into(),
            DenseKernel::RmsNorm => "dense_rms_norm".into(),
            DenseKernel::Rotate => "dense_rotate".into(),
            DenseKernel::SiluMul => "dense_silu_mul".into(),
            DenseKernel::Linear { weight, rows } => format!("dense_linear_{}_t{rows}", weight.name()),
        }
    }
}

/// Rows that a block of `dense_linear` takes: one where each has an expert of its own, else as they come.
pub(crate) fn linear_rows(num_rows: usize, has_experts: bool) -> usize {
    match num_rows {
        _ if has_experts => 1,
        0..=1 => 1,
        2..=4 => 4,
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_compiled_ones() {
        let all: Vec<DenseKernel> = DenseKernel::all().collect();
        for (num_rows, expected) in [(0, 1), (1, 1), (2, 4), (4, 4), (5, 8), (8, 8), (300, 8)] {
            assert_eq!(linear_rows(num_rows, true), 1);
            let rows = linear_rows(num_rows, false);
            assert_eq!(rows, expected);
            assert!(all.contains(&DenseKernel::Linear { weight: DType::Bf16, rows }));
        }
    }
}
