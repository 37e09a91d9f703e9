//! A device with its kernels looked up, and buffers that are copied to it and back.

use std::sync::{Arc, OnceLock};

use undraft_core::{DType, Data, DataMut, Rows, bf16, f16};

use crate::driver::{self, DeviceAttributes, DeviceBuffer, DevicePtr, Driver, Function, Stream};
use crate::error::Result;
use crate::nvrtc;
use crate::raw::Elements;
use crate::select::{Kernel, Recurrent};

/// The kernels of a driver, ready to be launched.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) driver: Arc<dyn Driver>,
    /// In the order of [`Kernel::all`].
    functions: Vec<Function>,
    /// Of heads of 32, 64 and so on to 256, in the order of [`Recurrent::compiled`], where they were asked for.
    compiled: [OnceLock<Vec<Function>>; 8],
}

impl Device {
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Result<Self> {
        driver::check_capability(driver.attributes())?;
        let functions = Kernel::all().iter().map(|kernel| driver.function(&kernel.name())).collect::<Result<_>>()?;
        Ok(Self { driver, functions, compiled: Default::default() })
    }

    pub(crate) fn attributes(&self) -> &DeviceAttributes {
        self.driver.attributes()
    }
    pub(crate) fn get(&self, kernel: Kernel) -> Function {
        if let Kernel::Recurrent(kernel) = kernel
            && let (Some(functions), Some(index)) = (self.compiled_for(kernel.padded_k()), kernel.index_of_compiled())
        {
            return functions[index];
        }
        self.functions[kernel.index()]
    }

    /// Kernels compiled for a head size.
    pub(crate) fn compiled_for(&self, head_k_dim: usize) -> Option<&Vec<Function>> {
        let place = (head_k_dim / 32).checked_sub(1).filter(|_| head_k_dim.is_multiple_of(32))?;
        self.compiled.get(place)?.get()
    }

    /// Compiles them, unless the fat binary has them or the size is none that has kernels of its own.
    pub(crate) fn compile_for(&self, head_k_dim: usize) -> Result<bool> {
        let Some(kernels) = Recurrent::compiled(head_k_dim) else {
            return Ok(false);
        };
        let place = &self.compiled[head_k_dim / 32 - 1];
        if place.get().is_none() {
            let names: Vec<String> = kernels.iter().map(|&kernel| Kernel::Recurrent(kernel).name()).collect();
            let functions = self.driver.compile(&nvrtc::source(head_k_dim), &names)?;
            // Two threads may have compiled them; either's do.
            let _ = place.set(functions);
        }
        Ok(true)
    }
}

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
    fn address(&self) -> DevicePtr {
        match self {
            AnyBuffer::F32(b) => b.address(),
            AnyBuffer::Bf16(b) => b.address(),
            AnyBuffer::F16(b) => b.address(),
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
    pub(crate) fn upload(stream: &Stream, rows: &Rows<'_>) -> Result<Self> {
        let data = match rows.data {
            Data::F32(d) => AnyBuffer::F32(DeviceBuffer::from_slice(stream, d)?),
            Data::Bf16(d) => AnyBuffer::Bf16(DeviceBuffer::from_slice(stream, d)?),
            Data::F16(d) => AnyBuffer::F16(DeviceBuffer::from_slice(stream, d)?),
        };
        Ok(Self { data, row_stride: rows.row_stride })
    }
    pub(crate) fn address(&self) -> DevicePtr {
        self.data.address()
    }
    /// Address, stride and element type.
    pub(crate) fn tensor(&self) -> (DevicePtr, i64, Elements) {
        (self.data.address(), self.row_stride as i64, self.data.dtype().into())
    }
}

impl<'a> Output<'a> {
    pub(crate) fn upload(stream: &Stream, to: DataMut<'a>) -> Result<Self> {
        let data = match &to {
            DataMut::F32(d) => AnyBuffer::F32(DeviceBuffer::from_slice(stream, d)?),
            DataMut::Bf16(d) => AnyBuffer::Bf16(DeviceBuffer::from_slice(stream, d)?),
            DataMut::F16(d) => AnyBuffer::F16(DeviceBuffer::from_slice(stream, d)?),
        };
        Ok(Self { data, to })
    }
    pub(crate) fn address(&self) -> DevicePtr {
        self.data.address()
    }
    pub(crate) fn dtype(&self) -> DType {
        self.data.dtype()
    }
    pub(crate) fn download(self, stream: &Stream) -> Result<()> {
        match (&self.data, self.to) {
            (AnyBuffer::F32(from), DataMut::F32(to)) => from.read(stream, 0, to),
            (AnyBuffer::Bf16(from), DataMut::Bf16(to)) => from.read(stream, 0, to),
            (AnyBuffer::F16(from), DataMut::F16(to)) => from.read(stream, 0, to),
            // `upload` made the buffer of the same element type.
            _ => Ok(()),
        }
    }
}
