//! Dispatches: put together once, encoded as often as one likes.

use std::borrow::Cow;
use std::sync::Arc;

use crate::buffer::Binding;
use crate::device::{Device, Pipeline};
use crate::error::{Result, WgpuError};
use crate::kernel::Params;

/// Bytes of the uniform that a kernel's parameters lie in, at most.
pub(crate) const PARAMS_BYTES: u64 = 512;

/// Dispatches in order, with their buffers and parameters. A later one sees what an earlier one wrote.
///
/// ```
/// # use undraft_wgpu::{Access, Batch, Device, KernelSource, Params, params};
/// params! {
///     struct DoubleParams { len: u32, }
/// }
/// const DOUBLE: KernelSource<'_> = KernelSource {
///     name: "double",
///     files: &["
///         @group(0) @binding(0) var<storage, read_write> x: array<f32>;
///         @compute @workgroup_size(THREADS)
///         fn main(@builtin(global_invocation_id) at: vec3<u32>) {
///             if at.x < p.len { x[at.x] = 2.0 * x[at.x]; }
///         }
///     "],
///     params: DoubleParams::WGSL,
///     buffers: &[Access::ReadWrite],
///     exchanges: false,
///    is_large: false,
/// };
/// # let Ok(device) = Device::open(0) else { return Ok(()) };
/// let kernel = device.pipeline(&DOUBLE, &[("THREADS", 64)])?;
/// let x = device.buffer_from("x", &[1.0f32, 2.0, 3.0])?;
/// let mut batch = Batch::new(&device);
/// batch.dispatch(&kernel, &[(&x).into()], &DoubleParams { len: 3 }, 1)?;
/// batch.dispatch(&kernel, &[(&x).into()], &DoubleParams { len: 2 }, 1)?;
/// let recorded = batch.finish()?;
/// recorded.submit()?; // 4, 8, 6
/// recorded.submit()?;
/// let read = device.read(&[undraft_wgpu::Binding::part(&x, 0..12)])?;
/// assert_eq!(read[0], [16.0f32, 32.0, 12.0].map(f32::to_le_bytes).concat());
/// # Ok::<(), undraft_wgpu::WgpuError>(())
/// ```
#[derive(Debug)]
pub struct Batch<'a> {
    device: Cow<'a, Device>,
    dispatches: Vec<Dispatch>,
    uniforms: Vec<u8>,
}

#[derive(Debug)]
struct Dispatch {
    pipeline: Arc<Pipeline>,
    buffers: wgpu::BindGroup,
    /// Where the parameters begin.
    offset: u32,
    workgroups: (u32, u32),
}

/// A finished [`Batch`]. Encoding it allocates nothing; the same buffers are read and written each time.
#[derive(Debug)]
pub struct Recorded {
    device: Device,
    dispatches: Vec<Dispatch>,
    params: wgpu::BindGroup,
}

impl<'a> Batch<'a> {
    /// Nothing yet.
    pub fn new(device: &'a Device) -> Self {
        Self { device: Cow::Borrowed(device), dispatches: Vec::new(), uniforms: Vec::new() }
    }

    /// The same, borrowing nothing.
    pub fn owned(device: Device) -> Batch<'static> {
        Batch { device: Cow::Owned(device), dispatches: Vec::new(), uniforms: Vec::new() }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Adds a dispatch of `workgroups`, numbered in the kernel `workgroup_id.x + workgroup_id.y * num_workgroups.x`: where they
    /// are more than a dimension has, they are spread over two, and the last numbers may be beyond `workgroups`. Nothing is
    /// added where there are none.
    ///
    /// # Errors
    /// [`WgpuError::Bindings`], [`WgpuError::Limit`], [`WgpuError::Alignment`], [`WgpuError::OutOfBuffer`].
    pub fn dispatch<P: Params>(
        &mut self,
        pipeline: &Arc<Pipeline>,
        buffers: &[Binding<'_>],
        params: &P,
        workgroups: u64,
    ) -> Result<()> {
        if workgroups == 0 {
            return Ok(());
        }
        let device = &*self.device;
        let limits = device.limits();
        let (kernel, expected) = (pipeline.name(), pipeline.num_buffers());
        if buffers.len() != expected {
            return Err(WgpuError::Bindings { kernel: kernel.into(), got: buffers.len(), expected });
        }
        for (i, part) in buffers.iter().enumerate() {
            let what = || format!("buffer {i} of {}", pipeline.kernel());
            let most = limits.max_storage_buffer_binding_size;
            device.limit(what(), part.size, most, "max_storage_buffer_binding_size")?;
            let of = u64::from(limits.min_storage_buffer_offset_alignment);
            device.aligned(&what(), part.offset, of, "min_storage_buffer_offset_alignment")?;
            let end = part.offset.saturating_add(part.size);
            if end > part.buffer.size() || part.size == 0 {
                let len = part.buffer.size();
                return Err(WgpuError::OutOfBuffer { what: what(), start: part.offset, end, len });
            }
        }
        let most = u64::from(limits.max_compute_workgroups_per_dimension);
        device.limit(kernel, workgroups.div_ceil(most), most, "max_compute_workgroups_per_dimension")?;
        let rows = workgroups.div_ceil(most);
        let workgroups = (workgroups.div_ceil(rows) as u32, rows as u32);
        let entries: Vec<_> = buffers
            .iter()
            .enumerate()
            .map(|(i, part)| wgpu::BindGroupEntry {
                binding: i as u32,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer: part.buffer,
                    offset: part.offset,
                    size: wgpu::BufferSize::new(part.size),
                }),
            })
            .collect();
        let descriptor =
            wgpu::BindGroupDescriptor { label: Some(kernel), layout: pipeline.layout(), entries: &entries };
        let buffers = device.wgpu().create_bind_group(&descriptor);
        let offset = self.uniforms.len() as u32;
        let words = params.words();
        self.uniforms.extend_from_slice(bytemuck::cast_slice(&words));
        self.uniforms.resize(self.uniforms.len().next_multiple_of(device.uniform_alignment()), 0);
        self.dispatches.push(Dispatch { pipeline: pipeline.clone(), buffers, offset, workgroups });
        Ok(())
    }

    /// Whether there is no dispatch.
    pub fn is_empty(&self) -> bool {
        self.dispatches.is_empty()
    }

    /// Uploads the parameters.
    ///
    /// # Errors
    /// [`WgpuError::Device`] if the device fails.
    pub fn finish(self) -> Result<Recorded> {
        let Self { device, dispatches, mut uniforms } = self;
        uniforms.resize(uniforms.len() + PARAMS_BYTES as usize, 0);
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let buffer = device.buffer_with("params", uniforms.len() as u64, usage)?;
        device.queue().write_buffer(&buffer, 0, &uniforms);
        let params = device.params_group(&buffer);
        device.check_health()?;
        Ok(Recorded { device: device.into_owned(), dispatches, params })
    }
}

impl Recorded {
    /// Encodes the dispatches into a compute pass of the caller's.
    pub fn encode(&self, pass: &mut wgpu::ComputePass<'_>) {
        for dispatch in &self.dispatches {
            pass.set_pipeline(dispatch.pipeline.wgpu());
            pass.set_bind_group(0, &dispatch.buffers, &[]);
            pass.set_bind_group(1, &self.params, &[dispatch.offset]);
            pass.dispatch_workgroups(dispatch.workgroups.0, dispatch.workgroups.1, 1);
        }
    }

    /// An encoder with a pass of these dispatches.
    pub(crate) fn encoder(&self) -> wgpu::CommandEncoder {
        let mut encoder = self.device.wgpu().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        self.encode(&mut encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default()));
        encoder
    }

    /// Submits the dispatches and returns at once.
    ///
    /// # Errors
    /// [`WgpuError::Device`] if the device has failed.
    pub fn submit(&self) -> Result<()> {
        self.device.queue().submit([self.encoder().finish()]);
        self.device.check_health()
    }

    /// Submits the dispatches, waits for them and reads parts of buffers; see [`Device::read`].
    ///
    /// # Errors
    /// As [`Device::read`].
    pub fn run(&self, read: &[Binding<'_>]) -> Result<Vec<Vec<u8>>> {
        self.device.read_after(self.encoder(), read)
    }
}
