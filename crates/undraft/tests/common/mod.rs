//! Small layers and tokens whose inputs follow from a number.

use undraft::{Device, GdnDims, GdnLayer, GdnLayerParams, LayerDims, LayerInputs, Round, Rows, RowsMut};

/// Values in -1..1 that follow from a seed.
pub fn values(seed: u64, len: usize) -> Vec<f32> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(len).collect()
}

pub struct Model {
    pub layers: Vec<(LayerDims, GdnLayer)>,
}

impl Model {
    /// Layers of the given (H, HV, K, V, conv width).
    pub fn new(sizes: &[(usize, usize, usize, usize, usize)]) -> Self {
        let layer = |(i, &(h, hv, k, v, width)): (usize, &(usize, usize, usize, usize, usize))| {
            let dims = GdnDims::new(h, hv, k, v).unwrap();
            let seed = 1000 * i as u64;
            let weight = values(seed + 1, width * dims.conv_dim());
            let (a_log, dt_bias) = (values(seed + 2, hv), values(seed + 3, hv));
            let layer = GdnLayer::new(GdnLayerParams::new(dims, width, &weight, &a_log, &dt_bias)).unwrap();
            (LayerDims { gdn: dims, conv_width: width }, layer)
        };
        Self { layers: sizes.iter().enumerate().map(layer).collect() }
    }
    pub fn layer_dims(&self) -> Vec<LayerDims> {
        self.layers.iter().map(|(dims, _)| *dims).collect()
    }

    /// Verifies `tokens` (of all windows) in every layer; outputs layer by layer, `[N, HV * V]`.
    pub fn verify(&self, round: &mut Round<'_>, tokens: &[u64]) -> Vec<Vec<f32>> {
        let run = |(i, (dims, layer)): (usize, &(LayerDims, GdnLayer))| {
            let dims = &dims.gdn;
            let inputs = |what: u64, len: usize| -> Vec<f32> {
                tokens.iter().flat_map(|t| values(t * 64 + what * 8 + i as u64 + 1, len)).collect()
            };
            let qkv = inputs(0, dims.conv_dim());
            let (a, b) = (inputs(1, dims.decay_len()), inputs(2, dims.num_v_heads()));
            let mut out = vec![f32::NAN; tokens.len() * dims.value_dim()];
            let inputs = LayerInputs { layer, mixed_qkv: Rows::new(&qkv[..], dims.conv_dim()), a: &a, b: &b };
            round.verify(i, inputs, RowsMut::new(&mut out[..], dims.value_dim())).unwrap();
            out
        };
        self.layers.iter().enumerate().map(run).collect()
    }
}

pub fn device(threads: usize) -> Device {
    let pool = std::sync::Arc::new(undraft::cpu::ThreadPool::new(threads));
    Device::cpu_with(undraft::cpu::CpuBackend::new().with_executor(pool))
}

pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}
