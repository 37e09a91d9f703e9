//! What dense kernels run on.

use std::fmt;
use std::sync::Arc;

use undraft::cpu::simd::Token;
use undraft::cpu::{CpuBackend, Executor};

/// An instruction set and an executor, those of a CPU back end. Cloning is cheap.
#[derive(Clone)]
pub struct Compute {
    token: Token,
    executor: Arc<dyn Executor>,
}

/// Work (about one fused multiply-add of a vector each) below which waking another thread costs more than it saves.
const MIN_PARALLEL_WORK: usize = 1 << 11;

impl Compute {
    /// The back end's instruction set and executor.
    pub fn new(backend: &CpuBackend) -> Self {
        Self { token: backend.token(), executor: backend.executor().clone() }
    }

    /// Proof of the instruction set.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Threads that may work at once.
    pub fn num_threads(&self) -> usize {
        self.executor.num_threads()
    }

    /// Calls `task` once for every number in `0..num_tasks`, on several threads if there is `work` enough in all.
    pub(crate) fn run(&self, num_tasks: usize, work: usize, task: &(dyn Fn(usize) + Sync)) {
        if work < MIN_PARALLEL_WORK {
            (0..num_tasks).for_each(task);
        } else {
            self.executor.run(num_tasks, task);
        }
    }
}

impl fmt::Debug for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compute").field("isa", &self.token.isa()).field("num_threads", &self.num_threads()).finish()
    }
}
