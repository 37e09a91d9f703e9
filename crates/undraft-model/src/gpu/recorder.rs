//! Lists of work, for devices that have no recordings of their own.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// What threads record, each its own.
#[derive(Debug)]
pub(crate) struct Recorder<R>(Mutex<Vec<(ThreadId, R)>>);

impl<R> Recorder<R> {
    /// Nobody records.
    pub(crate) fn new() -> Self {
        Self(Mutex::default())
    }

    /// Gives `add` what this thread records; nothing if it does not.
    pub(crate) fn with<T>(&self, add: impl FnOnce(Option<&mut R>) -> T) -> T {
        let this = thread::current().id();
        add(self.lock().iter_mut().find(|(thread, _)| *thread == this).map(|(_, recorded)| recorded))
    }

    /// What this thread adds to an `empty` one while `work` runs.
    pub(crate) fn record<E>(&self, empty: impl Fn() -> R, work: impl FnOnce() -> Result<(), E>) -> Result<R, E> {
        let this = thread::current().id();
        self.lock().push((this, empty()));
        let done = work();
        let mut all = self.lock();
        let index = all.iter().position(|(thread, _)| *thread == this);
        let recorded = index.map(|index| all.swap_remove(index).1);
        drop(all);
        done.map(|()| recorded.unwrap_or_else(empty))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(ThreadId, R)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
