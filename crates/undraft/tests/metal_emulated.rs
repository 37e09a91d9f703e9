//! The pool on a Metal device, whose kernels the emulator runs on the CPU.

use std::sync::Arc;

use undraft::metal::{MetalBackend, MetalError};
use undraft::{
    Device, Error, GdnDims, GdnLayer, GdnLayerParams, LayerDims, LayerInputs, PoolConfig, Rows, RowsMut, StatePool,
};
use undraft_emulator::{EmulatedMetal, Options};
use undraft_testing::Rng;

const TOKENS: usize = 4;

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn windows_kept_in_part_are_single_tokens() {
    let driver = EmulatedMetal::new(Options::default()).unwrap();
    let device = Device::metal_with(MetalBackend::with_driver(Arc::new(driver)));
    assert_eq!((device.name(), device.backend().caps().backend), ("metal", "metal"));
    assert!(device.cpu_backend().is_none() && device.metal_backend().is_some());
    let dims = GdnDims::new(1, 2, 64, 8).unwrap();
    let mut rng = Rng::new(3);
    let mut normal = |n: usize| (0..n).map(|_| rng.normal() as f32 * 0.5).collect::<Vec<f32>>();
    let layer =
        GdnLayer::new(GdnLayerParams::new(dims, 4, &normal(4 * dims.conv_dim()), &[0.1, -0.4], &[0.5, 0.2])).unwrap();
    let (qkv, a, b) = (normal(TOKENS * dims.conv_dim()), normal(TOKENS * 2), normal(TOKENS * 2));
    // Windows of tokens, of which some stay; gives the outputs of those, and the state.
    let run = |device: &Device, windows: &[(std::ops::Range<usize>, usize)]| {
        let config = PoolConfig::new(vec![LayerDims { gdn: dims, conv_width: 4 }], 1, TOKENS);
        let mut pool = StatePool::new(device, config).unwrap();
        let slot = pool.alloc().unwrap();
        let mut kept = Vec::new();
        for (tokens, num_kept) in windows {
            let mut out = vec![f32::NAN; tokens.len() * dims.value_dim()];
            let mut round = pool.begin(&[slot], &[tokens.len()]).unwrap();
            let gates = 2 * tokens.start..2 * tokens.end;
            let inputs = LayerInputs {
                layer: &layer,
                mixed_qkv: Rows::new(
                    &qkv[tokens.start * dims.conv_dim()..tokens.end * dims.conv_dim()],
                    dims.conv_dim(),
                ),
                a: &a[gates.clone()],
                b: &b[gates],
            };
            round.verify(0, inputs, RowsMut::new(&mut out[..], dims.value_dim())).unwrap();
            round.commit(&[*num_kept]).unwrap();
            kept.extend_from_slice(&out[..num_kept * dims.value_dim()]);
        }
        (kept, pool.recurrent_state(0, slot).unwrap().to_f32())
    };
    let windows = run(&device, &[(0..TOKENS, 3), (0..2, 0), (3..TOKENS, 1)]);
    let single = run(&device, &[(0..1, 1), (1..2, 1), (2..3, 1), (3..4, 1)]);
    assert_eq!((bits(&windows.0), bits(&windows.1)), (bits(&single.0), bits(&single.1)));
    let (cpu, _) = run(&Device::cpu(), &[(0..TOKENS, TOKENS)]);
    assert!(windows.0.iter().zip(&cpu).all(|(a, b)| (a - b).abs() < 1e-5), "{windows:?} {cpu:?}");
}

#[test]
fn another_system_is_told_so() {
    match Device::metal() {
        Ok(device) => assert_eq!(device.name(), "metal"),
        Err(Error::Metal(MetalError::NotApple | MetalError::NoDevice)) => {}
        other => panic!("{other:?}"),
    }
}
