//! Weights as they lie on the device.

use undraft::cuda::driver::{DeviceElement, DevicePtr, Stream};
use undraft::cuda::raw::Elements;
use undraft::cuda::{CudaError, DeviceBuffer};
use undraft::{bf16, f16};

use super::DEVICE;
use crate::error::{ModelError, Result};
use crate::load;

/// Matrices `[out_features, in_features]`, one or several of the same sizes behind one another.
#[derive(Debug)]
pub(super) struct Matrix {
    data: Data,
    pub(super) num_matrices: usize,
    pub(super) out_features: usize,
    pub(super) in_features: usize,
}

#[derive(Debug)]
enum Data {
    F32(DeviceBuffer<f32>),
    Bf16(DeviceBuffer<bf16>),
    F16(DeviceBuffer<f16>),
}

impl Matrix {
    pub(super) fn upload(stream: &Stream, matrix: &load::Matrix) -> Result<Self> {
        Self::joined(stream, &[matrix])
    }

    /// One matrix of the rows of several: their products are one launch.
    pub(super) fn joined(stream: &Stream, parts: &[&load::Matrix]) -> Result<Self> {
        Self::stacked(stream, parts, 1)
    }

    /// `num_matrices` matrices of equally many of the parts each, in order.
    pub(super) fn stacked(stream: &Stream, parts: &[&load::Matrix], num_matrices: usize) -> Result<Self> {
        let in_features = parts.first().map_or(0, |part| part.in_features);
        if !in_features.is_multiple_of(4) {
            return Err(ModelError::NotOnDevice {
                device: DEVICE,
                what: format!("a matrix of {in_features} columns, no multiple of 4,"),
                hint: "run the model on the CPU",
            });
        }
        let out_features = parts.iter().map(|part| part.out_features).sum::<usize>() / num_matrices;
        let data = Data::upload(stream, parts)?;
        Ok(Self { data, num_matrices, out_features, in_features })
    }

    pub(super) fn address(&self) -> DevicePtr {
        match &self.data {
            Data::F32(buffer) => buffer.address(),
            Data::Bf16(buffer) => buffer.address(),
            Data::F16(buffer) => buffer.address(),
        }
    }
    pub(super) fn elements(&self) -> Elements {
        match &self.data {
            Data::F32(_) => Elements::F32,
            Data::Bf16(_) => Elements::Bf16,
            Data::F16(_) => Elements::F16,
        }
    }
    /// Bytes.
    pub(super) fn memory(&self) -> usize {
        match &self.data {
            Data::F32(buffer) => 4 * buffer.len(),
            Data::Bf16(buffer) => 2 * buffer.len(),
            Data::F16(buffer) => 2 * buffer.len(),
        }
    }
}

impl Data {
    /// In the type that the file has; parts of different types are widened, which changes no value.
    fn upload(stream: &Stream, parts: &[&load::Matrix]) -> Result<Self, CudaError> {
        let bf16: Option<Vec<&[bf16]>> = parts.iter().map(|part| part.data.as_bf16()).collect();
        let f16: Option<Vec<&[f16]>> = parts.iter().map(|part| part.data.as_f16()).collect();
        Ok(match (bf16, f16) {
            (Some(parts), _) => Data::Bf16(concatenated(stream, &parts)?),
            (_, Some(parts)) => Data::F16(concatenated(stream, &parts)?),
            _ => {
                let parts: Vec<Vec<f32>> = parts.iter().map(|part| part.data.to_f32()).collect();
                Data::F32(concatenated(stream, &parts.iter().map(Vec::as_slice).collect::<Vec<_>>())?)
            }
        })
    }
}

fn concatenated<T: DeviceElement>(stream: &Stream, parts: &[&[T]]) -> Result<DeviceBuffer<T>, CudaError> {
    let mut buffer = DeviceBuffer::uninit(stream.driver(), parts.iter().map(|part| part.len()).sum())?;
    let mut at = 0;
    for part in parts {
        buffer.write(stream, at, part)?;
        at += part.len();
    }
    Ok(buffer)
}

/// An RMS norm: what the row is multiplied by.
#[derive(Debug)]
pub(super) struct Norm {
    pub(super) factor: DeviceBuffer<f32>,
    pub(super) eps: f32,
}

impl Norm {
    /// From a zero-centred weight.
    pub(super) fn upload(stream: &Stream, weight: &[f32], eps: f64) -> Result<Self> {
        let factor: Vec<f32> = weight.iter().map(|w| 1.0 + w).collect();
        Ok(Self { factor: vector(stream, &factor)?, eps: eps as f32 })
    }
}

pub(super) fn vector(stream: &Stream, values: &[f32]) -> Result<DeviceBuffer<f32>> {
    Ok(DeviceBuffer::from_slice(stream, values)?)
}
