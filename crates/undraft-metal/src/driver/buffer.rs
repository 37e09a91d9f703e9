//! Memory of host and device that gives itself back.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use undraft_core::{bf16, f16};

use super::{BufferHandle, Driver, Slice};
use crate::error::{MetalError, Result};

/// What a [`DeviceBuffer`] holds.
///
/// # Safety
/// The type has no padding, and any bytes are a value of it.
pub unsafe trait DeviceElement: Copy + Send + Sync + 'static {}

macro_rules! device_elements {
    ($($t:ty),*) => {
        $(
            // SAFETY: a number without padding, of which any bits are one.
            unsafe impl DeviceElement for $t {}
        )*
    };
}
device_elements!(u8, i32, u32, i64, u64, f32, bf16, f16);

fn bytes<T: DeviceElement>(x: &[T]) -> &[u8] {
    // SAFETY: the type has no padding, so that all bytes of the slice are initialised; u8 is aligned anywhere.
    unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), size_of_val(x)) }
}
fn bytes_mut<T: DeviceElement>(x: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and any bytes that are written are values.
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), size_of_val(x)) }
}

/// Elements in memory that host and device share, given back when dropped. A buffer without elements has no memory.
///
/// Offsets and lengths count elements. Reading and writing do not wait: whoever encodes work on the buffer (which is `unsafe`)
/// sees to it that nothing else touches it, and that it is not dropped, before the work is done.
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    driver: Arc<dyn Driver>,
    handle: Option<BufferHandle>,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: DeviceElement> DeviceBuffer<T> {
    /// `len` elements of arbitrary value.
    ///
    /// # Errors
    /// If there is not so much memory.
    pub fn uninit(driver: &Arc<dyn Driver>, len: usize) -> Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(MetalError::TooLarge { elements: len })?;
        let handle = if bytes == 0 { None } else { Some(driver.alloc(bytes)?) };
        Ok(Self { driver: driver.clone(), handle, len, elements: PhantomData })
    }
    /// A copy of host memory.
    ///
    /// # Errors
    /// If there is not so much memory, or the device fails.
    pub fn from_slice(driver: &Arc<dyn Driver>, from: &[T]) -> Result<Self> {
        let mut buffer = Self::uninit(driver, from.len())?;
        buffer.write(0, from)?;
        Ok(buffer)
    }

    /// All of it; [`Slice::NONE`] where there are no elements.
    pub fn slice(&self) -> Slice {
        self.handle.map_or(Slice::NONE, |handle| Slice::new(handle, 0))
    }
    /// From an element on, or from the end.
    ///
    /// # Errors
    /// [`MetalError::OutOfBuffer`] beyond the end.
    pub fn slice_from(&self, element: usize) -> Result<Slice> {
        let bytes = self.range(element..element)?;
        Ok(self.handle.map_or(Slice::NONE, |handle| Slice::new(handle, bytes.start)))
    }
    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies host memory to the elements from `at` on.
    ///
    /// # Errors
    /// [`MetalError::OutOfBuffer`] beyond the end; or if the device fails.
    pub fn write(&mut self, at: usize, from: &[T]) -> Result<()> {
        let range = self.range(at..at.saturating_add(from.len()))?;
        match self.handle {
            // SAFETY: the range lies in this buffer, which is borrowed mutably; see the type for work on it.
            Some(handle) if !range.is_empty() => unsafe { self.driver.write(handle, range.start, bytes(from)) },
            _ => Ok(()),
        }
    }
    /// Copies the elements from `at` on to host memory.
    ///
    /// # Errors
    /// [`MetalError::OutOfBuffer`] beyond the end; or if the device fails.
    pub fn read(&self, at: usize, to: &mut [T]) -> Result<()> {
        let range = self.range(at..at.saturating_add(to.len()))?;
        match self.handle {
            // SAFETY: the range lies in this buffer; see the type for work on it.
            Some(handle) if !range.is_empty() => unsafe { self.driver.read(handle, range.start, bytes_mut(to)) },
            _ => Ok(()),
        }
    }

    /// Bytes of a range of elements.
    fn range(&self, elements: Range<usize>) -> Result<Range<usize>> {
        if elements.start > elements.end || elements.end > self.len {
            return Err(MetalError::OutOfBuffer { start: elements.start, end: elements.end, len: self.len });
        }
        Ok(elements.start * size_of::<T>()..elements.end * size_of::<T>())
    }
}

impl<T> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            // SAFETY: allocated by `uninit`, freed here alone; see the type for work on it.
            let _ = unsafe { self.driver.free(handle) };
        }
    }
}
