//! Work on a stream, and how it is done.

use std::mem::MaybeUninit;
use std::sync::Arc;

use undraft_cuda::driver::DevicePtr;

use crate::engine::{Engine, Grid, Kernel};
use crate::memory::Memory;
use crate::options::Options;

/// One call, waiting on its stream or recorded.
#[derive(Clone)]
pub(crate) enum Work {
    ToDevice { to: DevicePtr, bytes: Vec<u8> },
    ToHost { to: HostMemory, from: DevicePtr, len: usize },
    OnDevice { to: DevicePtr, from: DevicePtr, len: usize },
    Fill { at: DevicePtr, value: u8, len: usize },
    Launch { kernel: &'static Kernel, params: Params, grid: Grid },
    Graph(Arc<Vec<Work>>),
}

/// Where a copy to the host goes.
#[derive(Clone, Copy)]
pub(crate) struct HostMemory(pub(crate) *mut u8);
// SAFETY: whoever asks for the copy leaves the memory alone until the stream has been synchronised.
unsafe impl Send for HostMemory {}
// SAFETY: as above; a recording holds none.
unsafe impl Sync for HostMemory {}

/// A kernel's parameter, aligned to 16.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    words: Vec<MaybeUninit<u128>>,
    len: usize,
}

impl Params {
    pub(crate) fn new(bytes: &[MaybeUninit<u8>]) -> Self {
        let mut words = vec![MaybeUninit::uninit(); bytes.len().div_ceil(size_of::<u128>())];
        // SAFETY: the words have at least so many bytes, which may stay uninitialised.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), words.as_mut_ptr().cast(), bytes.len()) };
        Self { words, len: bytes.len() }
    }
    /// Stays as long as the value, wherever that is moved.
    pub(crate) fn address(&self) -> u64 {
        self.words.as_ptr() as u64
    }
    fn bytes(&self) -> &[MaybeUninit<u8>] {
        // SAFETY: the words have at least so many bytes.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.len) }
    }
}

/// The call of CUDA's driver that failed, and why.
pub(crate) type Failure = (&'static str, String);

impl Work {
    pub(crate) fn run(&self, memory: &mut Memory, engine: &Engine, options: &Options) -> Result<(), Failure> {
        match self {
            Work::ToDevice { to, bytes } => {
                memory.bytes(*to, bytes.len()).map_err(|e| ("cuMemcpyHtoDAsync", e))?.copy_from_slice(bytes);
            }
            Work::ToHost { to, from, len } => {
                let from = memory.bytes(*from, *len).map_err(|e| ("cuMemcpyDtoHAsync", e))?;
                // SAFETY: whoever asked for the copy promised so many bytes there, and waits for them now.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.0, *len) };
            }
            Work::OnDevice { to, from, len } => {
                let failed = |e| ("cuMemcpyDtoDAsync", e);
                let bytes = memory.bytes(*from, *len).map_err(failed)?.to_vec();
                memory.bytes(*to, *len).map_err(failed)?.copy_from_slice(&bytes);
            }
            Work::Fill { at, value, len } => {
                memory.bytes(*at, *len).map_err(|e| ("cuMemsetD8Async", e))?.fill(*value);
            }
            Work::Launch { kernel, params, grid } => {
                launch(kernel, params, *grid, memory, engine, options).map_err(|e| ("cuLaunchKernel", e))?;
            }
            Work::Graph(recorded) => {
                for work in recorded.iter() {
                    work.run(memory, engine, options)?;
                }
            }
        }
        Ok(())
    }
}

/// Under every schedule, each time from the same memory.
pub(crate) fn launch(
    kernel: &Kernel,
    params: &Params,
    grid: Grid,
    memory: &mut Memory,
    engine: &Engine,
    options: &Options,
) -> Result<(), String> {
    let before = (options.schedules.len() > 1).then(|| memory.snapshot());
    let mut first = None;
    for (i, &schedule) in options.schedules.iter().enumerate() {
        if let (Some(before), true) = (&before, i > 0) {
            memory.restore(before);
        }
        memory.watch_guards(true);
        // SAFETY: whoever put the launch on the stream vouches for what the parameter points to; its length was checked.
        let ran = unsafe { engine.run(kernel, params.bytes(), grid, schedule, options.threads) };
        memory.watch_guards(false);
        ran?;
        memory.check_guards().map_err(|e| format!("kernel {}: {e}", kernel.name()))?;
        match &first {
            None if before.is_some() => first = Some(memory.snapshot()),
            None => {}
            Some(first) => {
                if let Some((bytes, at)) = memory.difference(first) {
                    return Err(format!(
                        "kernel {}: byte {at} of the allocation of {bytes} bytes is another one under {schedule:?} than under {:?}",
                        kernel.name(),
                        options.schedules[0]
                    ));
                }
            }
        }
    }
    Ok(())
}
