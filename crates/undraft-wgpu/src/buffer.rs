//! Device memory: buffers, parts of them, and copies to and from the host.

use std::ops::Range;

use crate::device::Device;
use crate::error::{Result, WgpuError};

/// A part of a buffer, as a kernel is given it. Offsets and sizes are bytes; the offset is a multiple of the device's
/// `min_storage_buffer_offset_alignment` (256 suits every device).
#[derive(Clone, Copy, Debug)]
pub struct Binding<'a> {
    /// Buffer with usage `STORAGE`.
    pub buffer: &'a wgpu::Buffer,
    /// First byte.
    pub offset: u64,
    /// Bytes, a multiple of 4.
    pub size: u64,
}

impl<'a> Binding<'a> {
    /// Bytes `range` of a buffer.
    pub fn part(buffer: &'a wgpu::Buffer, range: Range<u64>) -> Self {
        Self { buffer, offset: range.start, size: range.end.saturating_sub(range.start) }
    }
}

impl<'a> From<&'a wgpu::Buffer> for Binding<'a> {
    fn from(buffer: &'a wgpu::Buffer) -> Self {
        Self { buffer, offset: 0, size: buffer.size() }
    }
}

impl Device {
    /// A buffer of zeros for kernels and copies; `bytes` is rounded up to a multiple of 16, and to 16 at least.
    ///
    /// # Errors
    /// [`WgpuError::Limit`] if it is larger than `max_buffer_size`; [`WgpuError::Device`] if there is no memory for it.
    pub fn buffer(&self, label: &str, bytes: u64) -> Result<wgpu::Buffer> {
        use wgpu::BufferUsages as Usages;
        let usage = Usages::STORAGE | Usages::COPY_SRC | Usages::COPY_DST;
        self.buffer_with(label, bytes, usage)
    }

    pub(crate) fn buffer_with(&self, label: &str, bytes: u64, usage: wgpu::BufferUsages) -> Result<wgpu::Buffer> {
        let size = bytes.max(1).checked_next_multiple_of(16).unwrap_or(u64::MAX);
        self.limit(label, size, self.limits().max_buffer_size, "max_buffer_size")?;
        let descriptor = wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false };
        self.scoped(|| self.wgpu().create_buffer(&descriptor))
    }

    /// A buffer with these elements.
    ///
    /// # Errors
    /// As [`Device::buffer`].
    pub fn buffer_from<T: bytemuck::NoUninit>(&self, label: &str, data: &[T]) -> Result<wgpu::Buffer> {
        let buffer = self.buffer(label, size_of_val(data) as u64)?;
        self.write(&buffer, 0, data)?;
        Ok(buffer)
    }

    /// Writes elements from byte `offset` on, a multiple of 4, before the next submission runs. A last word that the elements
    /// fill in part gets zeros in the rest.
    ///
    /// # Errors
    /// [`WgpuError::OutOfBuffer`], [`WgpuError::Alignment`].
    pub fn write<T: bytemuck::NoUninit>(&self, buffer: &wgpu::Buffer, offset: u64, data: &[T]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let whole = bytes.len() - bytes.len() % 4;
        let len = bytes.len().next_multiple_of(4) as u64;
        self.check_range("write", buffer, offset, len)?;
        if whole > 0 {
            self.queue().write_buffer(buffer, offset, &bytes[..whole]);
        }
        if whole < bytes.len() {
            let mut last = [0; 4];
            last[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
            self.queue().write_buffer(buffer, offset + whole as u64, &last);
        }
        Ok(())
    }

    /// Reads parts of buffers, once everything that was submitted has run: for each its bytes.
    ///
    /// # Errors
    /// [`WgpuError::OutOfBuffer`], [`WgpuError::Alignment`]; [`WgpuError::Device`] if the device fails.
    pub fn read(&self, parts: &[Binding<'_>]) -> Result<Vec<Vec<u8>>> {
        let encoder = self.wgpu().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        self.read_after(encoder, parts)
    }

    /// The same once the commands of `encoder` have run as well, in one submission.
    pub(crate) fn read_after(&self, mut encoder: wgpu::CommandEncoder, parts: &[Binding<'_>]) -> Result<Vec<Vec<u8>>> {
        let sizes: Vec<u64> = parts.iter().map(|part| part.size.next_multiple_of(4)).collect();
        for (part, &size) in parts.iter().zip(&sizes) {
            self.check_range("read", part.buffer, part.offset, size)?;
        }
        let total: u64 = sizes.iter().sum();
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let staging = self.buffer_with("read", total, usage)?;
        let mut at = 0;
        for (part, &size) in parts.iter().zip(&sizes) {
            if size > 0 {
                encoder.copy_buffer_to_buffer(part.buffer, part.offset, &staging, at, size);
            }
            at += size;
        }
        self.queue().submit([encoder.finish()]);
        let (sender, receiver) = std::sync::mpsc::channel();
        staging.map_async(wgpu::MapMode::Read, .., move |outcome| {
            let _ = sender.send(outcome);
        });
        self.wait()?;
        // Another thread that waits may have taken the call on itself, and is about to make it.
        match receiver.recv() {
            Ok(Ok(())) => {}
            Ok(Err(e)) => return Err(self.failed(e.to_string())),
            Err(_) => return Err(self.failed("a copy to the host was never done".into())),
        }
        let view = staging.get_mapped_range(..).map_err(|e| self.failed(e.to_string()))?;
        let mut at = 0;
        let read = parts.iter().zip(&sizes).map(|(part, &size)| {
            let bytes = view[at as usize..(at + part.size) as usize].to_vec();
            at += size;
            bytes
        });
        let read = read.collect();
        drop(view);
        staging.unmap();
        self.check_health()?;
        Ok(read)
    }

    fn check_range(&self, what: &str, buffer: &wgpu::Buffer, offset: u64, len: u64) -> Result<()> {
        let end = offset.saturating_add(len);
        if end > buffer.size() {
            return Err(WgpuError::OutOfBuffer { what: what.into(), start: offset, end, len: buffer.size() });
        }
        self.aligned(what, offset, wgpu::COPY_BUFFER_ALIGNMENT, "COPY_BUFFER_ALIGNMENT")
    }
}
