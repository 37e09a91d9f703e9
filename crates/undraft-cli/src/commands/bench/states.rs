//! States of any dtype to rotate through.

use std::ops::Range;

use anyhow::Result;
use undraft::cpu::{AlignedBuffer, Executor, SharedMut};
use undraft::{DType, DataMut, bf16, f16};

/// States, filled with numbers that differ.
pub enum States {
    F32(AlignedBuffer),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

impl States {
    pub fn new(dtype: DType, len: usize) -> Result<Self> {
        Ok(match dtype {
            DType::F32 => {
                let mut states = AlignedBuffer::zeroed(len)?;
                super::measure::fill(&mut states);
                Self::F32(states)
            }
            DType::Bf16 => Self::Bf16((0..len).map(|i| bf16::from_f32((i % 101) as f32 / 101.0 - 0.5)).collect()),
            DType::F16 => Self::F16((0..len).map(|i| f16::from_f32((i % 101) as f32 / 101.0 - 0.5)).collect()),
        })
    }
    pub fn all_mut(&mut self) -> DataMut<'_> {
        match self {
            Self::F32(d) => DataMut::F32(d),
            Self::Bf16(d) => DataMut::Bf16(d),
            Self::F16(d) => DataMut::F16(d),
        }
    }
    /// Copies elements of the same dtype, each thread its part.
    pub fn copy_from(&mut self, to: Range<usize>, from: &Self, range: Range<usize>, executor: &dyn Executor) {
        match (self, from) {
            (Self::F32(to_all), Self::F32(from)) => copy(&mut to_all[to], &from[range], executor),
            (Self::Bf16(to_all), Self::Bf16(from)) => copy(&mut to_all[to], &from[range], executor),
            (Self::F16(to_all), Self::F16(from)) => copy(&mut to_all[to], &from[range], executor),
            _ => unreachable!("all states of a run have one dtype"),
        }
    }
}

fn copy<T: Copy + Send + Sync>(to: &mut [T], from: &[T], executor: &dyn Executor) {
    let (len, parts) = (to.len(), executor.num_threads());
    let shared = SharedMut::new(to);
    executor.run(parts, &|part| {
        let range = part * len / parts..(part + 1) * len / parts;
        // SAFETY: each part belongs to one task.
        unsafe { shared.part(range.clone()) }.copy_from_slice(&from[range]);
    });
}
