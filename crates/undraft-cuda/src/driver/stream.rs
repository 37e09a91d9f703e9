//! Streams and graphs that give themselves back.

use std::sync::Arc;

use super::{CUstream, Driver, GraphHandle};
use crate::error::Result;

/// A stream of its own, given back when dropped.
#[derive(Debug)]
pub struct Stream {
    driver: Arc<dyn Driver>,
    handle: CUstream,
}

// SAFETY: a stream may be used from every thread; the handle is given back once, by `drop`.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver orders calls of several threads.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream, which does not wait for the default stream.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn new(driver: &Arc<dyn Driver>) -> Result<Self> {
        Ok(Self { driver: driver.clone(), handle: driver.create_stream()? })
    }

    /// The driver that it belongs to.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }
    /// For launches of [`crate::raw`]; valid as long as the stream.
    pub fn handle(&self) -> CUstream {
        self.handle
    }

    /// Waits until all that was put on the stream is done.
    ///
    /// # Errors
    /// If the driver fails, or work that was put on the stream has failed.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is of this driver.
        unsafe { self.driver.synchronize(self.handle) }
    }

    /// Records what `work` puts on the stream, instead of doing it. Copies to and from host memory and allocations do not
    /// belong into a recording.
    ///
    /// # Errors
    /// That of `work`, after which nothing is recording any more; or if the driver fails.
    pub fn capture(&self, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        // SAFETY: the stream is of this driver and not the default stream.
        unsafe { self.driver.begin_capture(self.handle)? };
        let done = work();
        // SAFETY: as above.
        let graph = unsafe { self.driver.end_capture(self.handle) };
        let graph = graph.map(|handle| Graph { driver: self.driver.clone(), handle });
        done?;
        graph
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed here alone.
        let _ = unsafe { self.driver.destroy_stream(self.handle) };
    }
}

/// Recorded work, given back when dropped.
#[derive(Debug)]
pub struct Graph {
    driver: Arc<dyn Driver>,
    handle: GraphHandle,
}

impl Graph {
    /// Puts the recorded work on a stream.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Safety
    /// The stream is of the same driver. What was promised for the recorded calls holds again: the memory that they were given
    /// is still there, and as they expect it.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the graph was recorded by this driver; the caller's promise.
        unsafe { self.driver.launch_graph(stream.handle, self.handle) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `Stream::capture`, destroyed here alone.
        let _ = unsafe { self.driver.destroy_graph(self.handle) };
    }
}
