//! The calls of `undraft-metal` over memory of the host.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError};

use undraft_metal::driver::{
    BufferHandle, CommandsHandle, DeviceAttributes, Dispatch, Driver, EncoderHandle, Pipeline, Slice,
};
use undraft_metal::sources::Library;
use undraft_metal::{MetalError, Result};

use crate::engine::{Engine, Grid, Kernel, Language};
use crate::memory::Memory;
use crate::options::Options;
use crate::work::{Params, launch};

/// Slots of a launch.
const SLOTS: usize = 31;
/// Most bytes of parameters that lie in no buffer.
const MOST_PARAMS: usize = 4096;

/// A Metal device that is this machine's CPU; see the [crate]. Of the options, `threads`, `schedules` and `substitutes` count;
/// threadgroups have 32 KiB of memory, as on Apple's GPUs.
///
/// Work is done when it is committed, and its failure comes from waiting for it.
#[derive(Debug)]
pub struct EmulatedMetal {
    options: Options,
    attributes: DeviceAttributes,
    engine: Engine,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    memory: Memory,
    encoders: HashMap<usize, Vec<Launch>>,
    outcomes: HashMap<usize, Result<(), String>>,
    /// Of encoders and committed work.
    last_handle: usize,
}

#[derive(Debug)]
struct Launch {
    kernel: &'static Kernel,
    buffers: Vec<Slice>,
    params_slot: usize,
    params: Params,
    grid: Grid,
}

fn failed(call: &'static str, why: impl Into<String>) -> MetalError {
    MetalError::Device { call, why: why.into() }
}

impl EmulatedMetal {
    /// A device with all kernels that were compiled in.
    ///
    /// # Errors
    /// If the options are out of range, or the CPU has not the instructions that the kernels were compiled for (on x86-64 AVX2
    /// and FMA).
    pub fn new(options: Options) -> Result<Self> {
        if options.threads == 0 || options.schedules.is_empty() {
            return Err(failed("open", "threads or schedules of the emulator are none, expected at least one"));
        }
        #[cfg(target_arch = "x86_64")]
        if !(std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma")) {
            return Err(failed("open", "the emulator needs a CPU with AVX2 and FMA"));
        }
        let attributes = DeviceAttributes {
            name: "CPU, emulating a Metal device".into(),
            max_threadgroup_memory: 32768,
            max_threads: 1024,
        };
        Ok(Self { options, attributes, engine: Engine::default(), state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new_handle(&mut self) -> usize {
        self.last_handle += 1;
        self.last_handle
    }
}

impl Launch {
    fn run(&self, memory: &mut Memory, engine: &Engine, options: &Options) -> Result<(), String> {
        // What `MetalArguments` of `cpp/metal.h` holds: addresses by slot, 0 where there is no buffer.
        let mut addresses = [0u64; SLOTS];
        for (slot, slice) in self.buffers.iter().enumerate() {
            if let Some(buffer) = slice.buffer() {
                let address = buffer.0 as u64 + slice.offset() as u64;
                memory.bytes(buffer.0 as u64, slice.offset()).map_err(|e| format!("buffer at slot {slot}: {e}"))?;
                addresses[slot] = address;
            }
        }
        addresses[self.params_slot] = self.params.address();
        let bytes = addresses.map(u64::to_ne_bytes);
        let bytes: Vec<_> = bytes.as_flattened().iter().map(|&byte| MaybeUninit::new(byte)).collect();
        launch(self.kernel, &Params::new(&bytes), self.grid, memory, engine, options)
    }
}

impl Driver for EmulatedMetal {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn pipeline(&self, _library: Library, kernel: &str) -> Result<Pipeline> {
        let none = || MetalError::Pipeline { kernel: kernel.into(), why: "there is no such kernel".into() };
        let substitute = self.options.substitutes.iter().find(|(original, _)| original == kernel);
        let kernel = Kernel::find(Language::Metal, substitute.map_or(kernel, |(_, other)| other)).ok_or_else(none)?;
        Ok(Pipeline(kernel.handle()))
    }

    fn alloc(&self, bytes: usize) -> Result<BufferHandle> {
        if bytes == 0 {
            return Err(failed("newBuffer", "0 bytes were asked for, expected at least 1"));
        }
        let poison = self.options.schedules[0].poison;
        let address = self.state().memory.alloc(bytes, poison).map_err(|e| failed("newBuffer", e))?;
        Ok(BufferHandle(address as usize))
    }
    unsafe fn free(&self, buffer: BufferHandle) -> Result<()> {
        self.state().memory.free(buffer.0 as u64).map_err(|e| failed("release", e))
    }
    unsafe fn write(&self, buffer: BufferHandle, at: usize, from: &[u8]) -> Result<()> {
        let mut state = self.state();
        let to = state.memory.bytes(buffer.0 as u64 + at as u64, from.len()).map_err(|e| failed("contents", e))?;
        to.copy_from_slice(from);
        Ok(())
    }
    unsafe fn read(&self, buffer: BufferHandle, at: usize, to: &mut [u8]) -> Result<()> {
        let mut state = self.state();
        let from = state.memory.bytes(buffer.0 as u64 + at as u64, to.len()).map_err(|e| failed("contents", e))?;
        to.copy_from_slice(from);
        Ok(())
    }

    fn begin(&self) -> Result<EncoderHandle> {
        let mut state = self.state();
        let handle = state.new_handle();
        state.encoders.insert(handle, Vec::new());
        Ok(EncoderHandle(handle))
    }
    unsafe fn dispatch(&self, encoder: EncoderHandle, dispatch: &Dispatch<'_>) -> Result<()> {
        let refuse = |why: String| Err(failed("dispatchThreadgroups", why));
        let Some(kernel) = Kernel::of_handle(Language::Metal, dispatch.pipeline.0) else {
            return refuse("the pipeline is not of this driver".into());
        };
        let threads: u64 = dispatch.threads.iter().map(|&n| u64::from(n)).product();
        if threads == 0 || threads > self.attributes.max_threads as u64 || !threads.is_multiple_of(32) {
            return refuse(format!("{threads} threads a threadgroup, expected a multiple of 32 up to 1024"));
        }
        if dispatch.threadgroups.contains(&0) {
            return refuse(format!("{:?} threadgroups, expected at least 1 along each axis", dispatch.threadgroups));
        }
        let (shared, most) = (dispatch.threadgroup_bytes, self.attributes.max_threadgroup_memory);
        if shared > most || !shared.is_multiple_of(16) {
            return refuse(format!("{shared} bytes of threadgroup memory, expected a multiple of 16 up to {most}"));
        }
        if dispatch.params.len() > MOST_PARAMS {
            return refuse(format!("{} bytes of parameters, expected at most {MOST_PARAMS}", dispatch.params.len()));
        }
        let slots = dispatch.buffers.len().max(dispatch.params_slot + 1);
        if slots > SLOTS || dispatch.buffers.get(dispatch.params_slot).is_some_and(|slice| !slice.is_none()) {
            return refuse(format!("{slots} slots, expected at most {SLOTS}, and no buffer in that of the parameters"));
        }
        let launch = Launch {
            kernel,
            buffers: dispatch.buffers.to_vec(),
            params_slot: dispatch.params_slot,
            params: Params::new(dispatch.params),
            grid: Grid { blocks: dispatch.threadgroups, threads: dispatch.threads, shared },
        };
        match self.state().encoders.get_mut(&encoder.0) {
            Some(launches) => launches.push(launch),
            None => return refuse(format!("there is no open {encoder:?}")),
        }
        Ok(())
    }
    unsafe fn commit(&self, encoder: EncoderHandle) -> Result<CommandsHandle> {
        let mut state = self.state();
        let none = || failed("commit", format!("there is no open {encoder:?}"));
        let launches = state.encoders.remove(&encoder.0).ok_or_else(none)?;
        let outcome = launches.iter().try_for_each(|launch| launch.run(&mut state.memory, &self.engine, &self.options));
        let handle = state.new_handle();
        state.outcomes.insert(handle, outcome);
        Ok(CommandsHandle(handle))
    }
    unsafe fn wait(&self, commands: CommandsHandle) -> Result<()> {
        let none = || failed("waitUntilCompleted", format!("there are no {commands:?}"));
        let outcome = self.state().outcomes.remove(&commands.0).ok_or_else(none)?;
        outcome.map_err(|e| failed("waitUntilCompleted", e))
    }
}
