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
    Linear { weight: DType, tile: LinearTile },
}

/// What a warp of `dense_linear` takes at a time; it changes no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinearTile {
    pub(crate) outputs: usize,
    pub(crate) rows: usize,
}

const WEIGHTS: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];
/// Outputs and rows of the tiles that are compiled.
const TILES: [(usize, usize); 6] = [(1, 1), (4, 1), (1, 4), (4, 4), (1, 8), (4, 8)];

impl DenseKernel {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        use DenseKernel::*;
        let others =
            [ArgmaxParts, Argmax, AttentionParts, Attention, Embed, MoeRoute, MoeSum, RmsNorm, Rotate, SiluMul];
        let linear = |weight| TILES.map(|(outputs, rows)| Linear { weight, tile: LinearTile { outputs, rows } });
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
            DenseKernel::Linear { weight, tile: LinearTile { outputs, rows } } => {
                format!("dense_linear_{}_r{outputs}_t{rows}", weight.name())
            }
        }
    }
}

/// Rows as they come, one at a time where each has an expert of its own; few outputs to a warp where otherwise
/// multiprocessors had nothing to do.
pub(crate) fn linear(num_rows: usize, out_features: usize, has_experts: bool, num_sms: usize) -> LinearTile {
    let rows = match num_rows {
        _ if has_experts => 1,
        0..=1 => 1,
        2..=4 => 4,
        _ => 8,
    };
    let blocks = out_features.div_ceil(16) * num_rows.div_ceil(rows);
    // A grid has at most 65,535 blocks along the outputs.
    let many = blocks >= 2 * num_sms || out_features > 4 * 0xffff;
    LinearTile { outputs: if many { 4 } else { 1 }, rows }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_compiled_ones() {
        let all: Vec<DenseKernel> = DenseKernel::all().collect();
        for (num_rows, out_features) in [(0, 4), (1, 4), (1, 5120), (2, 248_320), (4, 17), (5, 4096), (300, 1000)] {
            for has_experts in [false, true] {
                let tile = linear(num_rows, out_features, has_experts, 132);
                assert!(tile.rows == 1 || !has_experts);
                assert!(all.contains(&DenseKernel::Linear { weight: DType::Bf16, tile }), "{tile:?}");
            }
        }
        assert_eq!(linear(3, 248_320, false, 132), LinearTile { outputs: 4, rows: 4 });
        assert_eq!(linear(3, 1024, false, 132), LinearTile { outputs: 1, rows: 4 });
    }
}
