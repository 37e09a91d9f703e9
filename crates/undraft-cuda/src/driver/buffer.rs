//! Device memory that gives itself back.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use undraft_core::{bf16, f16};

use super::{DevicePtr, Driver, Stream};
use crate::error::{CudaError, Result};

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

/// Elements in device memory, given back when dropped. A buffer without elements has no memory, and the address 0.
///
/// Offsets and lengths count elements. Work is put on the given stream, which must be of the buffer's driver; what
/// other streams do with the buffer is the caller's to order, by [`Stream::synchronize`].
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    driver: Arc<dyn Driver>,
    address: DevicePtr,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: DeviceElement> DeviceBuffer<T> {
    /// `len` elements of arbitrary value.
    ///
    /// # Errors
    /// If there is not so much memory.
    pub fn uninit(driver: &Arc<dyn Driver>, len: usize) -> Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(CudaError::TooLarge { elements: len })?;
        let address = if bytes == 0 { 0 } else { driver.alloc(bytes)? };
        Ok(Self { driver: driver.clone(), address, len, elements: PhantomData })
    }
    /// `len` elements of which all bytes are 0.
    ///
    /// # Errors
    /// If there is not so much memory, or the driver fails.
    pub fn zeroed(stream: &Stream, len: usize) -> Result<Self> {
        let mut buffer = Self::uninit(stream.driver(), len)?;
        buffer.fill(stream, 0)?;
        Ok(buffer)
    }
    /// A copy of host memory.
    ///
    /// # Errors
    /// If there is not so much memory, or the driver fails.
    pub fn from_slice(stream: &Stream, from: &[T]) -> Result<Self> {
        let mut buffer = Self::uninit(stream.driver(), from.len())?;
        buffer.write(stream, 0, from)?;
        Ok(buffer)
    }

    /// Address of the first element; 0 where there is none.
    pub fn address(&self) -> DevicePtr {
        self.address
    }
    /// Address of an element, or of the end.
    ///
    /// # Errors
    /// [`CudaError::OutOfBuffer`] beyond the end.
    pub fn address_of(&self, element: usize) -> Result<DevicePtr> {
        self.range(element..element).map(|(address, _)| address)
    }
    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies host memory to the elements from `at` on. Returns once `from` has been read (memory that was page-locked is
    /// read later, and must stay as it is until the stream has been synchronised).
    ///
    /// # Errors
    /// [`CudaError::OutOfBuffer`] beyond the end, [`CudaError::ForeignStream`]; or if the driver fails.
    pub fn write(&mut self, stream: &Stream, at: usize, from: &[T]) -> Result<()> {
        let (to, bytes_len) = self.checked(stream, at..at.saturating_add(from.len()))?;
        if bytes_len == 0 {
            return Ok(());
        }
        // SAFETY: the range lies in this buffer, which is borrowed mutably; `from` is as long.
        unsafe { self.driver.copy_to_device(stream.handle(), to, bytes(from)) }
    }
    /// Copies the elements from `at` on to host memory, and waits until they are there.
    ///
    /// # Errors
    /// [`CudaError::OutOfBuffer`] beyond the end, [`CudaError::ForeignStream`]; or if the driver fails, also for work that
    /// was put on the stream before.
    pub fn read(&self, stream: &Stream, at: usize, to: &mut [T]) -> Result<()> {
        let (from, bytes_len) = self.checked(stream, at..at.saturating_add(to.len()))?;
        if bytes_len == 0 {
            return Ok(());
        }
        // SAFETY: the range lies in this buffer; `to` is as long, and borrowed until the stream has been synchronised.
        unsafe { self.driver.copy_to_host(stream.handle(), bytes_mut(to), from)? };
        stream.synchronize()
    }
    /// Copies elements of another buffer to those from `at` on.
    ///
    /// # Errors
    /// [`CudaError::OutOfBuffer`] beyond the end of either, [`CudaError::ForeignStream`]; or if the driver fails.
    pub fn copy_from(&mut self, stream: &Stream, at: usize, from: &Self, elements: Range<usize>) -> Result<()> {
        let (source, bytes_len) = from.checked(stream, elements.clone())?;
        let (to, _) = self.checked(stream, at..at.saturating_add(elements.len()))?;
        if bytes_len == 0 {
            return Ok(());
        }
        // SAFETY: both ranges lie in their buffers and are as long; a buffer that is borrowed mutably is not the other one.
        unsafe { self.driver.copy_on_device(stream.handle(), to, source, bytes_len) }
    }
    /// Sets all bytes of all elements.
    ///
    /// # Errors
    /// [`CudaError::ForeignStream`]; or if the driver fails.
    pub fn fill(&mut self, stream: &Stream, value: u8) -> Result<()> {
        let (at, bytes_len) = self.checked(stream, 0..self.len)?;
        if bytes_len == 0 {
            return Ok(());
        }
        // SAFETY: all of this buffer, which is borrowed mutably.
        unsafe { self.driver.fill(stream.handle(), at, value, bytes_len) }
    }

    /// Address and bytes of a range.
    fn range(&self, elements: Range<usize>) -> Result<(DevicePtr, usize)> {
        if elements.start > elements.end || elements.end > self.len {
            return Err(CudaError::OutOfBuffer { start: elements.start, end: elements.end, len: self.len });
        }
        Ok((self.address + (elements.start * size_of::<T>()) as u64, elements.len() * size_of::<T>()))
    }
    fn checked(&self, stream: &Stream, elements: Range<usize>) -> Result<(DevicePtr, usize)> {
        if !Arc::ptr_eq(&self.driver, stream.driver()) {
            return Err(CudaError::ForeignStream);
        }
        self.range(elements)
    }
}

impl<T> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if self.address != 0 {
            // SAFETY: allocated by `uninit`, freed here alone.
            let _ = unsafe { self.driver.free(self.address) };
        }
    }
}
