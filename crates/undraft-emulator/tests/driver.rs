//! Device memory, streams and graphs of the emulated driver: the same checks as on a GPU, and what it is stricter about.

#[path = "../../undraft-cuda/tests/common/driver.rs"]
mod driver;

use std::sync::Arc;

use undraft_cuda::driver::{DeviceBuffer, Driver, Stream};
use undraft_cuda::{CudaError, Result};
use undraft_emulator::{EmulatedDriver, Options, Order, Poison, Schedule};

fn emulated() -> Arc<dyn Driver> {
    Arc::new(EmulatedDriver::new(Options::default()).unwrap())
}

macro_rules! on_the_emulator {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                driver::$name(&emulated());
            }
        )*
    };
}
on_the_emulator!(
    buffers_hold_what_is_copied_to_them,
    ranges_beyond_a_buffer_are_errors,
    a_parameter_of_another_length_is_an_error,
    a_graph_replays_what_was_recorded,
    a_recording_ends_with_its_failure,
);

fn why<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(CudaError::OtherDriver { call, why }) => format!("{call}: {why}"),
        other => panic!("expected an error of the driver, got {other:?}"),
    }
}

#[test]
fn a_stream_of_another_driver_is_an_error() {
    let (one, other) = (emulated(), emulated());
    let (stream, foreign) = (Stream::new(&one).unwrap(), Stream::new(&other).unwrap());
    let mut buffer = DeviceBuffer::from_slice(&stream, &[1.0f32]).unwrap();
    assert_eq!(buffer.write(&foreign, 0, &[2.0]), Err(CudaError::ForeignStream));
    assert_eq!(buffer.read(&foreign, 0, &mut [0.0]), Err(CudaError::ForeignStream));
}

#[test]
fn fresh_memory_is_nan_in_every_element_type() {
    let driver = emulated();
    let stream = Stream::new(&driver).unwrap();
    let buffer = DeviceBuffer::<u8>::uninit(&driver, 5).unwrap();
    let mut bytes = [0; 5];
    buffer.read(&stream, 0, &mut bytes).unwrap();
    assert!(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).is_nan());
    assert!(undraft_core::bf16::from_le_bytes([bytes[0], bytes[1]]).is_nan());
    assert!(undraft_core::f16::from_le_bytes([bytes[2], bytes[3]]).is_nan());
}

/// Copies to the host are only there once the stream has been synchronised.
#[test]
fn work_waits_for_the_synchronisation() {
    let driver = emulated();
    let stream = Stream::new(&driver).unwrap();
    let buffer = DeviceBuffer::from_slice(&stream, &[9u8; 4]).unwrap();
    let mut bytes = [0; 4];
    // SAFETY: four bytes each; nothing else uses them before the stream is synchronised, but for the look at them.
    unsafe { driver.copy_to_host(stream.handle(), &mut bytes, buffer.address()).unwrap() };
    assert_eq!(bytes, [0; 4]);
    stream.synchronize().unwrap();
    assert_eq!(bytes, [9; 4]);
}

#[test]
fn copies_beyond_an_allocation_are_errors() {
    let driver = emulated();
    let stream = Stream::new(&driver).unwrap();
    let buffer = DeviceBuffer::from_slice(&stream, &[9u8; 4]).unwrap();
    let mut bytes = [0; 5];
    // SAFETY: the emulator looks before it copies.
    unsafe { driver.copy_to_host(stream.handle(), &mut bytes, buffer.address()).unwrap() };
    let message = why(stream.synchronize());
    assert!(
        message.starts_with("cuMemcpyDtoHAsync: 5 bytes at 0x") && message.ends_with(" do not lie in an allocation")
    );
    // SAFETY: as above.
    unsafe { driver.copy_to_device(stream.handle(), buffer.address() + 1, &[0; 4]).unwrap() };
    assert!(why(stream.synchronize()).starts_with("cuMemcpyHtoDAsync: 4 bytes at 0x"));
    // SAFETY: as above.
    unsafe { driver.fill(stream.handle(), buffer.address() - 1, 0, 2).unwrap() };
    assert!(why(stream.synchronize()).starts_with("cuMemsetD8Async: 2 bytes at 0x"));
    stream.synchronize().unwrap();
}

#[test]
fn memory_is_freed_once() {
    let driver = emulated();
    let address = driver.alloc(10).unwrap();
    // SAFETY: the second call is refused.
    unsafe {
        driver.free(address).unwrap();
        assert!(why(driver.free(address)).ends_with("is not the address of an allocation"));
    }
    assert!(why(driver.alloc(0)).starts_with("cuMemAlloc: "));
    assert!(why(driver.alloc(1 << 60)).starts_with("cuMemAlloc: "));
}

#[test]
fn recordings_refuse_what_they_cannot_hold() {
    let driver = emulated();
    let stream = Stream::new(&driver).unwrap();
    let buffer = DeviceBuffer::from_slice(&stream, &[9u8; 4]).unwrap();
    let recorded = stream.capture(|| buffer.read(&stream, 0, &mut [0; 4]));
    assert!(why(recorded).contains("expected no copies from or to host memory"));
    let twice = stream.capture(|| stream.capture(|| Ok(())).map(drop));
    assert_eq!(why(twice), "cuStreamBeginCapture: the stream is recording already");
    // SAFETY: refused.
    assert!(why(unsafe { driver.begin_capture(std::ptr::null_mut()) }).contains("default stream"));
    // SAFETY: refused.
    assert!(why(unsafe { driver.end_capture(stream.handle()) }).contains("not recording"));
}

#[test]
fn options_out_of_range_are_errors() {
    for options in [
        Options { threads: 0, ..Options::default() },
        Options { num_sms: 0, ..Options::default() },
        Options { schedules: Vec::new(), ..Options::default() },
        Options { max_shared: 300_000, ..Options::default() },
    ] {
        assert!(why(EmulatedDriver::new(options)).starts_with("cuInit: "));
    }
    let order = Order::Shuffled { seed: 7 };
    EmulatedDriver::new(Options::with_schedule(Schedule { order, early_copies: true, poison: Poison::Nan })).unwrap();
}
