//! Who runs the tasks of a kernel.

/// Runs independent tasks, in any order and on any thread. A kernel's result does not depend on which.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use undraft_cpu::{Executor, Serial, ThreadPool};
///
/// for executor in [&Serial as &dyn Executor, &ThreadPool::new(2)] {
///     let sum = AtomicUsize::new(0);
///     executor.run(10, &|i| { sum.fetch_add(i, Ordering::Relaxed); });
///     assert_eq!(sum.into_inner(), 45);
/// }
/// ```
pub trait Executor: Send + Sync {
    /// Threads that may work at once, for choosing how finely to cut.
    fn num_threads(&self) -> usize;
    /// Calls `task` once for every number in `0..num_tasks` and returns when all calls have.
    ///
    /// Must not return before, nor call a number twice: kernels hand disjoint memory to the tasks.
    fn run(&self, num_tasks: usize, task: &(dyn Fn(usize) + Sync));
}

/// One after the other on the caller's thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Serial;

impl Executor for Serial {
    fn num_threads(&self) -> usize {
        1
    }
    fn run(&self, num_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..num_tasks).for_each(task);
    }
}

/// Tasks on rayon's global pool, or on the pool that the caller runs in.
#[cfg(feature = "rayon")]
#[derive(Clone, Copy, Debug, Default)]
pub struct RayonExecutor;

#[cfg(feature = "rayon")]
impl Executor for RayonExecutor {
    fn num_threads(&self) -> usize {
        rayon::current_num_threads()
    }
    fn run(&self, num_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        use rayon::prelude::*;
        (0..num_tasks).into_par_iter().for_each(task);
    }
}
