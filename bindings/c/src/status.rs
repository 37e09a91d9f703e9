//! Status codes and messages, and the border itself.

use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use undraft::cuda::CudaError;
use undraft::metal::MetalError;
use undraft::wgpu::WgpuError;
use undraft::{Error, OpError};

use crate::pointer::write;

/// What a call returns.
pub type undraft_status = i32;
/// All well.
pub const UNDRAFT_OK: undraft_status = 0;
/// The message names the argument.
pub const UNDRAFT_INVALID_ARGUMENT: undraft_status = 1;
/// The device, or this version, does not do it.
pub const UNDRAFT_UNSUPPORTED: undraft_status = 2;
/// No such device, or no driver.
pub const UNDRAFT_NO_DEVICE: undraft_status = 3;
/// The device's driver failed.
pub const UNDRAFT_DEVICE_FAILED: undraft_status = 4;
/// No memory.
pub const UNDRAFT_OUT_OF_MEMORY: undraft_status = 5;
/// All slots are in use.
pub const UNDRAFT_NO_FREE_SLOT: undraft_status = 6;
/// A slot that was freed or belongs to another pool; a round that is over.
pub const UNDRAFT_NOT_IN_USE: undraft_status = 7;
/// A slot in an undecided round; a pool with one.
pub const UNDRAFT_BUSY: undraft_status = 8;
/// A slot left in the middle of a prefill.
pub const UNDRAFT_TORN: undraft_status = 9;
/// The file cannot be read or written.
pub const UNDRAFT_FILE: undraft_status = 10;
/// A file of another kind or version, damaged, or of other layers.
pub const UNDRAFT_NOT_A_SNAPSHOT: undraft_status = 11;
/// A panic, which is a bug of undraft.
pub const UNDRAFT_INTERNAL: undraft_status = 12;
/// An earlier call on the pool panicked.
pub const UNDRAFT_POISONED: undraft_status = 13;

/// Rises with every change that old programs notice.
pub const UNDRAFT_ABI_VERSION: u32 = 1;

/// Why a call fails.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: undraft_status,
    pub(crate) text: String,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) fn new(status: undraft_status, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(UNDRAFT_INVALID_ARGUMENT, text)
    }
}

impl From<OpError> for Failure {
    fn from(error: OpError) -> Self {
        let status = match error {
            OpError::Unsupported { .. } => UNDRAFT_UNSUPPORTED,
            OpError::Device { .. } => UNDRAFT_DEVICE_FAILED,
            _ => UNDRAFT_INVALID_ARGUMENT,
        };
        Self::new(status, error.to_string())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::Op(error) => return error.clone().into(),
            Error::Cuda(
                CudaError::NoDriver { .. } | CudaError::NoDevice { .. } | CudaError::ComputeCapability { .. },
            ) => UNDRAFT_NO_DEVICE,
            Error::Metal(MetalError::NotApple | MetalError::NoDevice) => UNDRAFT_NO_DEVICE,
            Error::Wgpu(
                WgpuError::NoAdapter
                | WgpuError::NoSuchAdapter { .. }
                | WgpuError::NoAdapterNamed { .. }
                | WgpuError::NoDevice { .. },
            ) => UNDRAFT_NO_DEVICE,
            Error::Cuda(_) | Error::Metal(_) | Error::Wgpu(_) => UNDRAFT_DEVICE_FAILED,
            Error::OutOfMemory { .. } => UNDRAFT_OUT_OF_MEMORY,
            Error::NoFreeSlot { .. } => UNDRAFT_NO_FREE_SLOT,
            Error::SlotFreed { .. } | Error::ForeignRound => UNDRAFT_NOT_IN_USE,
            Error::SlotBusy { .. } => UNDRAFT_BUSY,
            Error::SlotTorn { .. } => UNDRAFT_TORN,
            Error::File { .. } => UNDRAFT_FILE,
            Error::NotASnapshot { .. } | Error::SnapshotLayers { .. } => UNDRAFT_NOT_A_SNAPSHOT,
            _ => UNDRAFT_INVALID_ARGUMENT,
        };
        Self::new(status, error.to_string())
    }
}

/// Runs the body of a call: errors and panics become a status, and a message where the caller wants one.
///
/// # Safety
/// `message` is null or may be written.
pub(crate) unsafe fn guard(message: *mut *mut c_char, body: impl FnOnce() -> Result<()>) -> undraft_status {
    // What a panic may have left half done is behind the lock of a pool, which is then poisoned; nothing else changes.
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let why = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = format!("undraft has a bug and has panicked: {}", why.unwrap_or("it did not say why"));
        // Dropping a payload may panic in turn.
        std::mem::forget(panic);
        Err(Failure::new(UNDRAFT_INTERNAL, text))
    });
    let (status, text) = match outcome {
        Ok(()) => (UNDRAFT_OK, std::ptr::null_mut()),
        Err(failure) if message.is_null() => (failure.status, std::ptr::null_mut()),
        Err(failure) => (failure.status, string(failure.text)),
    };
    if !message.is_null() {
        // SAFETY: not null, and writable by the function's contract.
        unsafe { message.write_unaligned(text) };
    }
    status
}

/// A string for [`undraft_string_free`].
pub(crate) fn string(text: String) -> *mut c_char {
    let text = if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text };
    CString::new(text).map_or(std::ptr::null_mut(), CString::into_raw)
}

/// Gives a string out.
///
/// # Safety
/// `to` is null or may be written.
pub(crate) unsafe fn give_string(arg: &'static str, to: *mut *mut c_char, text: String) -> Result<()> {
    let text = string(text);
    // SAFETY: as by the function's contract.
    unsafe { write(arg, to, text) }.inspect_err(|_| {
        // SAFETY: made by `string` just now, and given to nobody.
        unsafe { undraft_string_free(text) };
    })
}

/// Name of a status.
#[unsafe(no_mangle)]
pub extern "C" fn undraft_status_name(status: undraft_status) -> *const c_char {
    let name = match status {
        UNDRAFT_OK => c"UNDRAFT_OK",
        UNDRAFT_INVALID_ARGUMENT => c"UNDRAFT_INVALID_ARGUMENT",
        UNDRAFT_UNSUPPORTED => c"UNDRAFT_UNSUPPORTED",
        UNDRAFT_NO_DEVICE => c"UNDRAFT_NO_DEVICE",
        UNDRAFT_DEVICE_FAILED => c"UNDRAFT_DEVICE_FAILED",
        UNDRAFT_OUT_OF_MEMORY => c"UNDRAFT_OUT_OF_MEMORY",
        UNDRAFT_NO_FREE_SLOT => c"UNDRAFT_NO_FREE_SLOT",
        UNDRAFT_NOT_IN_USE => c"UNDRAFT_NOT_IN_USE",
        UNDRAFT_BUSY => c"UNDRAFT_BUSY",
        UNDRAFT_TORN => c"UNDRAFT_TORN",
        UNDRAFT_FILE => c"UNDRAFT_FILE",
        UNDRAFT_NOT_A_SNAPSHOT => c"UNDRAFT_NOT_A_SNAPSHOT",
        UNDRAFT_INTERNAL => c"UNDRAFT_INTERNAL",
        UNDRAFT_POISONED => c"UNDRAFT_POISONED",
        _ => c"a status of no name",
    };
    name.as_ptr()
}

/// Frees a string.
///
/// # Safety
/// `string` is null or was given by this library, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_string_free(string: *mut c_char) {
    if !string.is_null() {
        // SAFETY: made by `CString::into_raw`, and given back once, by the function's contract.
        drop(unsafe { CString::from_raw(string) });
    }
}

/// `UNDRAFT_ABI_VERSION` of the library.
#[unsafe(no_mangle)]
pub extern "C" fn undraft_abi_version() -> u32 {
    UNDRAFT_ABI_VERSION
}

/// Version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn undraft_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn message_of(body: impl FnOnce() -> Result<()>) -> (undraft_status, String) {
        let mut message = std::ptr::dangling_mut();
        // SAFETY: `message` may be written.
        let status = unsafe { guard(&raw mut message, body) };
        if message.is_null() {
            return (status, String::new());
        }
        // SAFETY: `guard` gave a string, which is freed once.
        let text = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
        // SAFETY: as above.
        unsafe { undraft_string_free(message) };
        (status, text)
    }

    #[test]
    fn success_clears_the_message() {
        assert_eq!(message_of(|| Ok(())), (UNDRAFT_OK, String::new()));
    }

    #[test]
    fn failures_come_with_their_text() {
        let failed = message_of(|| Err(Failure::new(UNDRAFT_TORN, "slot\0 7")));
        assert_eq!(failed, (UNDRAFT_TORN, "slot\u{fffd} 7".into()));
    }

    #[test]
    fn panics_stop_at_the_border() {
        let text = |why| format!("undraft has a bug and has panicked: {why}");
        assert_eq!(message_of(|| panic!("literal")), (UNDRAFT_INTERNAL, text("literal")));
        let formatted = message_of(|| panic!("index {}", 3 + std::hint::black_box(4)));
        assert_eq!(formatted, (UNDRAFT_INTERNAL, text("index 7")));
        let other = message_of(|| std::panic::panic_any(7));
        assert_eq!(other, (UNDRAFT_INTERNAL, text("it did not say why")));
        // SAFETY: no message is asked for.
        let status = unsafe { guard(std::ptr::null_mut(), || panic!("unheard")) };
        assert_eq!(status, UNDRAFT_INTERNAL);
    }
}
