//! A pool whose fork-join costs well under a microsecond while it is hot: workers spin for a bounded time, then park.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::executor::Executor;

/// How long an idle worker spins before it parks. Long enough for the gap between two layers of a model.
const SPIN: Duration = Duration::from_micros(200);
/// Spins of a waiting caller before it lets other threads of the machine run.
const SPINS_BEFORE_YIELD: u32 = 1 << 12;

const OPEN: u64 = 1 << 15;
const ACTIVE: u64 = OPEN - 1;
const EPOCH: u64 = 1 << 16;

/// The running job, on its caller's stack.
struct Job<'a> {
    task: &'a (dyn Fn(usize) + Sync),
    num_tasks: usize,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Job<'_> {
    fn work(&self) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let i = self.next.fetch_add(1, Ordering::Relaxed);
                if i >= self.num_tasks {
                    return;
                }
                (self.task)(i);
            }
        }));
        if let Err(payload) = result {
            self.next.store(self.num_tasks, Ordering::Relaxed);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
    }
}

struct Shared {
    /// Epoch of the job, whether it is open for workers, and how many have joined: `epoch << 16 | open << 15 | active`.
    state: AtomicU64,
    /// The open job; only followed by a worker that has joined.
    job: AtomicPtr<Job<'static>>,
    num_parked: AtomicUsize,
    stop: AtomicBool,
    park: Mutex<()>,
    wake: Condvar,
}

/// Our own executor: `num_threads - 1` workers and the caller.
///
/// A worker that wakes late never delays a job: the caller closes the job when no task is left and waits only for
/// workers that have joined. A second caller, or a task that runs tasks itself, works serially. Dropping the pool stops
/// the workers.
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    caller: Mutex<()>,
}

impl ThreadPool {
    /// A pool of `num_threads` (at least 1), the caller's thread included. Threads that the system refuses are left out.
    pub fn new(num_threads: usize) -> Self {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            num_parked: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            park: Mutex::new(()),
            wake: Condvar::new(),
        });
        let workers = (1..num_threads.min(ACTIVE as usize))
            .map_while(|i| {
                let shared = shared.clone();
                std::thread::Builder::new().name(format!("undraft-{i}")).spawn(move || shared.worker()).ok()
            })
            .collect();
        Self { shared, workers, caller: Mutex::new(()) }
    }
}

impl Shared {
    fn worker(&self) {
        let mut seen = 0;
        while let Some(state) = self.wait_for_job(seen) {
            seen = state / EPOCH;
            // Joining succeeds only while this very job is open, so the caller cannot have left `run`.
            let joined = self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, |now| {
                (now / EPOCH == seen && now & OPEN != 0).then_some(now + 1)
            });
            if joined.is_ok() {
                // SAFETY: the caller of `run` published this pointer before it opened the job, and does not return
                // (which would end the job's life) before every joined worker has left again.
                let job = unsafe { &*self.job.load(Ordering::Relaxed) };
                job.work();
                self.state.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// The state of an open job whose epoch is not `seen`; `None` to stop.
    fn wait_for_job(&self, seen: u64) -> Option<u64> {
        let is_new = |state: u64| state & OPEN != 0 && state / EPOCH != seen;
        loop {
            let start = Instant::now();
            loop {
                for _ in 0..64 {
                    let state = self.state.load(Ordering::Relaxed);
                    if is_new(state) {
                        return Some(state);
                    }
                    std::hint::spin_loop();
                }
                if self.stop.load(Ordering::Relaxed) {
                    return None;
                }
                if start.elapsed() > SPIN {
                    break;
                }
            }
            let mut guard = self.park.lock().unwrap_or_else(PoisonError::into_inner);
            self.num_parked.fetch_add(1, Ordering::SeqCst);
            // A caller opens a job, then looks at `num_parked`; this thread counts itself, then looks at the job: one
            // of the two sees the other.
            fence(Ordering::SeqCst);
            while !self.stop.load(Ordering::Relaxed) && !is_new(self.state.load(Ordering::SeqCst)) {
                guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.num_parked.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn wake_all(&self) {
        let _guard = self.park.lock().unwrap_or_else(PoisonError::into_inner);
        self.wake.notify_all();
    }
}

impl Executor for ThreadPool {
    fn num_threads(&self) -> usize {
        self.workers.len() + 1
    }

    fn run(&self, num_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let alone = self.workers.is_empty() || num_tasks < 2;
        let Some(_caller) = (!alone).then(|| self.caller.try_lock().ok()).flatten() else {
            return (0..num_tasks).for_each(task);
        };
        let job = Job { task, num_tasks, next: AtomicUsize::new(0), panic: Mutex::new(None) };
        let shared = &*self.shared;
        shared.job.store((&raw const job).cast_mut().cast(), Ordering::Relaxed);
        // No job is open and no worker active here: the caller's lock is held and the last job was closed and left.
        let epoch = shared.state.load(Ordering::Relaxed) / EPOCH + 1;
        shared.state.store((epoch * EPOCH) | OPEN, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if shared.num_parked.load(Ordering::SeqCst) > 0 {
            shared.wake_all();
        }
        job.work();
        shared.state.fetch_and(!OPEN, Ordering::Relaxed);
        let mut spins = 0u32;
        while shared.state.load(Ordering::Acquire) & ACTIVE != 0 {
            spins += 1;
            if spins < SPINS_BEFORE_YIELD { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let payload = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner);
        drop(_caller);
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.wake_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of tasks, so that joining cannot fail for them.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool").field("num_threads", &self.num_threads()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_over_many_jobs_hot_and_parked() {
        let pool = ThreadPool::new(4);
        for round in 0..3000usize {
            let n = round % 17;
            let counts: Vec<_> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            pool.run(n, &|i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "round {round}");
            if round % 500 == 0 {
                std::thread::sleep(SPIN * 5);
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = ThreadPool::new(3);
        let caught = catch_unwind(AssertUnwindSafe(|| pool.run(100, &|i| assert!(i != 42, "task 42"))));
        assert!(caught.is_err());
        let count = AtomicUsize::new(0);
        pool.run(100, &|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 100);
    }

    #[test]
    fn nested_and_concurrent_runs_finish() {
        let pool = ThreadPool::new(2);
        let count = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.run(3, &|_| {
                            pool.run(3, &|_| {
                                count.fetch_add(1, Ordering::Relaxed);
                            })
                        });
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 4 * 200 * 9);
    }
}
