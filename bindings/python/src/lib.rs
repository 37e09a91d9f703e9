//! Native part of the Python package `undraft`, which loads it with `ctypes`.
//!
//! [`torch`] registers the operations with torch's dispatcher; [`arrays`] runs them on NumPy's arrays. Both read the values of a call by
//! one list of parameters an operation ([`args`], [`ops`]), so that checks and sentences are the same. The C functions below are
//! for the package of the same version alone; the C interface for others is the crate `undraft-c`.
#![deny(missing_docs)]

pub mod args;
pub mod arrays;
mod cuda;
pub mod error;
mod host;
pub mod ops;
pub mod tensor;
#[cfg(unix)]
pub mod torch;

use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

use error::{Error, Result};
// Its functions are exported from this library too, for devices, pools and rounds.
use undraft_c as _;

/// Runs `f`; gives 0, or 1 with a sentence in `message`, cut to `capacity` bytes and ended with 0.
///
/// # Safety
/// `message` has `capacity` bytes.
unsafe fn report(message: *mut c_char, capacity: usize, f: impl FnOnce() -> Result<()>) -> i32 {
    let outcome = catch_unwind(AssertUnwindSafe(f));
    let Err(error) = outcome.unwrap_or_else(|_| Err(Error::Internal { what: "a call panicked".into() })) else {
        return 0;
    };
    let text = error.to_string();
    let len = text.len().min(capacity.saturating_sub(1));
    if capacity > 0 {
        // SAFETY: the caller's promise; `len` is below `capacity`.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), message, len);
            *message.add(len) = 0;
        }
    }
    1
}

/// Registers the operations with the torch that the process has loaded.
///
/// # Safety
/// `message` has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_python_register_torch(message: *mut c_char, capacity: usize) -> i32 {
    #[cfg(unix)]
    let register = torch::register;
    #[cfg(not(unix))]
    let register = || Err(Error::Torch { why: "operations are registered on Linux and macOS alone".into() });
    // SAFETY: the caller's promise.
    unsafe { report(message, capacity, register) }
}

/// Loads the CUDA kernels of a device.
///
/// # Safety
/// `message` has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_python_load_cuda(index: i32, message: *mut c_char, capacity: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { report(message, capacity, || cuda::load(index).map(drop)) }
}

/// Number of an operation, or -1 where there is none of this name.
///
/// # Safety
/// `name` is text that ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_python_find(name: *const c_char) -> isize {
    // SAFETY: the caller's promise.
    let name = unsafe { std::ffi::CStr::from_ptr(name) };
    let found = ops::OPS.iter().position(|op| op.name.as_bytes() == name.to_bytes());
    found.map_or(-1, |op| op as isize)
}

/// Runs operation `op` on arrays.
///
/// # Safety
/// The promise of [`arrays::call`] for the `num_values` values; `message` has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_python_call(
    op: usize,
    values: *const u64,
    num_values: usize,
    message: *mut c_char,
    capacity: usize,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { report(message, capacity, || arrays::call(op, std::slice::from_raw_parts(values, num_values))) }
}

/// Sets the number of threads of the CPU back end; 0: none but the caller's, without waiting for those that a fork lost.
#[unsafe(no_mangle)]
pub extern "C" fn undraft_python_set_num_threads(threads: usize) {
    if threads == 0 {
        host::forget_threads();
    } else {
        host::set_num_threads(threads);
    }
}
