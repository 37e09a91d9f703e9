//! The driver's calls over memory of the host.

use std::collections::HashMap;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use undraft_cuda::driver::{
    CUstream, DeviceAttributes, DevicePtr, Driver, Function, GraphHandle, Launch, check_params,
};
use undraft_cuda::{CudaError, Result};

use crate::engine::{Engine, Grid, Kernel, Language};
use crate::memory::Memory;
use crate::options::Options;
use crate::work::{Failure, HostMemory, Params, Work};

/// A device of compute capability 8.0 that is this machine's CPU; see the [crate].
///
/// Work is done when its stream is synchronised, or memory is freed. After a failure, which the next synchronisation of the
/// stream returns, the rest of the stream's work is dropped.
#[derive(Debug)]
pub struct EmulatedDriver {
    options: Options,
    attributes: DeviceAttributes,
    engine: Engine,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    memory: Memory,
    streams: HashMap<usize, StreamState>,
    graphs: HashMap<usize, Arc<Vec<Work>>>,
    /// Of streams and graphs.
    last_handle: usize,
}

#[derive(Default)]
struct StreamState {
    queue: Vec<Work>,
    recorded: Option<Vec<Work>>,
    failure: Option<Failure>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("memory", &self.memory).finish_non_exhaustive()
    }
}

fn failed((call, why): Failure) -> CudaError {
    CudaError::OtherDriver { call, why }
}

impl StreamState {
    /// Does what waits, as far as it succeeds.
    fn run(&mut self, memory: &mut Memory, engine: &Engine, options: &Options) {
        for work in take(&mut self.queue) {
            if let Err(e) = work.run(memory, engine, options) {
                self.failure = Some(e);
                return;
            }
        }
    }
}

impl EmulatedDriver {
    /// A device with all kernels that were compiled in.
    ///
    /// # Errors
    /// If the options are out of range, or the CPU has not the instructions that the kernels were compiled for (on x86-64 AVX2
    /// and FMA).
    pub fn new(options: Options) -> Result<Self> {
        let refuse = |why: &str| Err(failed(("cuInit", why.to_owned())));
        if options.threads == 0 || options.num_sms == 0 || options.schedules.is_empty() {
            return refuse("threads, multiprocessors or schedules of the emulator are none, expected at least one");
        }
        if options.max_shared > 232_448 {
            return refuse("shared memory of the emulator, expected at most 232448 bytes a block");
        }
        #[cfg(target_arch = "x86_64")]
        if !(std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma")) {
            return refuse("the emulator needs a CPU with AVX2 and FMA");
        }
        let attributes = DeviceAttributes {
            ordinal: 0,
            name: "CPU, emulating compute capability 8.0".into(),
            compute_capability: (8, 0),
            num_sms: options.num_sms,
            max_shared: options.max_shared,
            shared_per_sm: options.shared_per_sm,
        };
        let state = State { streams: HashMap::from([(0, StreamState::default())]), ..State::default() };
        Ok(Self { options, attributes, engine: Engine::default(), state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Puts work on a stream, or into its recording.
    fn put(&self, call: &'static str, stream: CUstream, work: Work) -> Result<()> {
        let mut state = self.state();
        let stream = state.stream(call, stream)?;
        match &mut stream.recorded {
            None => stream.queue.push(work),
            Some(_) if matches!(work, Work::ToDevice { .. } | Work::ToHost { .. }) => {
                return Err(failed((
                    call,
                    "the stream is recording, expected no copies from or to host memory".into(),
                )));
            }
            Some(recorded) => recorded.push(work),
        }
        Ok(())
    }
}

impl State {
    fn stream(&mut self, call: &'static str, stream: CUstream) -> Result<&mut StreamState> {
        let none = || failed((call, format!("there is no stream {stream:?}")));
        self.streams.get_mut(&(stream as usize)).ok_or_else(none)
    }
    fn new_handle(&mut self) -> usize {
        self.last_handle += 1;
        self.last_handle
    }
}

impl Driver for EmulatedDriver {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn function(&self, name: &str) -> Result<Function> {
        let none = || failed(("cuModuleGetFunction", format!("there is no kernel `{name}`")));
        let substitute = self.options.substitutes.iter().find(|(original, _)| original == name);
        let kernel = Kernel::find(Language::Cuda, substitute.map_or(name, |(_, other)| other)).ok_or_else(none)?;
        Ok(Function { handle: kernel.handle(), param_bytes: kernel.param_bytes() })
    }

    /// Looks the kernels up among those that lie in the crate's folder, whatever the source.
    fn compile(&self, _source: &str, names: &[String]) -> Result<Vec<Function>> {
        names.iter().map(|name| self.function(name)).collect()
    }

    fn alloc(&self, bytes: usize) -> Result<DevicePtr> {
        if bytes == 0 {
            return Err(failed(("cuMemAlloc", "0 bytes were asked for, expected at least 1".into())));
        }
        let poison = self.options.schedules[0].poison;
        self.state().memory.alloc(bytes, poison).map_err(|e| failed(("cuMemAlloc", e)))
    }
    unsafe fn free(&self, address: DevicePtr) -> Result<()> {
        let State { memory, streams, .. } = &mut *self.state();
        for stream in streams.values_mut() {
            stream.run(memory, &self.engine, &self.options);
        }
        memory.free(address).map_err(|e| failed(("cuMemFree", e)))
    }

    unsafe fn copy_to_device(&self, stream: CUstream, to: DevicePtr, from: &[u8]) -> Result<()> {
        self.put("cuMemcpyHtoDAsync", stream, Work::ToDevice { to, bytes: from.to_vec() })
    }
    unsafe fn copy_to_host(&self, stream: CUstream, to: &mut [u8], from: DevicePtr) -> Result<()> {
        let work = Work::ToHost { to: HostMemory(to.as_mut_ptr()), from, len: to.len() };
        self.put("cuMemcpyDtoHAsync", stream, work)
    }
    unsafe fn copy_on_device(&self, stream: CUstream, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<()> {
        self.put("cuMemcpyDtoDAsync", stream, Work::OnDevice { to, from, len: bytes })
    }
    unsafe fn fill(&self, stream: CUstream, at: DevicePtr, value: u8, bytes: usize) -> Result<()> {
        self.put("cuMemsetD8Async", stream, Work::Fill { at, value, len: bytes })
    }

    unsafe fn launch(&self, stream: CUstream, launch: &Launch<'_>) -> Result<()> {
        let refuse = |why: String| Err(failed(("cuLaunchKernel", why)));
        let Some(kernel) = Kernel::of_handle(Language::Cuda, launch.function.handle) else {
            return refuse("the function is not of this driver".into());
        };
        check_params(launch)?;
        let (x, y) = launch.blocks;
        if x == 0 || y == 0 || x > 0x7fff_ffff || y > 0xffff {
            return refuse(format!("{x} x {y} blocks, expected 1 to 2147483647 x 1 to 65535"));
        }
        if launch.threads == 0 || launch.threads > 1024 {
            return refuse(format!("{} threads a block, expected 1 to 1024", launch.threads));
        }
        let (shared, most) = (launch.shared as usize, self.options.max_shared);
        if shared > most {
            return refuse(format!("{shared} bytes of shared memory, expected at most {most}"));
        }
        let grid = Grid { blocks: [x, y, 1], threads: [launch.threads, 1, 1], shared };
        self.put("cuLaunchKernel", stream, Work::Launch { kernel, params: Params::new(launch.params), grid })
    }

    fn create_stream(&self) -> Result<CUstream> {
        let mut state = self.state();
        let handle = state.new_handle();
        state.streams.insert(handle, StreamState::default());
        Ok(handle as CUstream)
    }
    unsafe fn destroy_stream(&self, stream: CUstream) -> Result<()> {
        let mut state = self.state();
        state.stream("cuStreamDestroy", stream)?;
        if let Some(mut stream) = state.streams.remove(&(stream as usize)) {
            stream.run(&mut state.memory, &self.engine, &self.options);
        }
        Ok(())
    }
    unsafe fn synchronize(&self, stream: CUstream) -> Result<()> {
        let call = "cuStreamSynchronize";
        let State { memory, streams, .. } = &mut *self.state();
        let Some(stream) = streams.get_mut(&(stream as usize)) else {
            return Err(failed((call, format!("there is no stream {stream:?}"))));
        };
        if stream.recorded.is_some() {
            return Err(failed((call, "the stream is recording".into())));
        }
        stream.run(memory, &self.engine, &self.options);
        stream.failure.take().map_or(Ok(()), |e| Err(failed(e)))
    }

    unsafe fn begin_capture(&self, stream: CUstream) -> Result<()> {
        let call = "cuStreamBeginCapture";
        if stream.is_null() {
            return Err(failed((call, "the default stream cannot record".into())));
        }
        let mut state = self.state();
        let stream = state.stream(call, stream)?;
        if stream.recorded.is_some() {
            return Err(failed((call, "the stream is recording already".into())));
        }
        stream.recorded = Some(Vec::new());
        Ok(())
    }
    unsafe fn end_capture(&self, stream: CUstream) -> Result<GraphHandle> {
        let call = "cuStreamEndCapture";
        let mut state = self.state();
        let Some(recorded) = state.stream(call, stream)?.recorded.take() else {
            return Err(failed((call, "the stream is not recording".into())));
        };
        let handle = state.new_handle();
        state.graphs.insert(handle, Arc::new(recorded));
        Ok(GraphHandle(handle))
    }
    unsafe fn launch_graph(&self, stream: CUstream, graph: GraphHandle) -> Result<()> {
        let none = || failed(("cuGraphLaunch", format!("there is no graph {graph:?}")));
        let recorded = self.state().graphs.get(&graph.0).cloned().ok_or_else(none)?;
        self.put("cuGraphLaunch", stream, Work::Graph(recorded))
    }
    unsafe fn destroy_graph(&self, graph: GraphHandle) -> Result<()> {
        let none = || failed(("cuGraphExecDestroy", format!("there is no graph {graph:?}")));
        self.state().graphs.remove(&graph.0).map(|_| ()).ok_or_else(none)
    }
}
