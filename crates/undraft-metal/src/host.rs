//! Tensors of host memory, copied to a device and back.

use std::sync::Arc;

use undraft_core::{DType, Data, DataMut, Rows, bf16, f16};

use crate::driver::{DeviceBuffer, Driver, Slice};
use crate::error::Result;
use crate::raw::Elements;

/// A matrix to read, as it lies in host memory.
pub(crate) struct Input {
    data: AnyBuffer,
    row_stride: usize,
}

/// Elements to write, with the host memory that they go back to; what the kernel does not write comes back unchanged.
pub(crate) struct Output<'a> {
    data: AnyBuffer,
    to: DataMut<'a>,
}

enum AnyBuffer {
    F32(DeviceBuffer<f32>),
    Bf16(DeviceBuffer<bf16>),
    F16(DeviceBuffer<f16>),
}

impl AnyBuffer {
    fn slice(&self) -> Slice {
        match self {
            AnyBuffer::F32(b) => b.slice(),
            AnyBuffer::Bf16(b) => b.slice(),
            AnyBuffer::F16(b) => b.slice(),
        }
    }
    fn dtype(&self) -> DType {
        match self {
            AnyBuffer::F32(_) => DType::F32,
            AnyBuffer::Bf16(_) => DType::Bf16,
            AnyBuffer::F16(_) => DType::F16,
        }
    }
}

impl Input {
    pub(crate) fn upload(driver: &Arc<dyn Driver>, rows: &Rows<'_>) -> Result<Self> {
        let data = match rows.data {
            Data::F32(d) => AnyBuffer::F32(DeviceBuffer::from_slice(driver, d)?),
            Data::Bf16(d) => AnyBuffer::Bf16(DeviceBuffer::from_slice(driver, d)?),
            Data::F16(d) => AnyBuffer::F16(DeviceBuffer::from_slice(driver, d)?),
        };
        Ok(Self { data, row_stride: rows.row_stride })
    }
    /// Place, stride and element type.
    pub(crate) fn tensor(&self) -> (Slice, i64, Elements) {
        (self.data.slice(), self.row_stride as i64, self.data.dtype().into())
    }
}

impl<'a> Output<'a> {
    pub(crate) fn upload(driver: &Arc<dyn Driver>, to: DataMut<'a>) -> Result<Self> {
        let data = match &to {
            DataMut::F32(d) => AnyBuffer::F32(DeviceBuffer::from_slice(driver, d)?),
            DataMut::Bf16(d) => AnyBuffer::Bf16(DeviceBuffer::from_slice(driver, d)?),
            DataMut::F16(d) => AnyBuffer::F16(DeviceBuffer::from_slice(driver, d)?),
        };
        Ok(Self { data, to })
    }
    pub(crate) fn slice(&self) -> Slice {
        self.data.slice()
    }
    pub(crate) fn dtype(&self) -> DType {
        self.data.dtype()
    }
    pub(crate) fn download(self) -> Result<()> {
        match (&self.data, self.to) {
            (AnyBuffer::F32(from), DataMut::F32(to)) => from.read(0, to),
            (AnyBuffer::Bf16(from), DataMut::Bf16(to)) => from.read(0, to),
            (AnyBuffer::F16(from), DataMut::F16(to)) => from.read(0, to),
            // `upload` made the buffer of the same element type.
            _ => Ok(()),
        }
    }
}
