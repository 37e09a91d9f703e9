//! Calls into the C++ side: the table of kernels, and grids of blocks.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::options::{Order, Schedule};

/// `LockstepKernel` of `cpp/lockstep.h`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Kernel {
    name: *const c_char,
    param_bytes: usize,
    entry: Option<unsafe extern "C" fn(*const c_void)>,
    shared: Option<unsafe extern "C" fn() -> *mut u8>,
    most_shared: usize,
}

// SAFETY: written by the C++ compiler, read only.
unsafe impl Sync for Kernel {}

#[repr(C)]
struct CSchedule {
    order: u32,
    early_copies: u32,
    seed: u64,
    poison: u32,
}

#[repr(C)]
struct CGrid {
    blocks: [u32; 3],
    threads: [u32; 3],
    shared_bytes: usize,
}

unsafe extern "C" {
    static lockstep_tables: [*const Kernel; 0];
    static lockstep_metal_tables: [*const Kernel; 0];
    fn lockstep_pool_new() -> *mut c_void;
    fn lockstep_pool_free(pool: *mut c_void);
    fn lockstep_run(
        pool: *mut c_void,
        kernel: *const Kernel,
        param: *const c_void,
        grid: *const CGrid,
        schedule: *const CSchedule,
        block: *const u32,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
}

/// Whose kernels: names are unique within each.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Language {
    Cuda,
    Metal,
}

impl Kernel {
    /// All kernels.
    fn all(language: Language) -> Vec<&'static Kernel> {
        let mut all = Vec::new();
        let mut tables = match language {
            Language::Cuda => (&raw const lockstep_tables).cast::<*const Kernel>(),
            Language::Metal => (&raw const lockstep_metal_tables).cast::<*const Kernel>(),
        };
        // SAFETY: the list of tables ends with null, each table with a kernel without a name; both live as long as the program.
        unsafe {
            while !(*tables).is_null() {
                let mut kernel = *tables;
                while !(*kernel).name.is_null() {
                    all.push(&*kernel);
                    kernel = kernel.add(1);
                }
                tables = tables.add(1);
            }
        }
        all
    }
    pub(crate) fn find(language: Language, name: &str) -> Option<&'static Kernel> {
        Self::all(language).into_iter().find(|kernel| kernel.name() == name)
    }
    /// The kernel of a handle that `handle` has given.
    pub(crate) fn of_handle(language: Language, handle: usize) -> Option<&'static Kernel> {
        Self::all(language).into_iter().find(|kernel| kernel.handle() == handle)
    }
    pub(crate) fn handle(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }
    pub(crate) fn name(&self) -> &str {
        // SAFETY: a C string in the program's text.
        unsafe { CStr::from_ptr(self.name) }.to_str().unwrap_or("?")
    }
    pub(crate) fn param_bytes(&self) -> usize {
        self.param_bytes
    }
}

/// Blocks, threads of a block, bytes of shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: [u32; 3],
    pub(crate) shared: usize,
}

impl Grid {
    fn num_blocks(&self) -> u64 {
        self.blocks.iter().map(|&n| u64::from(n)).product()
    }
    /// Indices of a block by its number.
    fn block(&self, number: u64) -> [u32; 3] {
        let (x, y) = (u64::from(self.blocks[0]), u64::from(self.blocks[1]));
        [(number % x) as u32, (number / x % y) as u32, (number / x / y) as u32]
    }
}

/// Stacks of the threads of a block.
struct Pool(*mut c_void);

// SAFETY: a pool is memory that one thread uses at a time, whichever.
unsafe impl Send for Pool {}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: made by `lockstep_pool_new`, freed here alone.
        unsafe { lockstep_pool_free(self.0) }
    }
}

/// Runs grids; keeps the stacks from one to the next.
#[derive(Default)]
pub(crate) struct Engine {
    pools: Mutex<Vec<Pool>>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Engine")
    }
}

impl Engine {
    /// Runs all blocks, or stops after one that fails and says why.
    ///
    /// # Safety
    /// `param` is a parameter of the kernel, aligned to 16, and what it points to is as the kernel expects.
    pub(crate) unsafe fn run(
        &self,
        kernel: &Kernel,
        param: &[MaybeUninit<u8>],
        grid: Grid,
        schedule: Schedule,
        threads: usize,
    ) -> Result<(), String> {
        let (blocks, order) = (grid.num_blocks(), block_order(grid, schedule.order));
        let next = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        let failure = Mutex::new(None);
        let param = Param(param.as_ptr().cast());
        let work = || {
            let param = &param;
            let pool = self.take_pool();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= blocks || stop.load(Ordering::Relaxed) {
                    break;
                }
                let i = order.as_ref().map_or(i, |order| order[i as usize]);
                // SAFETY: the caller's promise; the pool is this thread's for now.
                if let Err(e) = unsafe { run_block(&pool, kernel, param.0, grid, schedule, grid.block(i)) } {
                    stop.store(true, Ordering::Relaxed);
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                }
            }
            self.pools.lock().unwrap_or_else(PoisonError::into_inner).push(pool);
        };
        let helpers = (threads as u64).min(blocks).saturating_sub(1);
        if helpers == 0 {
            work();
        } else {
            std::thread::scope(|scope| {
                for _ in 0..helpers {
                    scope.spawn(work);
                }
                work();
            });
        }
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn take_pool(&self) -> Pool {
        let kept = self.pools.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // SAFETY: no conditions.
        kept.unwrap_or_else(|| Pool(unsafe { lockstep_pool_new() }))
    }
}

struct Param(*const c_void);
// SAFETY: the parameter is only read, and borrowed for as long as the blocks run.
unsafe impl Sync for Param {}

/// Indices of the blocks in their order; none: as they are.
fn block_order(grid: Grid, order: Order) -> Option<Vec<u64>> {
    let blocks = grid.num_blocks();
    match order {
        Order::Forward => None,
        Order::Reversed => Some((0..blocks).rev().collect()),
        Order::Shuffled { seed } => {
            let mut order: Vec<u64> = (0..blocks).collect();
            let mut state = seed | 1;
            for i in (1..order.len()).rev() {
                // xorshift; any order will do.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                order.swap(i, (state % (i as u64 + 1)) as usize);
            }
            Some(order)
        }
    }
}

/// # Safety
/// As [`Engine::run`].
unsafe fn run_block(
    pool: &Pool,
    kernel: &Kernel,
    param: *const c_void,
    grid: Grid,
    schedule: Schedule,
    block: [u32; 3],
) -> Result<(), String> {
    let c_grid = CGrid { blocks: grid.blocks, threads: grid.threads, shared_bytes: grid.shared };
    let (order, seed) = match schedule.order {
        Order::Forward => (0, 0),
        Order::Reversed => (1, 0),
        Order::Shuffled { seed } => (2, seed),
    };
    let c_schedule =
        CSchedule { order, early_copies: schedule.early_copies.into(), seed, poison: schedule.poison.word().into() };
    let mut message = [0; 1024];
    // SAFETY: all pointers are of values that live through the call; the message ends with 0 within its capacity; the caller's
    // promise for the parameter.
    let failed = unsafe {
        lockstep_run(pool.0, kernel, param, &c_grid, &c_schedule, block.as_ptr(), message.as_mut_ptr(), message.len())
    };
    if failed == 0 {
        return Ok(());
    }
    // SAFETY: the call has written a C string.
    let why = unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy().into_owned();
    Err(format!("kernel {}, {why}", kernel.name()))
}
