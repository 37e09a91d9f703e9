//! Device memory, streams and graphs of a driver.

use std::mem::MaybeUninit;
use std::sync::Arc;

use undraft_core::{Backend, Rows, ops};
use undraft_cuda::driver::{DeviceBuffer, Driver, Launch, Stream};
use undraft_cuda::raw::{GatingParams, Launcher};
use undraft_cuda::{CudaBackend, CudaError};
use undraft_testing::Rng;

pub fn buffers_hold_what_is_copied_to_them(driver: &Arc<dyn Driver>) {
    let stream = Stream::new(driver).unwrap();
    let values: Vec<u32> = (0..1000).map(|i| i * 7).collect();
    let mut buffer = DeviceBuffer::from_slice(&stream, &values).unwrap();
    assert_eq!((buffer.len(), buffer.is_empty()), (1000, false));
    assert_eq!(buffer.address() % 256, 0);
    assert_eq!(buffer.address_of(10).unwrap(), buffer.address() + 40);
    let read = |buffer: &DeviceBuffer<u32>| {
        let mut values = vec![1; buffer.len()];
        buffer.read(&stream, 0, &mut values).unwrap();
        values
    };
    assert_eq!(read(&buffer), values);
    buffer.write(&stream, 998, &[1, 2]).unwrap();
    let mut end = [0; 3];
    buffer.read(&stream, 997, &mut end).unwrap();
    assert_eq!(end, [997 * 7, 1, 2]);

    let mut zeros = DeviceBuffer::<u32>::zeroed(&stream, 5).unwrap();
    assert_eq!(read(&zeros), [0; 5]);
    zeros.copy_from(&stream, 1, &buffer, 10..13).unwrap();
    assert_eq!(read(&zeros), [0, 70, 77, 84, 0]);
    zeros.fill(&stream, 0xab).unwrap();
    assert_eq!(read(&zeros), [0xabab_abab; 5]);

    let mut empty = DeviceBuffer::<f32>::from_slice(&stream, &[]).unwrap();
    assert_eq!((empty.address(), empty.len(), empty.is_empty()), (0, 0, true));
    empty.read(&stream, 0, &mut []).unwrap();
    empty.fill(&stream, 1).unwrap();
}

pub fn ranges_beyond_a_buffer_are_errors(driver: &Arc<dyn Driver>) {
    let stream = Stream::new(driver).unwrap();
    let mut buffer = DeviceBuffer::<i32>::zeroed(&stream, 4).unwrap();
    let other = DeviceBuffer::<i32>::zeroed(&stream, 4).unwrap();
    let outside = |start, end| Err(CudaError::OutOfBuffer { start, end, len: 4 });
    assert_eq!(buffer.write(&stream, 3, &[1, 2]), outside(3, 5));
    assert_eq!(buffer.write(&stream, usize::MAX, &[1, 2]), outside(usize::MAX, usize::MAX));
    assert_eq!(buffer.read(&stream, 0, &mut [0; 5]), outside(0, 5));
    assert_eq!(buffer.copy_from(&stream, 2, &other, 0..3), outside(2, 5));
    assert_eq!(buffer.copy_from(&stream, 0, &other, 3..5), outside(3, 5));
    assert_eq!(buffer.address_of(5).unwrap_err(), outside(5, 5).unwrap_err());
    let message = buffer.write(&stream, 3, &[1, 2]).unwrap_err().to_string();
    assert_eq!(message, "elements 3..5 of a buffer, expected a range of 0..4");
    assert_eq!(
        DeviceBuffer::<f32>::uninit(driver, usize::MAX).unwrap_err(),
        CudaError::TooLarge { elements: usize::MAX }
    );
}

pub fn a_parameter_of_another_length_is_an_error(driver: &Arc<dyn Driver>) {
    let stream = Stream::new(driver).unwrap();
    let function = driver.function("fused_gdn_gating").unwrap();
    assert_eq!(function.param_bytes, size_of::<GatingParams>());
    let params = vec![MaybeUninit::new(0); function.param_bytes - 1];
    let launch = Launch { function, blocks: (1, 1), threads: 32, shared: 0, params: &params };
    // SAFETY: the parameter is too short, so that nothing is launched.
    let e = unsafe { driver.launch(stream.handle(), &launch) }.unwrap_err();
    assert_eq!(e, CudaError::Params { got: params.len(), expected: params.len() + 1 });
    assert!(driver.function("no_such_kernel").is_err());
}

/// Gates of `n` tokens with 3 heads, by the operation over host memory.
fn gates(driver: &Arc<dyn Driver>, a: &[f32], b: &[f32], a_log: &[f32], dt_bias: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let (mut g, mut beta) = (vec![0.0; a.len()], vec![0.0; a.len()]);
    let args = ops::FusedGdnGatingArgs {
        a: Rows::new(a, 3),
        b: Rows::new(b, 3),
        a_log,
        dt_bias,
        num_tokens: a.len() / 3,
        num_v_heads: 3,
        decay_dim: 1,
        g: &mut g,
        beta: &mut beta,
    };
    CudaBackend::with_driver(driver.clone()).unwrap().fused_gdn_gating(args.check().unwrap()).unwrap();
    (g, beta)
}

/// A launch and a copy, recorded once and replayed on inputs that change in between.
pub fn a_graph_replays_what_was_recorded(driver: &Arc<dyn Driver>) {
    const N: usize = 500 * 3;
    let rng = &mut Rng::new(3);
    let mut normal = |n: usize| -> Vec<f32> { (0..n).map(|_| rng.normal() as f32).collect() };
    let (a_log, dt_bias) = (normal(3), normal(3));
    let stream = Stream::new(driver).unwrap();
    let launcher = Launcher::new(driver.clone()).unwrap();
    let upload = |values: &[f32]| DeviceBuffer::from_slice(&stream, values).unwrap();
    let (mut a, mut b) = (upload(&[0.0; N]), upload(&[0.0; N]));
    let (a_log_there, dt_bias_there) = (upload(&a_log), upload(&dt_bias));
    let (g, beta, mut copy) = (upload(&[-7.0; N]), upload(&[-7.0; N]), upload(&[-7.0; N]));
    let params = GatingParams {
        a: a.address(),
        b: b.address(),
        a_log: a_log_there.address(),
        dt_bias: dt_bias_there.address(),
        g: g.address(),
        beta: beta.address(),
        a_stride: 3,
        b_stride: 3,
        num_tokens: N as i64 / 3,
        num_v_heads: 3,
        decay_dim: 1,
        ..GatingParams::default()
    };
    stream.synchronize().unwrap();
    let graph = stream
        .capture(|| {
            // SAFETY: the buffers have these sizes and outlive the graph's launches.
            unsafe { launcher.fused_gdn_gating(stream.handle(), &params)? };
            copy.copy_from(&stream, 0, &g, 0..N)
        })
        .unwrap();
    let read = |buffer: &DeviceBuffer<f32>| {
        let mut values = vec![0.0; N];
        buffer.read(&stream, 0, &mut values).unwrap();
        values.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
    };
    assert_eq!(read(&copy), [(-7.0f32).to_bits(); N], "recording has done the work");
    for _ in 0..3 {
        let (new_a, new_b) = (normal(N), normal(N));
        a.write(&stream, 0, &new_a).unwrap();
        b.write(&stream, 0, &new_b).unwrap();
        // SAFETY: the recorded buffers are still there.
        unsafe { graph.launch(&stream).unwrap() };
        let (expected_g, expected_beta) = gates(driver, &new_a, &new_b, &a_log, &dt_bias);
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        assert_eq!(read(&copy), bits(&expected_g));
        assert_eq!(read(&beta), bits(&expected_beta));
    }
}

pub fn a_recording_ends_with_its_failure(driver: &Arc<dyn Driver>) {
    let stream = Stream::new(driver).unwrap();
    let failed = stream.capture(|| Err(CudaError::ForeignStream)).unwrap_err();
    assert_eq!(failed, CudaError::ForeignStream);
    let buffer = DeviceBuffer::from_slice(&stream, &[1u8, 2, 3]).unwrap();
    let mut values = [0; 3];
    buffer.read(&stream, 0, &mut values).unwrap();
    assert_eq!(values, [1, 2, 3]);
}
