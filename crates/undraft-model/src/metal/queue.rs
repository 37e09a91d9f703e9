//! Launches on their way to a device, and the memory that they use.

use std::collections::VecDeque;
use std::fmt::{self, Debug, Formatter};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use undraft::metal::driver::{Commands, Driver, Submitted};
use undraft::metal::raw::{EncoderHandle, Launcher, Slice};
use undraft::metal::{DeviceBuffer, Result};

use crate::gpu::Recorder;

/// Calls of an encoder after which it is handed over, so that the device begins while the rest is encoded.
const CALLS_OF_ENCODER: usize = 128;
/// Encoders that are on their way at a time; a queue of Metal takes no more than 64.
const ENCODERS_ON_THEIR_WAY: usize = 32;

/// Puts a call into an encoder.
type Call = Box<dyn Fn(&Launcher, EncoderHandle) -> Result<()> + Send + Sync>;

/// Calls to be made again.
pub struct Recorded(Vec<Call>);

impl Debug for Recorded {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Recorded({} calls)", self.0.len())
    }
}

/// Puts calls into encoders, one after the other. A thread that records keeps its own to itself.
#[derive(Debug)]
pub(super) struct Queue {
    launcher: Launcher,
    work: Mutex<Work>,
    recorder: Recorder<Recorded>,
}

/// What has been encoded and may not be done yet.
#[derive(Debug, Default)]
struct Work {
    /// With the number of its calls.
    open: Option<(Commands, usize)>,
    submitted: VecDeque<Submitted>,
    /// Memory that was dropped while work on it may have been under way.
    dropped: Vec<DeviceBuffer<u8>>,
}

impl Work {
    /// Puts `num_calls` calls into the open encoder.
    fn encode(
        &mut self,
        driver: &Arc<dyn Driver>,
        num_calls: usize,
        encode: impl FnOnce(EncoderHandle) -> Result<()>,
    ) -> Result<()> {
        let (commands, before) = match self.open.take() {
            Some(open) => open,
            None => {
                while self.submitted.len() >= ENCODERS_ON_THEIR_WAY {
                    self.wait_for_one()?;
                }
                (Commands::begin(driver)?, 0)
            }
        };
        let encoder = commands.encoder();
        self.open = Some((commands, before + num_calls));
        encode(encoder)?;
        if before + num_calls >= CALLS_OF_ENCODER { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<()> {
        if let Some((commands, _)) = self.open.take() {
            self.submitted.push_back(commands.commit()?);
        }
        Ok(())
    }

    fn wait_for_one(&mut self) -> Result<()> {
        self.submitted.pop_front().map_or(Ok(()), Submitted::wait)
    }

    /// Waits for all; of several failures the first is told.
    fn finish(&mut self) -> Result<()> {
        let mut outcome = self.commit();
        while !self.submitted.is_empty() {
            outcome = outcome.and(self.wait_for_one());
        }
        self.dropped.clear();
        outcome
    }
}

impl Queue {
    pub(super) fn new(launcher: Launcher) -> Self {
        Self { launcher, work: Mutex::default(), recorder: Recorder::new() }
    }

    pub(super) fn driver(&self) -> &Arc<dyn Driver> {
        self.launcher.driver()
    }

    /// Adds a call: to what this thread records, or to the open encoder.
    pub(super) fn add(
        &self,
        call: impl Fn(&Launcher, EncoderHandle) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        self.recorder.with(|recorded| match recorded {
            Some(Recorded(calls)) => {
                calls.push(Box::new(call));
                Ok(())
            }
            None => self.encode(call),
        })
    }

    /// Puts a call into the open encoder.
    pub(super) fn encode(&self, call: impl FnOnce(&Launcher, EncoderHandle) -> Result<()>) -> Result<()> {
        self.work().encode(self.driver(), 1, |encoder| call(&self.launcher, encoder))
    }

    /// What this thread adds while `work` runs.
    pub(super) fn record<E>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<Recorded, E> {
        self.recorder.record(|| Recorded(Vec::new()), work)
    }

    /// Makes recorded calls again, and hands them over.
    pub(super) fn replay(&self, Recorded(calls): &Recorded) -> Result<()> {
        let mut work = self.work();
        work.encode(self.driver(), calls.len(), |encoder| {
            calls.iter().try_for_each(|call| call(&self.launcher, encoder))
        })?;
        work.commit()
    }

    /// Waits for all calls, then reads before others come.
    pub(super) fn finish<T>(&self, read: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut work = self.work();
        work.finish()?;
        read()
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory of a queue's device. Dropped, it is given back when the calls before are done.
#[derive(Debug)]
pub(super) struct Held {
    /// There until it is dropped.
    buffer: Option<DeviceBuffer<u8>>,
    queue: Arc<Queue>,
}

impl Held {
    /// `len` bytes of arbitrary value.
    pub(super) fn new(queue: &Arc<Queue>, len: usize) -> Result<Self> {
        Ok(Self { buffer: Some(DeviceBuffer::uninit(queue.driver(), len)?), queue: queue.clone() })
    }

    /// All of it.
    pub(super) fn slice(&self) -> Slice {
        self.buffer.as_ref().map_or(Slice::NONE, DeviceBuffer::slice)
    }

    /// Fills bytes from `at` on, now: before any call on them.
    pub(super) fn fill(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        self.buffer.as_mut().map_or(Ok(()), |buffer| buffer.write(at, bytes))
    }

    /// Copies the first bytes when all calls are done.
    pub(super) fn read(&self, bytes: &mut [u8]) -> Result<()> {
        self.queue.finish(|| self.buffer.as_ref().map_or(Ok(()), |buffer| buffer.read(0, bytes)))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut work = self.queue.work();
        if work.open.is_some() || !work.submitted.is_empty() {
            work.dropped.extend(self.buffer.take());
        }
    }
}
