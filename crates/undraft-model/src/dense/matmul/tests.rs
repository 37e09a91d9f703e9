use std::sync::Arc;

use half::{bf16, f16};
use undraft::cpu::{CpuBackend, Isa, ThreadPool};
use undraft_testing::Rng;

use super::*;

fn random(rng: &mut Rng, len: usize) -> Vec<f32> {
    (0..len).map(|_| rng.normal() as f32).collect()
}

/// The same values in all three types: multiples of 1/8 below 16 are exact in bf16.
fn weights(rng: &mut Rng, len: usize) -> [WeightData; 3] {
    let values: Vec<f32> = (0..len).map(|_| (rng.below(255) as f32 - 127.0) / 8.0).collect();
    [
        WeightData::Bf16(values.iter().map(|&x| bf16::from_f32(x)).collect()),
        WeightData::F16(values.iter().map(|&x| f16::from_f32(x)).collect()),
        WeightData::F32(values),
    ]
}

fn product(linear: &Linear, compute: &Compute, x: &[f32]) -> Vec<f32> {
    let mut y = vec![f32::NAN; x.len() / linear.in_features() * linear.out_features()];
    linear.forward(compute, x, &mut y);
    y
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

const SHAPES: [(usize, usize); 8] = [(1, 1), (3, 31), (9, 32), (7, 48), (100, 96), (33, 257), (64, 1000), (1025, 64)];

#[test]
fn it_is_the_product_within_f32_rounding() {
    let mut rng = Rng::new(1);
    let compute = Compute::new(&CpuBackend::new());
    for (out, inner) in SHAPES {
        let weight = weights(&mut rng, out * inner);
        let WeightData::F32(values) = &weight[2] else { unreachable!() };
        let x = random(&mut rng, 6 * inner);
        let y = product(&Linear::new(&weight[2], out, inner), &compute, &x);
        for t in 0..6 {
            for o in 0..out {
                let pairs = values[o * inner..(o + 1) * inner].iter().zip(&x[t * inner..(t + 1) * inner]);
                let (sum, size) = pairs.fold((0.0, 0.0), |(sum, size), (&w, &x)| {
                    let p = f64::from(w) * f64::from(x);
                    (sum + p, size + p.abs())
                });
                let got = f64::from(y[t * out + o]);
                assert!((got - sum).abs() <= 1e-6 * size, "[{out}, {inner}] y[{t}][{o}] = {got}, expected {sum}");
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_tokens_isa_threads_or_storage() {
    let mut rng = Rng::new(2);
    for (out, inner) in SHAPES {
        let linears = weights(&mut rng, out * inner).map(|weight| Linear::new(&weight, out, inner));
        let x = random(&mut rng, 13 * inner);
        let scalar = Compute::new(&CpuBackend::with_isa(Isa::Scalar).unwrap());
        let want: Vec<f32> = x.chunks(inner).flat_map(|x| product(&linears[0], &scalar, x)).collect();
        for isa in Isa::ALL {
            let Ok(backend) = CpuBackend::with_isa(isa) else { continue };
            for backend in [backend.clone(), backend.with_executor(Arc::new(ThreadPool::new(3)))] {
                let compute = Compute::new(&backend);
                for n in [1, 2, 3, 4, 5, 6, 8, 9, 13] {
                    for linear in &linears {
                        let y = product(linear, &compute, &x[..n * inner]);
                        assert_eq!(bits(&y), bits(&want[..n * out]), "{isa} [{out}, {inner}] n={n} {}", linear.dtype());
                    }
                }
            }
        }
    }
}

#[test]
fn joint_products_are_the_single_ones() {
    let mut rng = Rng::new(3);
    let inner = 96;
    let linears = [200, 1, 77].map(|out| Linear::new(&weights(&mut rng, out * inner)[0], out, inner));
    let compute = Compute::new(&CpuBackend::new().with_executor(Arc::new(ThreadPool::new(2))));
    for n in [0, 1, 5] {
        let x = random(&mut rng, n * inner);
        let mut y = linears.each_ref().map(|l| vec![f32::NAN; n * l.out_features()]);
        let [a, b, c] = &mut y;
        forward_joint(&compute, &x, [(&linears[0], a), (&linears[1], b), (&linears[2], c)]);
        for (linear, y) in linears.iter().zip(&y) {
            assert_eq!(bits(y), bits(&product(linear, &compute, &x)));
        }
    }
}

#[test]
fn rows_read_back_as_stored() {
    let mut rng = Rng::new(4);
    for weight in weights(&mut rng, 5 * 70) {
        let linear = Linear::new(&weight, 5, 70);
        let values: Vec<f32> = match &weight {
            WeightData::F32(x) => x.clone(),
            WeightData::Bf16(x) => x.iter().map(|x| x.to_f32()).collect(),
            WeightData::F16(x) => x.iter().map(|x| x.to_f32()).collect(),
        };
        for row in 0..5 {
            let mut to = [f32::NAN; 70];
            linear.row(row, &mut to);
            assert_eq!(to, values[row * 70..(row + 1) * 70]);
        }
    }
}
