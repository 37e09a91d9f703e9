//! Launchers of the CUDA devices, and the current context of the calling thread.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use undraft::cuda::cudarc::driver::sys::{self, CUcontext, CUstream, CUstreamCaptureStatus};
use undraft::cuda::driver::CudaDriver;
use undraft::cuda::raw::Launcher;

use crate::error::{Error, Result};

static LAUNCHERS: RwLock<Option<HashMap<i32, Launcher>>> = RwLock::new(None);

/// The launcher of a device whose kernels are loaded.
fn loaded(index: i32) -> Option<Launcher> {
    LAUNCHERS.read().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(&index).cloned()
}

/// Loads the kernels of a device into its primary context, which is torch's; nothing where they are loaded.
pub(crate) fn load(index: i32) -> Result<Launcher> {
    if let Some(launcher) = loaded(index) {
        return Ok(launcher);
    }
    let ordinal = usize::try_from(index).unwrap_or(usize::MAX);
    let launcher = Launcher::new(Arc::new(CudaDriver::open(ordinal)?))?;
    let mut launchers = LAUNCHERS.write().unwrap_or_else(PoisonError::into_inner);
    // Of two threads that come first at once, one's is kept.
    Ok(launchers.get_or_insert_default().entry(index).or_insert(launcher).clone())
}

/// The launcher of a device, whose kernels are loaded unless the stream is capturing.
pub(crate) fn launcher(index: i32, stream: CUstream) -> Result<Launcher> {
    if let Some(launcher) = loaded(index) {
        return Ok(launcher);
    }
    if is_capturing(stream) {
        return Err(Error::NotLoaded { index });
    }
    load(index)
}

/// Whether work on the stream goes into a graph. A stream of torch's: the driver is there.
fn is_capturing(stream: CUstream) -> bool {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: torch's current stream is valid; the status is written before the call returns.
    let result = unsafe { sys::cuStreamIsCapturing(stream, &raw mut status) };
    result == sys::CUresult::CUDA_SUCCESS && status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
}

/// The calling thread's context, which is current again when this is dropped: a launch on another device changes it.
pub(crate) struct KeepContext(CUcontext);

impl KeepContext {
    pub(crate) fn new() -> Self {
        let mut context = std::ptr::null_mut();
        // SAFETY: the driver is loaded, torch has made a tensor on a device of it; the context is written.
        let result = unsafe { sys::cuCtxGetCurrent(&raw mut context) };
        Self(if result == sys::CUresult::CUDA_SUCCESS { context } else { std::ptr::null_mut() })
    }
}

impl Drop for KeepContext {
    fn drop(&mut self) {
        let mut now = std::ptr::null_mut();
        // SAFETY: as above; the context was current before, so that it is one of the driver's.
        unsafe {
            if sys::cuCtxGetCurrent(&raw mut now) == sys::CUresult::CUDA_SUCCESS && now != self.0 {
                // A thread without a context has none afterwards either.
                let _ = sys::cuCtxSetCurrent(self.0);
            }
        }
    }
}
