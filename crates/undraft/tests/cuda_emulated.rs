//! The pool on a CUDA device, whose kernels the emulator runs on the CPU.

use std::sync::Arc;

use undraft::cuda::{CudaBackend, CudaError};
use undraft::{
    Device, Error, GdnDims, GdnLayer, GdnLayerParams, LayerDims, LayerInputs, PoolConfig, Rows, RowsMut, Slot,
    StatePool,
};
use undraft_emulator::{EmulatedDriver, Options};
use undraft_testing::Rng;

const TOKENS: usize = 4;

struct Inputs {
    dims: GdnDims,
    layer: GdnLayer,
    qkv: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Inputs {
    fn new() -> Self {
        let dims = GdnDims::new(1, 2, 64, 8).unwrap();
        let mut rng = Rng::new(3);
        let mut normal = |n: usize| (0..n).map(|_| rng.normal() as f32 * 0.5).collect::<Vec<f32>>();
        let params = (normal(4 * dims.conv_dim()), [0.1, -0.4], [0.5, 0.2]);
        let layer = GdnLayer::new(GdnLayerParams::new(dims, 4, &params.0, &params.1, &params.2)).unwrap();
        let (qkv, a, b) = (normal(TOKENS * dims.conv_dim()), normal(TOKENS * 2), normal(TOKENS * 2));
        Self { dims, layer, qkv, a, b }
    }

    /// Runs some tokens as a window of which `num_kept` stay; gives the outputs.
    fn round(&self, pool: &mut StatePool, slot: Slot, tokens: std::ops::Range<usize>, num_kept: usize) -> Vec<f32> {
        let (channels, values) = (self.dims.conv_dim(), self.dims.value_dim());
        let mut out = vec![f32::NAN; tokens.len() * values];
        let mut round = pool.begin(&[slot], &[tokens.len()]).unwrap();
        let qkv = &self.qkv[tokens.start * channels..tokens.end * channels];
        let gates = 2 * tokens.start..2 * tokens.end;
        let inputs = LayerInputs {
            layer: &self.layer,
            mixed_qkv: Rows::new(qkv, channels),
            a: &self.a[gates.clone()],
            b: &self.b[gates],
        };
        round.verify(0, inputs, RowsMut::new(&mut out[..], values)).unwrap();
        round.commit(&[num_kept]).unwrap();
        out
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn pool(device: &Device, inputs: &Inputs) -> (StatePool, Slot) {
    let layers = vec![LayerDims { gdn: inputs.dims, conv_width: 4 }];
    let mut pool = StatePool::new(device, PoolConfig::new(layers, 1, TOKENS)).unwrap();
    let slot = pool.alloc().unwrap();
    (pool, slot)
}

#[test]
fn windows_kept_in_part_are_single_tokens() {
    let driver = EmulatedDriver::new(Options::default()).unwrap();
    let device = Device::cuda_with(CudaBackend::with_driver(Arc::new(driver)).unwrap());
    assert_eq!((device.name(), device.backend().caps().backend), ("cuda", "cuda"));
    assert!(device.cpu_backend().is_none() && device.cuda_backend().is_some());
    let inputs = Inputs::new();
    let (mut single, slot) = pool(&device, &inputs);
    let (mut windows, other) = pool(&device, &inputs);
    let (mut cpu, third) = pool(&Device::cpu(), &inputs);
    let mut out = inputs.round(&mut windows, other, 0..TOKENS, 3);
    inputs.round(&mut windows, other, 0..2, 0);
    out.truncate(3 * inputs.dims.value_dim());
    out.extend(inputs.round(&mut windows, other, 3..TOKENS, 1));
    let one_by_one: Vec<f32> = (0..TOKENS).flat_map(|t| inputs.round(&mut single, slot, t..t + 1, 1)).collect();
    assert_eq!(bits(&out), bits(&one_by_one));
    let state = |pool: &mut StatePool, slot| bits(&pool.recurrent_state(0, slot).unwrap().to_f32());
    assert_eq!(state(&mut windows, other), state(&mut single, slot));
    let near = inputs.round(&mut cpu, third, 0..TOKENS, TOKENS);
    assert!(out.iter().zip(&near).all(|(a, b)| (a - b).abs() < 1e-5), "{out:?} {near:?}");
}

#[test]
fn a_device_that_is_not_there_is_named() {
    match Device::cuda(4000) {
        Err(Error::Cuda(CudaError::NoDriver { .. } | CudaError::NoDevice { ordinal: 4000, .. })) => {}
        other => panic!("{other:?}"),
    }
}
