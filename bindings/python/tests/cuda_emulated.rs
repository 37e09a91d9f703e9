//! The operations on CUDA tensors, whose kernels the emulator runs on the CPU: sizes, strides and addresses reach the launches as
//! they should, so that results are those of CPU tensors.

use std::sync::Arc;

use undraft::DType;
use undraft::cuda::driver::Driver;
use undraft::cuda::raw::{CUstream, Launcher};
use undraft_emulator::{EmulatedDriver, Options};
use undraft_python::args::{Caller, Kind, Values};
use undraft_python::error::{Error, Result};
use undraft_python::ops::OPS;
use undraft_python::tensor::{Device, ElementType, Shape, Tensor};

/// A tensor in host memory with a copy on the device where it runs there.
#[derive(Clone)]
struct Array {
    bytes: Vec<u8>,
    elements: ElementType,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

#[derive(Clone)]
enum Value {
    Array(Array),
    None,
    Int(i64),
    Float(f64),
    Bool(bool),
}

fn contiguous(shape: &[i64]) -> Vec<i64> {
    (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect()
}
fn f32s(shape: &[i64], data: Vec<f32>) -> Value {
    let bytes = data.iter().flat_map(|x| x.to_le_bytes()).collect();
    let (shape, strides) = (shape.to_vec(), contiguous(shape));
    Value::Array(Array { bytes, elements: ElementType::Float(DType::F32), shape, strides })
}
fn i32s(data: &[i32]) -> Value {
    let bytes = data.iter().flat_map(|x| x.to_le_bytes()).collect();
    Value::Array(Array { bytes, elements: ElementType::I32, shape: vec![data.len() as i64], strides: vec![1] })
}

/// Numbers in -1..1 that look random.
struct Numbers(u32);
impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as f32 / (1 << 23) as f32 - 1.0
    }
    fn array(&mut self, shape: &[i64]) -> Value {
        let n = shape.iter().product::<i64>();
        f32s(shape, (0..n).map(|_| self.next()).collect())
    }
    fn negative(&mut self, shape: &[i64]) -> Value {
        let n = shape.iter().product::<i64>();
        f32s(shape, (0..n).map(|_| self.next() - 1.0).collect())
    }
}
fn zeros(shape: &[i64]) -> Value {
    f32s(shape, vec![0.0; shape.iter().product::<i64>() as usize])
}
fn floats(value: &Value) -> Vec<f32> {
    match value {
        Value::Array(array) => array.bytes.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect(),
        _ => vec![],
    }
}

struct Test {
    tensors: Vec<Tensor>,
    launcher: Option<(Launcher, CUstream)>,
    scratch: Vec<u64>,
}

impl Caller for Test {
    fn tensor(&mut self, arg: &'static str, bits: u64) -> Result<Tensor> {
        Ok(Tensor { arg, ..self.tensors[bits as usize - 1] })
    }
    fn optional(&mut self, bits: u64) -> Option<u64> {
        (bits != 0).then_some(bits)
    }
    fn cuda(&mut self, _: i32) -> Result<(Launcher, CUstream)> {
        self.launcher.clone().ok_or(Error::NotLoaded { index: 0 })
    }
    fn scratch(&mut self, _: i32, bytes: usize) -> Result<u64> {
        let (launcher, _) = self.launcher.as_ref().unwrap();
        self.scratch.push(launcher.driver().alloc(bytes)?);
        Ok(self.scratch[self.scratch.len() - 1])
    }
}

/// Runs an operation; on the device of `launcher`, or in host memory.
fn run(launcher: Option<&(Launcher, CUstream)>, name: &str, values: &mut [Value]) -> Result<()> {
    let op = OPS.iter().find(|op| op.name == name).unwrap();
    assert_eq!(op.params.len(), values.len(), "{name}");
    let mut caller = Test { tensors: vec![], launcher: launcher.cloned(), scratch: vec![] };
    let mut bits = vec![];
    for (value, param) in values.iter_mut().zip(op.params) {
        bits.push(match value {
            Value::Int(n) => *n as u64,
            Value::Float(x) => x.to_bits(),
            Value::Bool(b) => u64::from(*b),
            Value::None => {
                assert!(matches!(param.kind, Kind::MaybeIn | Kind::MaybeOut), "{}", param.name);
                0
            }
            Value::Array(array) => {
                let data = match launcher {
                    None => array.bytes.as_mut_ptr() as usize,
                    Some((launcher, stream)) => {
                        let driver = launcher.driver();
                        let at = driver.alloc(array.bytes.len().max(1))?;
                        // SAFETY: so many bytes were allocated.
                        unsafe { driver.copy_to_device(*stream, at, &array.bytes)? };
                        at as usize
                    }
                };
                caller.tensors.push(Tensor {
                    arg: "",
                    data,
                    elements: array.elements,
                    element_size: 4,
                    device: if launcher.is_some() { Device::Cuda(0) } else { Device::Cpu },
                    shape: Shape::new(&array.shape).unwrap(),
                    strides: Shape::new(&array.strides).unwrap(),
                });
                caller.tensors.len() as u64
            }
        });
    }
    (op.run)(&mut Values::new(&bits, &mut caller))?;
    if let Some((launcher, stream)) = launcher {
        let arrays = values.iter_mut().filter_map(|v| if let Value::Array(array) = v { Some(array) } else { None });
        for (array, tensor) in arrays.zip(&caller.tensors) {
            // SAFETY: the bytes were allocated above.
            unsafe { launcher.driver().copy_to_host(*stream, &mut array.bytes, tensor.data as u64)? };
        }
        // SAFETY: the stream is this driver's, and the memory is used no more.
        unsafe {
            launcher.driver().synchronize(*stream)?;
            for tensor in &caller.tensors {
                launcher.driver().free(tensor.data as u64)?;
            }
            for &scratch in &caller.scratch {
                launcher.driver().free(scratch)?;
            }
        }
    }
    Ok(())
}

fn emulated() -> (Launcher, CUstream) {
    let driver: Arc<dyn Driver> = Arc::new(EmulatedDriver::new(Options::default()).unwrap());
    let stream = driver.create_stream().unwrap();
    (Launcher::new(driver).unwrap(), stream)
}

/// Runs in host memory and on the device; compares everything that is written, and gives what the device left.
fn same_on_both(device: &(Launcher, CUstream), name: &str, values: &[Value]) -> Vec<Value> {
    let (mut cpu, mut gpu) = (values.to_vec(), values.to_vec());
    run(None, name, &mut cpu).unwrap();
    run(Some(device), name, &mut gpu).unwrap();
    for (i, (a, b)) in cpu.iter().zip(&gpu).enumerate() {
        for (a, b) in floats(a).iter().zip(&floats(b)) {
            let same = a.to_bits() == b.to_bits() || (a - b).abs() <= 2e-6 * (1.0 + a.abs());
            assert!(same, "{name}, value {i}: {a} on the CPU, {b} on the device");
        }
    }
    gpu
}

const H: i64 = 2;
const HV: i64 = 4;
const K: i64 = 64;
const V: i64 = 24;
const SLOTS: i64 = 5;

/// q, k, v as views of one fused row, the gates and the states.
fn inputs(batch: i64, tokens: i64) -> Vec<Value> {
    let mut numbers = Numbers(7);
    let row = 2 * H * K + HV * V;
    let fused = numbers.array(&[batch, tokens, row]);
    // Each part is a copy of the row from its offset on: what a view of the row is, in memory of its own.
    let part = |offset: i64, heads: i64, len: i64| {
        let Value::Array(mut array) = fused.clone() else { unreachable!() };
        array.bytes.drain(..4 * offset as usize);
        array.shape = vec![batch, tokens, heads, len];
        array.strides = vec![tokens * row, row, len, 1];
        Value::Array(array)
    };
    vec![
        part(0, H, K),
        part(H * K, H, K),
        part(2 * H * K, HV, V),
        numbers.negative(&[batch, tokens, HV]),
        numbers.array(&[batch, tokens, HV]),
        numbers.array(&[SLOTS, HV, V, K]),
    ]
}
fn log(max_tokens: i64) -> [Value; 3] {
    [zeros(&[SLOTS, max_tokens, H, K]), zeros(&[SLOTS, max_tokens, HV]), zeros(&[SLOTS, max_tokens, HV, V])]
}
/// Log decay, beta as a logit, tiled heads, L2 norm, kept in f32.
fn options() -> [Value; 6] {
    [Value::Int(0), Value::Bool(true), Value::Int(1), Value::Float(1e-6), Value::Int(0), Value::Float(0.3)]
}

#[test]
fn the_recurrence_is_that_of_cpu_tensors() {
    let device = emulated();
    let mut values = inputs(2, 3);
    values.extend([zeros(&[2, 3, HV, V]), i32s(&[0, 3, 6]), i32s(&[4, 1]), Value::None, Value::None]);
    values.extend(options());
    values.push(Value::Int(3));
    let left = same_on_both(&device, "fused_recurrent_gated_delta_rule", &values);
    assert!(floats(&left[6]).iter().any(|&x| x != 0.0));
}

#[test]
fn a_window_and_its_commit_are_decoding_what_stays() {
    let device = emulated();
    let verify = |inputs: Vec<Value>, log: [Value; 3], pending: Option<([Value; 3], Value)>| {
        let mut values = inputs;
        values.extend(log);
        values.extend([Value::None, zeros(&[2, 3, HV, V]), i32s(&[0, 3, 6]), i32s(&[4, 1]), Value::None]);
        match pending {
            Some((log, num)) => values.extend(log.into_iter().chain([num])),
            None => values.extend([const { Value::None }; 4]),
        }
        values.extend([const { Value::None }; 3]);
        values.extend(options());
        values.push(Value::Int(3));
        same_on_both(&device, "verify", &values)
    };
    let window = verify(inputs(2, 3), log(4), None);
    assert_eq!(floats(&window[5]), floats(&inputs(2, 3)[5]), "the states stay");
    let filled = [window[6].clone(), window[7].clone(), window[8].clone()];

    let mut commit = vec![window[5].clone()];
    commit.extend(filled.clone());
    commit.extend([i32s(&[2, 0]), i32s(&[4, 1]), Value::None, Value::Int(1)]);
    let committed = same_on_both(&device, "commit_states", &commit);

    // A replay rounds alike everywhere, so that one log gives the same bits.
    let mut on_cpu = commit.clone();
    run(None, "commit_states", &mut on_cpu).unwrap();
    assert_eq!(floats(&on_cpu[0]), floats(&committed[0]));

    // The lazy commit of the next window leaves the same states.
    let lazy = verify(inputs(2, 3), log(4), Some((filled, i32s(&[2, 0]))));
    assert_eq!(floats(&lazy[5]), floats(&committed[0]));

    // Decoding two tokens of the first sequence leaves them as well.
    let mut values = inputs(2, 3);
    for value in &mut values[..5] {
        let Value::Array(array) = value else { unreachable!() };
        (array.shape[0], array.shape[1]) = (1, 2);
    }
    values.extend([zeros(&[1, 2, HV, V]), i32s(&[0, 2]), i32s(&[4]), Value::None, Value::None]);
    values.extend(options());
    values.push(Value::Int(2));
    run(Some(&device), "fused_recurrent_gated_delta_rule", &mut values).unwrap();
    assert_eq!(floats(&values[5]), floats(&committed[0]));
}

#[test]
fn layers_are_committed_together() {
    let device = emulated();
    let mut numbers = Numbers(3);
    let shapes: [&[i64]; 4] = [&[3, SLOTS, HV, V, K], &[3, SLOTS, 4, H, K], &[3, SLOTS, 4, HV], &[3, SLOTS, 4, HV, V]];
    let mut values: Vec<Value> = shapes.iter().map(|shape| numbers.array(shape)).collect();
    values.extend([i32s(&[3, 1]), i32s(&[2, -1]), Value::None, Value::Int(0)]);
    let left = same_on_both(&device, "commit_states", &values);
    assert_ne!(floats(&left[0]), floats(&values[0]));
}

#[test]
fn states_of_each_token_and_trees() {
    let device = emulated();
    let mut values = inputs(1, 4);
    values.extend([Value::None, Value::None, Value::None, zeros(&[1, 5, HV, V, K]), zeros(&[1, 4, HV, V])]);
    values.extend([i32s(&[0, 4]), i32s(&[2]), i32s(&[-1, 0, 0, 2])]);
    values.extend([const { Value::None }; 7]);
    values.extend(options());
    values.push(Value::Int(4));
    let left = same_on_both(&device, "verify", &values);
    assert!(floats(&left[9]).iter().any(|&x| x != 0.0));
}

#[test]
fn the_convolution_and_its_commit() {
    let device = emulated();
    let mut numbers = Numbers(5);
    let channels = 40;
    let (x, weight, bias) =
        (numbers.array(&[2, 3, channels]), numbers.array(&[4, channels]), numbers.array(&[channels]));
    let state = numbers.array(&[SLOTS, 3, channels]);
    let log = zeros(&[SLOTS, 3, channels]);
    let lists = [i32s(&[0, 3, 6]), i32s(&[0, 3])];
    let mut values = vec![x.clone(), weight.clone(), state.clone(), log, zeros(&[2, 3, channels])];
    values.extend(lists.clone());
    values.extend([bias.clone(), Value::None, Value::None, Value::None, Value::Bool(true)]);
    let window = same_on_both(&device, "causal_conv1d_update", &values);
    assert_eq!(floats(&window[2]), floats(&state));

    let mut values = vec![window[2].clone(), window[3].clone(), i32s(&[1, 3]), i32s(&[0, 3])];
    values.extend([Value::None, i32s(&[0, 0, 0])]);
    let committed = same_on_both(&device, "commit_conv_states", &values);
    assert_ne!(floats(&committed[0]), floats(&state));

    let mut values = vec![x, weight, state, zeros(&[2, 3, channels])];
    values.extend(lists);
    values.extend([bias, Value::Bool(true)]);
    let prompt = same_on_both(&device, "causal_conv1d_fn", &values);
    assert_eq!(floats(&prompt[3]), floats(&window[4]));
}

#[test]
fn the_matrix_form_the_gates_and_the_norm() {
    let device = emulated();
    let mut values = inputs(1, 70);
    // Inputs of a size that a state of many tokens stands.
    values.extend([
        zeros(&[2, HV, V, K]),
        zeros(&[1, 70, HV, V]),
        i32s(&[0, 70]),
        i32s(&[3]),
        Value::None,
        Value::None,
    ]);
    values.extend(options());
    values.push(Value::Int(32));
    same_on_both(&device, "chunk_gated_delta_rule", &values);

    let mut numbers = Numbers(9);
    let (a, b) = (numbers.array(&[3, HV]), numbers.array(&[3, HV]));
    let gates = [a, b, numbers.array(&[HV]), numbers.array(&[HV]), zeros(&[3, HV]), zeros(&[3, HV])];
    same_on_both(&device, "fused_gdn_gating", &gates);

    let (x, z, weight) = (numbers.array(&[3, HV, V]), numbers.array(&[3, HV, V]), numbers.array(&[V]));
    let norm = [x, z, weight, zeros(&[3, HV, V]), Value::Float(1e-6), Value::Bool(true)];
    same_on_both(&device, "rms_norm_gated", &norm);
}

#[test]
fn a_log_that_is_read_and_written_is_refused() {
    let device = emulated();
    let states = |strides: Vec<i64>| {
        let Value::Array(array) = zeros(&[2, 1, 4, 4]) else { unreachable!() };
        Value::Array(Array { strides, ..array })
    };
    let lists = || [i32s(&[1, 1]), i32s(&[0, 1]), Value::None, Value::Int(0)];
    let mut values = vec![states(vec![0, 16, 4, 1]), zeros(&[2, 1, 1, 4]), zeros(&[2, 1, 1]), zeros(&[2, 1, 1, 4])];
    values.extend(lists());
    let error = run(Some(&device), "commit_states", &mut values).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`state` has shape [2, 1, 4, 4] and strides [0, 16, 4, 1], expected every element to have memory of its own, since it \
         is written; pass `state.contiguous()`"
    );
}
