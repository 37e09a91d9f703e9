//! The elementary functions of `kernels/prelude.wgsl` and `kernels/gates.wgsl`, against f64.

use undraft_core::{bf16, f16};

use crate::batch::Batch;
use crate::buffer::Binding;
use crate::device::Device;
use crate::error::WgpuError;
use crate::kernel::{Access, KernelSource, Params};

crate::params! {
    struct MathParams { function: u32, len: u32, }
}

const MATH: KernelSource<'_> = KernelSource {
    name: "math",
    files: &[
        include_str!("../kernels/prelude.wgsl"),
        include_str!("../kernels/gates.wgsl"),
        "
        @group(0) @binding(0) var<storage, read> x: array<f32>;
        @group(0) @binding(1) var<storage, read_write> y: array<f32>;
        @compute @workgroup_size(THREADS)
        fn main(@builtin(global_invocation_id) at: vec3<u32>) {
            let i = at.x;
            if i >= p.len { return; }
            switch p.function {
                case 0u: { y[i] = exponential(x[i]); }
                case 1u: { y[i] = reciprocal(x[i]); }
                case 2u: { y[i] = inverse_root(x[i]); }
                case 3u: { y[i] = sigmoid(x[i]); }
                case 4u: { y[i] = pair_exp(Pair(x[i], 0.0)).hi; }
                case 5u: { y[i] = pair_softplus(Pair(x[i], 0.0)).hi; }
                case 6u: { y[i] = gate_sigmoid(x[i]); }
                case 7u: { y[i] = round_to(BF16, x[i]); }
                case 8u: { y[i] = round_to(F16, x[i]); }
                case 9u: { y[i] = divide(1.0, x[i]); }
                // The three numbers lie `len` apart.
                default: { y[i] = fused(x[i], x[i + p.len], x[i + 2u * p.len]); }
            }
        }
        ",
    ],
    params: MathParams::WGSL,
    buffers: &[Access::Read, Access::ReadWrite],
    exchanges: false,
    is_large: false,
};

/// The first device, or none, which is said.
fn device() -> Option<Device> {
    match Device::open(0) {
        Ok(device) => Some(device),
        Err(WgpuError::NoAdapter) => {
            undraft_testing::skip_absent("wgpu");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn apply(device: &Device, function: u32, x: &[f32]) -> Vec<f32> {
    apply_to(device, function, x, x.len())
}

/// `len` results.
fn apply_to(device: &Device, function: u32, x: &[f32], len: usize) -> Vec<f32> {
    let kernel = device.pipeline(&MATH, &[("THREADS", 64)]).unwrap();
    let from = device.buffer_from("x", x).unwrap();
    let to = device.buffer("y", 4 * len as u64).unwrap();
    let mut batch = Batch::new(device);
    let params = MathParams { function, len: len as u32 };
    batch.dispatch(&kernel, &[(&from).into(), (&to).into()], &params, len.div_ceil(64) as u64).unwrap();
    let bytes = batch.finish().unwrap().run(&[Binding::part(&to, 0..4 * len as u64)]).unwrap();
    bytes[0].as_chunks().0.iter().map(|word| f32::from_bits(u32::from_le_bytes(*word))).collect()
}

/// Largest relative error, in units of the last place of a number just below a power of two.
fn worst(device: &Device, function: u32, x: &[f32], exact: impl Fn(f64) -> f64) -> f64 {
    let unit = 2f64.powi(-24);
    let pairs = x.iter().zip(apply(device, function, x));
    let error = |(&x, y): (&f32, f32)| {
        let want = exact(f64::from(x));
        let error = (f64::from(y) - want).abs() / want.abs().max(f64::from(f32::MIN_POSITIVE));
        (error / unit, x)
    };
    let worst = pairs.map(error).max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    println!("function {function}: {worst:?}");
    worst.0
}

fn spread(from: f32, to: f32, n: usize) -> Vec<f32> {
    (0..n).map(|i| from + (to - from) * (i as f32 / n as f32)).collect()
}

#[test]
fn functions_are_near_f64() {
    let Some(device) = device() else { return };
    let x = spread(-87.0, 88.0, 40_000);
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    // In halves of a unit at worst: 1 is the nearest number.
    assert!(worst(&device, 0, &x, f64::exp) < 3.0);
    assert!(worst(&device, 3, &x, sigmoid) < 5.0);
    assert!(worst(&device, 4, &x, f64::exp) < 1.4);
    assert!(worst(&device, 5, &spread(-60.0, 88.0, 40_000), softplus) < 1.4);
    assert!(worst(&device, 6, &x, sigmoid) < 1.4);
    let positive: Vec<f32> = spread(-20.0, 20.0, 40_000).into_iter().map(f32::exp2).collect();
    assert!(worst(&device, 1, &positive, |x| 1.0 / x) < 2.5);
    assert!(worst(&device, 2, &positive, |x| 1.0 / x.sqrt()) < 1.1);
    assert!(worst(&device, 9, &positive, |x| 1.0 / x) < 1.1);
}

#[test]
fn ends_are_as_they_should() {
    let Some(device) = device() else { return };
    let x = [f32::NEG_INFINITY, -1e30, -200.0, 0.0, 200.0, 1e30, f32::INFINITY];
    assert_eq!(apply(&device, 0, &x), [0.0, 0.0, 0.0, 1.0, f32::INFINITY, f32::INFINITY, f32::INFINITY]);
    for function in [3, 6] {
        assert_eq!(apply(&device, function, &x), [0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0]);
    }
    assert_eq!(apply(&device, 5, &x)[..5], [0.0, 0.0, 0.0, std::f32::consts::LN_2, 200.0]);
    for function in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9] {
        assert!(apply(&device, function, &[f32::NAN])[0].is_nan(), "function {function}");
    }
}

#[test]
fn sixteen_bit_rounding_is_that_of_the_dtypes() {
    let Some(device) = device() else { return };
    let mantissas = [0u32, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000, 0x7fff, 0x8000, 0x8001, 0x1_8000];
    let high = [0u32, 0x40_0000, 0x7f_0000, 0x7f_e000];
    let mut x: Vec<f32> = Vec::new();
    for exponent in 0..512u32 {
        for h in high {
            x.extend(mantissas.iter().map(|m| f32::from_bits((exponent << 23) | ((h + m) & 0x7f_ffff))));
        }
    }
    // Where the device takes subnormal numbers for 0, they are no input of f16, whose least is 2^-24, nor are they of a bf16.
    let kept = |x: &f32| !x.is_subnormal() || device.facts().keeps_subnormals;
    for (function, round) in [(7, bf16_round as fn(f32) -> f32), (8, f16_round)] {
        for (x, y) in x.iter().zip(apply(&device, function, &x)).filter(|(x, _)| kept(x)) {
            let want = round(*x);
            let same = y.to_bits() == want.to_bits() || y.is_nan() && want.is_nan();
            assert!(same, "function {function} of {x:e} is {y:e}, expected {want:e}");
        }
    }
}

/// Products and sums of all sizes, near each other and far apart, ties among them.
#[test]
fn fused_rounds_once() {
    let Some(device) = device() else { return };
    let mut seed = 9u32;
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        seed >> 8
    };
    let len = 60_000;
    let (mut a, mut b, mut c) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..len {
        // Few bits make ties, many do not.
        let mask = [0xff_ffff, 0xff_f000, 0xe0_0000][i % 3];
        let mut number = |exponent: i32| {
            let sign = if next() & 1 == 0 { 1.0 } else { -1.0 };
            sign * ((next() & mask | 0x80_0000) as f32) * 2f32.powi(exponent - 23)
        };
        let scale = [0, -20, 30, -45][i / 3 % 4];
        let (x, y) = (number(scale), number(scale / 2));
        let near = -(f64::from(x) * f64::from(y)) as f32;
        let other = number(scale + scale / 2 + (i as i32 / 12 % 60) - 30);
        a.push(x);
        b.push(y);
        c.push(if i % 5 == 0 { near } else { other });
    }
    let infinity = f32::INFINITY;
    let specials = [
        [f32::NAN, 1.0, 1.0],
        [infinity, 1.0, 1.0],
        [1.0, 1.0, infinity],
        [1e30, -1e30, infinity],
        [1e30, 1e30, -infinity],
        [infinity, 1.0, -infinity],
        [1e-30, 1e-30, -infinity],
        [0.0, infinity, 1.0],
        [f32::MAX, 0.0, 1.0],
        [-f32::MAX, 1.0, 0.0],
        [2e19, 2e19, -3e38],
        [1e19, 3e19, 3e38],
        [1e30, 1e30, -3e38],
        [0.0, 5.0, 3.0],
        [0.0, 5.0, 0.0],
    ];
    for special in specials {
        let [x, y, z] = special;
        a.push(x);
        b.push(y);
        c.push(z);
    }
    let x = [a.clone(), b.clone(), c.clone()].concat();
    for (i, y) in apply_to(&device, 10, &x, a.len()).into_iter().enumerate() {
        let want = a[i].mul_add(b[i], c[i]);
        let same = y.to_bits() == want.to_bits() || y.is_nan() && want.is_nan() || y == 0.0 && want == 0.0;
        assert!(same, "{:e} * {:e} + {:e} is {y:e}, expected {want:e}", a[i], b[i], c[i]);
    }
}

fn bf16_round(x: f32) -> f32 {
    bf16::from_f32(x).to_f32()
}
fn f16_round(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}
