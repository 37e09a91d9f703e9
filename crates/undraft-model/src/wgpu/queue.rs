//! Dispatches on their way to an adapter.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use undraft::wgpu::{Batch, Device, Recorded, Result};

/// Collects dispatches until something has to see what they do. A thread that records keeps its own to itself.
#[derive(Debug)]
pub(super) struct Queue {
    device: Device,
    waiting: Mutex<Batch<'static>>,
    recording: Mutex<Vec<(ThreadId, Batch<'static>)>>,
}

impl Queue {
    pub(super) fn new(device: Device) -> Self {
        let waiting = Mutex::new(Batch::owned(device.clone()));
        Self { device, waiting, recording: Mutex::default() }
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Adds dispatches: to what this thread records, or to what waits.
    pub(super) fn add(&self, add: impl FnOnce(&mut Batch<'static>) -> Result<()>) -> Result<()> {
        let this = thread::current().id();
        let mut recording = lock(&self.recording);
        if let Some((_, batch)) = recording.iter_mut().find(|(thread, _)| *thread == this) {
            return add(batch);
        }
        drop(recording);
        add(&mut lock(&self.waiting))
    }

    /// Submits what waits.
    pub(super) fn flush(&self) -> Result<()> {
        let mut waiting = lock(&self.waiting);
        if waiting.is_empty() {
            return Ok(());
        }
        let batch = std::mem::replace(&mut *waiting, Batch::owned(self.device.clone()));
        // Under the lock, so that nothing is submitted before what was added before it.
        batch.finish()?.submit()
    }

    /// What this thread adds while `work` runs.
    pub(super) fn record<E: From<undraft::wgpu::WgpuError>>(
        &self,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Recorded, E> {
        let this = thread::current().id();
        lock(&self.recording).push((this, Batch::owned(self.device.clone())));
        let done = work();
        let mut recording = lock(&self.recording);
        let index = recording.iter().position(|(thread, _)| *thread == this);
        let batch = index.map(|index| recording.swap_remove(index).1);
        drop(recording);
        done?;
        Ok(batch.unwrap_or_else(|| Batch::owned(self.device.clone())).finish()?)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
