//! Dispatches on their way to an adapter.

use std::sync::{Mutex, MutexGuard, PoisonError};

use undraft::wgpu::{Batch, Device, Recorded, Result, WgpuError};

use crate::gpu::Recorder;

/// Collects dispatches until something has to see what they do. A thread that records keeps its own to itself.
#[derive(Debug)]
pub(super) struct Queue {
    device: Device,
    waiting: Mutex<Batch<'static>>,
    recorder: Recorder<Batch<'static>>,
}

impl Queue {
    pub(super) fn new(device: Device) -> Self {
        let waiting = Mutex::new(Batch::owned(device.clone()));
        Self { device, waiting, recorder: Recorder::new() }
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Adds dispatches: to what this thread records, or to what waits.
    pub(super) fn add(&self, add: impl FnOnce(&mut Batch<'static>) -> Result<()>) -> Result<()> {
        self.recorder.with(|recorded| match recorded {
            Some(batch) => add(batch),
            None => add(&mut self.waiting()),
        })
    }

    /// Submits what waits.
    pub(super) fn flush(&self) -> Result<()> {
        let mut waiting = self.waiting();
        if waiting.is_empty() {
            return Ok(());
        }
        let batch = std::mem::replace(&mut *waiting, Batch::owned(self.device.clone()));
        // Under the lock, so that nothing is submitted before what was added before it.
        batch.finish()?.submit()
    }

    /// What this thread adds while `work` runs.
    pub(super) fn record<E: From<WgpuError>>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<Recorded, E> {
        Ok(self.recorder.record(|| Batch::owned(self.device.clone()), work)?.finish()?)
    }

    fn waiting(&self) -> MutexGuard<'_, Batch<'static>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
