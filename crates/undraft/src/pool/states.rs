//! Recurrent states of one layer in the pool's dtype.

use std::ops::Range;

use undraft_core::{DType, Data, DataMut, bf16, f16};
use undraft_cpu::AlignedBuffer;

use crate::error::{Error, Result};

/// Elements of one dtype; f32 on cache lines.
#[derive(Clone, Debug)]
pub(crate) enum StateBuffer {
    F32(AlignedBuffer),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

impl StateBuffer {
    /// Zeros, `factors` multiplied.
    pub(crate) fn zeros(what: &'static str, dtype: DType, factors: &[usize]) -> Result<Self> {
        Ok(match dtype {
            DType::F32 => {
                let len = product(what, 4, factors)?;
                let refused = |_| Error::OutOfMemory { bytes: len * 4, what };
                Self::F32(AlignedBuffer::zeroed(len).map_err(refused)?)
            }
            DType::Bf16 => Self::Bf16(zeros(what, bf16::ZERO, factors)?),
            DType::F16 => Self::F16(zeros(what, f16::ZERO, factors)?),
        })
    }
    pub(crate) fn dtype(&self) -> DType {
        self.data(0..0).dtype()
    }
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::F32(d) => d.len(),
            Self::Bf16(d) => d.len(),
            Self::F16(d) => d.len(),
        }
    }
    pub(crate) fn data(&self, range: Range<usize>) -> Data<'_> {
        match self {
            Self::F32(d) => Data::F32(&d[range]),
            Self::Bf16(d) => Data::Bf16(&d[range]),
            Self::F16(d) => Data::F16(&d[range]),
        }
    }
    pub(crate) fn data_mut(&mut self, range: Range<usize>) -> DataMut<'_> {
        match self {
            Self::F32(d) => DataMut::F32(&mut d[range]),
            Self::Bf16(d) => DataMut::Bf16(&mut d[range]),
            Self::F16(d) => DataMut::F16(&mut d[range]),
        }
    }
    pub(crate) fn all_mut(&mut self) -> DataMut<'_> {
        self.data_mut(0..self.len())
    }
    pub(crate) fn clear(&mut self, range: Range<usize>) {
        match self {
            Self::F32(d) => d[range].fill(0.0),
            Self::Bf16(d) => d[range].fill(bf16::ZERO),
            Self::F16(d) => d[range].fill(f16::ZERO),
        }
    }
    pub(crate) fn copy_within(&mut self, from: Range<usize>, to: usize) {
        match self {
            Self::F32(d) => d.copy_within(from, to),
            Self::Bf16(d) => d.copy_within(from, to),
            Self::F16(d) => d.copy_within(from, to),
        }
    }
    /// Copies elements of a buffer of the same dtype; gives false, and copies nothing, if it has another one.
    #[must_use]
    pub(crate) fn copy_from(&mut self, to: Range<usize>, from: &Self, range: Range<usize>) -> bool {
        match (self, from) {
            (Self::F32(to_all), Self::F32(from)) => to_all[to].copy_from_slice(&from[range]),
            (Self::Bf16(to_all), Self::Bf16(from)) => to_all[to].copy_from_slice(&from[range]),
            (Self::F16(to_all), Self::F16(from)) => to_all[to].copy_from_slice(&from[range]),
            _ => return false,
        }
        true
    }
}

fn product(what: &'static str, element: usize, factors: &[usize]) -> Result<usize> {
    let len = factors.iter().try_fold(1usize, |n, &f| n.checked_mul(f));
    len.filter(|&n| n <= isize::MAX as usize / element).ok_or(Error::OutOfMemory { bytes: usize::MAX, what })
}

/// `factors` multiplied copies of `zero`.
pub(crate) fn zeros<T: Clone>(what: &'static str, zero: T, factors: &[usize]) -> Result<Vec<T>> {
    let len = product(what, size_of::<T>(), factors)?;
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(len).map_err(|_| Error::OutOfMemory { bytes: len * size_of::<T>(), what })?;
    buffer.resize(len, zero);
    Ok(buffer)
}
