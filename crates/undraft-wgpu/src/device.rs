//! A device: an adapter that was opened, its limits, what was measured of it, and its kernels.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::adapter::{self, AdapterInfo, ready};
use crate::batch::PARAMS_BYTES;
use crate::buffer::Binding;
use crate::error::{Result, WgpuError};
use crate::kernel::{Access, Constants, KernelSource};
use crate::probe::Facts;

/// How a device is opened.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Whether kernels use workgroup memory where they could use subgroups; for tests.
    pub without_subgroups: bool,
    /// Rows of a state that eight lanes take at once, 1, 2 or 4; by default as the call's size makes best. No bit depends on it;
    /// for tests.
    pub rows_at_once: Option<u32>,
    /// Whether kernels are chosen and written out as for a device with a fused fma, though this one's is not; for tests.
    pub as_fused: bool,
    /// Limits to ask for; by default all that the adapter has.
    pub limits: Option<wgpu::Limits>,
}

/// An open device with the kernels that were made for it. Cloning is cheap.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    adapter: AdapterInfo,
    device: wgpu::Device,
    queue: wgpu::Queue,
    limits: wgpu::Limits,
    facts: Facts,
    params_layout: wgpu::BindGroupLayout,
    pipelines: Mutex<HashMap<String, Arc<Pipeline>>>,
    /// What is bound in the place of tensors that are not given.
    absent: OnceLock<[wgpu::Buffer; 3]>,
    rows_at_once: Option<u32>,
    as_fused: bool,
    /// The first failure that no call has reported yet.
    failure: Arc<Mutex<Option<String>>>,
}

/// A kernel with its constants, compiled.
#[derive(Debug)]
pub struct Pipeline {
    kernel: &'static str,
    name: String,
    pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
    num_buffers: usize,
}

impl Pipeline {
    /// Name and constants of the kernel.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Name of the kernel alone.
    pub(crate) fn kernel(&self) -> &'static str {
        self.kernel
    }
    /// Buffers of a dispatch.
    pub fn num_buffers(&self) -> usize {
        self.num_buffers
    }
    pub(crate) fn wgpu(&self) -> &wgpu::ComputePipeline {
        &self.pipeline
    }
    pub(crate) fn layout(&self) -> &wgpu::BindGroupLayout {
        &self.layout
    }
}

impl Device {
    /// Opens the adapter of a number; see [`crate::adapters`].
    ///
    /// # Errors
    /// [`WgpuError::NoAdapter`], [`WgpuError::NoSuchAdapter`]; [`WgpuError::NoDevice`] if the adapter refuses.
    pub fn open(ordinal: usize) -> Result<Self> {
        Self::open_with(ordinal, &DeviceOptions::default())
    }

    /// The same with options.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn open_with(ordinal: usize, options: &DeviceOptions) -> Result<Self> {
        let (adapter, info) = adapter::by_number(ordinal)?;
        Self::of_adapter(&adapter, info, options)
    }

    /// Opens the first adapter that has this text in its name.
    ///
    /// # Errors
    /// [`WgpuError::NoAdapterNamed`], and as [`Device::open`].
    pub fn open_by_name(name: &str) -> Result<Self> {
        let (adapter, info) = adapter::by_name(name)?;
        Self::of_adapter(&adapter, info, &DeviceOptions::default())
    }

    fn of_adapter(adapter: &wgpu::Adapter, info: AdapterInfo, options: &DeviceOptions) -> Result<Self> {
        let useful = wgpu::Features::SUBGROUP | wgpu::Features::TIMESTAMP_QUERY;
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("undraft"),
            required_features: adapter.features() & useful,
            required_limits: options.limits.clone().unwrap_or_else(|| adapter.limits()),
            ..Default::default()
        };
        let refused = |why: String| WgpuError::NoDevice { adapter: info.name.clone(), why };
        let made = ready(adapter.request_device(&descriptor));
        let (device, queue) = made
            .ok_or_else(|| refused("the request was not answered at once".into()))?
            .map_err(|e| refused(e.to_string()))?;
        Self::of_wgpu(info, device, queue, options)
    }

    /// A device and queue that the caller has made, with `Features::SUBGROUP` if there are subgroups to be used. The handler of
    /// uncaptured errors is replaced.
    ///
    /// # Errors
    /// [`WgpuError`] if the device cannot run a kernel.
    pub fn of_wgpu(
        adapter: AdapterInfo,
        device: wgpu::Device,
        queue: wgpu::Queue,
        options: &DeviceOptions,
    ) -> Result<Self> {
        let failure = Arc::new(Mutex::new(None));
        let seen = failure.clone();
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
            lock(&seen).get_or_insert_with(|| e.to_string());
        }));
        let params_layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some("params"),
            entries: &[wgpu::BindGroupLayoutEntry {
                binding: 0,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Uniform,
                    has_dynamic_offset: true,
                    min_binding_size: None,
                },
                count: None,
            }],
        });
        let limits = device.limits();
        let mut inner = Inner {
            adapter,
            device,
            queue,
            limits,
            facts: Facts::default(),
            params_layout,
            pipelines: Mutex::default(),
            absent: OnceLock::new(),
            rows_at_once: options.rows_at_once,
            as_fused: options.as_fused,
            failure,
        };
        let probed = Self(Arc::new(inner.shallow()));
        inner.facts = Facts::measure(&probed, options)?;
        Ok(Self(Arc::new(inner)))
    }

    /// The adapter.
    pub fn adapter(&self) -> &AdapterInfo {
        &self.0.adapter
    }
    /// What the device may be asked for.
    pub fn limits(&self) -> &wgpu::Limits {
        &self.0.limits
    }
    /// What was measured when it was opened.
    pub fn facts(&self) -> &Facts {
        &self.0.facts
    }
    /// wgpu's device.
    pub fn wgpu(&self) -> &wgpu::Device {
        &self.0.device
    }
    /// wgpu's queue.
    pub fn queue(&self) -> &wgpu::Queue {
        &self.0.queue
    }

    /// The kernel with these constants, compiled when it is first asked for. `THREADS` is one of them.
    ///
    /// # Errors
    /// [`WgpuError::Limit`] if it has more buffers or threads than the device allows; [`WgpuError::Kernel`] if the text is
    /// wrong or needs more workgroup memory than there is.
    pub fn pipeline(&self, source: &KernelSource<'_>, constants: &Constants) -> Result<Arc<Pipeline>> {
        let name = source.key(constants);
        if let Some(pipeline) = lock(&self.0.pipelines).get(&name) {
            return Ok(pipeline.clone());
        }
        let limits = self.limits();
        let stage = u64::from(limits.max_storage_buffers_per_shader_stage);
        self.limit(&name, source.buffers.len() as u64, stage, "max_storage_buffers_per_shader_stage")?;
        let threads = constants.iter().find(|(constant, _)| *constant == "THREADS").map_or(0, |&(_, n)| n);
        let most = u64::from(self.max_threads());
        self.limit(&name, u64::from(threads), most, "max_compute_invocations_per_workgroup")?;
        let facts = self.facts();
        let mut all = constants.to_vec();
        all.extend([("FUSED", facts.fma_is_fused.into()), ("SUBGROUPS", facts.has_subgroups.into())]);
        let text = source.text(&all, self.is_fast())?;

        let pipeline = Arc::new(self.compile(source.name, name.clone(), &text, source.buffers)?);
        // Two threads may have compiled it; either's does.
        Ok(lock(&self.0.pipelines).entry(name).or_insert(pipeline).clone())
    }

    fn compile(&self, kernel: &'static str, name: String, text: &str, buffers: &[Access]) -> Result<Pipeline> {
        let device = self.wgpu();
        let made = self.scoped(|| {
            let entries: Vec<_> = buffers
                .iter()
                .enumerate()
                .map(|(i, &access)| wgpu::BindGroupLayoutEntry {
                    binding: i as u32,
                    visibility: wgpu::ShaderStages::COMPUTE,
                    ty: wgpu::BindingType::Buffer {
                        ty: wgpu::BufferBindingType::Storage { read_only: access == Access::Read },
                        has_dynamic_offset: false,
                        min_binding_size: None,
                    },
                    count: None,
                })
                .collect();
            let layout = device
                .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some(&name), entries: &entries });
            let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: Some(&name),
                bind_group_layouts: &[Some(&layout), Some(&self.0.params_layout)],
                immediate_size: 0,
            });
            let source = wgpu::ShaderSource::Wgsl(text.into());
            let descriptor = wgpu::ShaderModuleDescriptor { label: Some(&name), source };
            let module = device.create_shader_module(descriptor);
            let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(&name),
                layout: Some(&pipeline_layout),
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions {
                    constants: &[],
                    // Kernels write workgroup memory before they read it.
                    zero_initialize_workgroup_memory: false,
                },
                cache: None,
            });
            (pipeline, layout)
        });
        let (pipeline, layout) = made.map_err(|e| match e {
            WgpuError::Device { why, .. } => WgpuError::Kernel { kernel: name.clone(), why },
            e => e,
        })?;
        Ok(Pipeline { kernel, name, pipeline, layout, num_buffers: buffers.len() })
    }

    /// Invocations of a workgroup, at most.
    pub(crate) fn max_threads(&self) -> u32 {
        self.limits().max_compute_invocations_per_workgroup.min(self.limits().max_compute_workgroup_size_x)
    }

    /// Whether kernels are made to be fast: many, and with loops written out. Where fma is not fused they are made to be few.
    pub(crate) fn is_fast(&self) -> bool {
        self.facts().fma_is_fused || self.0.as_fused
    }

    pub(crate) fn rows_at_once(&self) -> Option<u32> {
        self.0.rows_at_once
    }

    /// What stands for a tensor that is not given; a dispatch takes each of them once.
    pub(crate) fn absent(&self, which: usize) -> Binding<'_> {
        let usage = wgpu::BufferUsages::STORAGE;
        let descriptor = wgpu::BufferDescriptor { label: Some("absent"), size: 16, usage, mapped_at_creation: false };
        let buffers = self.0.absent.get_or_init(|| std::array::from_fn(|_| self.wgpu().create_buffer(&descriptor)));
        (&buffers[which]).into()
    }

    /// Waits until everything that was submitted has run.
    ///
    /// # Errors
    /// [`WgpuError::Device`] if the device fails.
    pub fn wait(&self) -> Result<()> {
        self.wgpu().poll(wgpu::PollType::wait_indefinitely()).map_err(|e| self.failed(e.to_string()))?;
        self.check_health()
    }

    /// The first failure since the last call, if there was one.
    pub(crate) fn check_health(&self) -> Result<()> {
        lock(&self.0.failure).take().map_or(Ok(()), |why| Err(self.failed(why)))
    }

    pub(crate) fn failed(&self, why: String) -> WgpuError {
        WgpuError::Device { adapter: self.0.adapter.name.clone(), why }
    }

    /// What `make` makes, or what wgpu says against it.
    pub(crate) fn scoped<T>(&self, make: impl FnOnce() -> T) -> Result<T> {
        let filters = [wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Internal];
        let scopes = filters.map(|filter| self.wgpu().push_error_scope(filter));
        let made = make();
        let mut failure = None;
        for scope in scopes.into_iter().rev() {
            failure = failure.or(ready(scope.pop()).flatten());
        }
        failure.map_or(Ok(made), |e| Err(self.failed(e.to_string())))
    }

    /// That a number is within a limit.
    pub(crate) fn limit(&self, what: impl Into<String>, got: u64, most: u64, limit: &'static str) -> Result<()> {
        if got <= most {
            return Ok(());
        }
        Err(WgpuError::Limit { what: what.into(), got, most, limit, adapter: self.0.adapter.name.clone() })
    }

    /// That an offset is aligned.
    pub(crate) fn aligned(&self, what: &str, got: u64, of: u64, limit: &'static str) -> Result<()> {
        if got.is_multiple_of(of) {
            return Ok(());
        }
        Err(WgpuError::Alignment { what: what.into(), got, of, limit, adapter: self.0.adapter.name.clone() })
    }

    pub(crate) fn uniform_alignment(&self) -> usize {
        self.limits().min_uniform_buffer_offset_alignment as usize
    }

    pub(crate) fn params_group(&self, buffer: &wgpu::Buffer) -> wgpu::BindGroup {
        self.wgpu().create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("params"),
            layout: &self.0.params_layout,
            entries: &[wgpu::BindGroupEntry {
                binding: 0,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer,
                    offset: 0,
                    size: wgpu::BufferSize::new(PARAMS_BYTES),
                }),
            }],
        })
    }
}

impl Inner {
    /// The same device with no kernels yet.
    fn shallow(&self) -> Self {
        Self {
            adapter: self.adapter.clone(),
            device: self.device.clone(),
            queue: self.queue.clone(),
            limits: self.limits.clone(),
            facts: self.facts.clone(),
            params_layout: self.params_layout.clone(),
            pipelines: Mutex::default(),
            absent: OnceLock::new(),
            rows_at_once: self.rows_at_once,
            as_fused: self.as_fused,
            failure: self.failure.clone(),
        }
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("adapter", &self.0.adapter).field("facts", &self.0.facts).finish()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
