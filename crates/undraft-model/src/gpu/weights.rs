//! Weights as they lie on the device.

use half::slice::HalfFloatSliceExt;
use undraft::metal::raw::Elements;
use undraft::{bf16, f16};

use super::device::Gpu;
use crate::error::{ModelError, Result};
use crate::load;

/// Matrices `[out_features, in_features]`, one or several of the same sizes behind one another; `in_features` is a multiple
/// of 4.
#[derive(Debug)]
pub struct Matrix<G: Gpu> {
    data: G::Weights,
    memory: usize,
    num_matrices: usize,
    out_features: usize,
    in_features: usize,
}

/// What matrices are made of: rows behind one another, all of one type.
#[derive(Debug)]
pub enum Parts<'a> {
    /// f32.
    F32(Vec<Vec<f32>>),
    /// bf16.
    Bf16(Vec<&'a [bf16]>),
    /// f16.
    F16(Vec<&'a [f16]>),
}

impl<'a> Parts<'a> {
    /// In the type that the file has; parts of different types are widened, which changes no value.
    fn new(parts: &[&'a load::Matrix]) -> Self {
        let bf16: Option<Vec<_>> = parts.iter().map(|part| part.data.as_bf16()).collect();
        let f16: Option<Vec<_>> = parts.iter().map(|part| part.data.as_f16()).collect();
        match (bf16, f16) {
            (Some(parts), _) => Self::Bf16(parts),
            (_, Some(parts)) => Self::F16(parts),
            _ => Self::F32(parts.iter().map(|part| part.data.to_f32()).collect()),
        }
    }

    /// Bytes.
    pub fn memory(&self) -> usize {
        match self {
            Self::F32(parts) => parts.iter().map(|part| size_of_val(part.as_slice())).sum(),
            Self::Bf16(parts) => parts.iter().map(|part| size_of_val(*part)).sum(),
            Self::F16(parts) => parts.iter().map(|part| size_of_val(*part)).sum(),
        }
    }
    /// The type, as kernels know it.
    pub fn elements(&self) -> Elements {
        match self {
            Self::F32(_) => Elements::F32,
            Self::Bf16(_) => Elements::Bf16,
            Self::F16(_) => Elements::F16,
        }
    }
    /// Bytes of every part.
    pub fn bytes(&self) -> Vec<&[u8]> {
        match self {
            Self::F32(parts) => parts.iter().map(|part| bytemuck::cast_slice(part)).collect(),
            Self::Bf16(parts) => parts.iter().map(|part| bytemuck::cast_slice(part.reinterpret_cast())).collect(),
            Self::F16(parts) => parts.iter().map(|part| bytemuck::cast_slice(part.reinterpret_cast())).collect(),
        }
    }
}

impl<G: Gpu> Matrix<G> {
    pub(super) fn upload(gpu: &G, matrix: &load::Matrix) -> Result<Self> {
        Self::joined(gpu, &[matrix])
    }

    /// One matrix of the rows of several: their products are one launch.
    pub(super) fn joined(gpu: &G, parts: &[&load::Matrix]) -> Result<Self> {
        Self::stacked(gpu, parts, 1)
    }

    /// `num_matrices` matrices of equally many of the parts each, in order.
    pub(super) fn stacked(gpu: &G, parts: &[&load::Matrix], num_matrices: usize) -> Result<Self> {
        let in_features = parts.first().map_or(0, |part| part.in_features);
        if !in_features.is_multiple_of(4) {
            return Err(ModelError::NotOnDevice {
                device: G::NAME,
                what: format!("a matrix of {in_features} columns, no multiple of 4,"),
                hint: "run the model on the CPU",
            });
        }
        let out_features = parts.iter().map(|part| part.out_features).sum::<usize>() / num_matrices;
        let parts = Parts::new(parts);
        Ok(Self { data: gpu.upload(&parts)?, memory: parts.memory(), num_matrices, out_features, in_features })
    }

    /// The elements.
    pub fn data(&self) -> &G::Weights {
        &self.data
    }
    /// Matrices.
    pub fn num_matrices(&self) -> usize {
        self.num_matrices
    }
    /// Rows of a matrix.
    pub fn out_features(&self) -> usize {
        self.out_features
    }
    /// Columns.
    pub fn in_features(&self) -> usize {
        self.in_features
    }
    /// Bytes.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }
}

/// An RMS norm.
#[derive(Debug)]
pub struct Norm<G: Gpu> {
    factor: G::Buffer<f32>,
    eps: f32,
}

impl<G: Gpu> Norm<G> {
    /// From a zero-centred weight.
    pub(super) fn upload(gpu: &G, weight: &[f32], eps: f64) -> Result<Self> {
        let factor: Vec<f32> = weight.iter().map(|w| 1.0 + w).collect();
        Ok(Self { factor: gpu.copy_of(&factor)?, eps: eps as f32 })
    }

    /// What a row is multiplied by: 1 + the zero-centred weight.
    pub fn factor(&self) -> &G::Buffer<f32> {
        &self.factor
    }
    /// Added to the mean of squares.
    pub fn eps(&self) -> f32 {
        self.eps
    }
}
