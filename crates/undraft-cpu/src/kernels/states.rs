//! Recurrent states of any dtype, shared by tasks and carried through the kernels as rows of f32.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use undraft_core::{DType, DataMut, bf16, f16};

use super::state_rows::Row;
use crate::shared::SharedMut;

/// States that tasks share.
#[derive(Clone, Copy)]
pub(super) enum SharedStates<'a> {
    F32(SharedMut<'a, f32>),
    Bf16(SharedMut<'a, bf16>),
    F16(SharedMut<'a, f16>),
}

impl<'a> SharedStates<'a> {
    pub(super) fn new(states: DataMut<'a>) -> Self {
        match states {
            DataMut::F32(d) => Self::F32(SharedMut::new(d)),
            DataMut::Bf16(d) => Self::Bf16(SharedMut::new(d)),
            DataMut::F16(d) => Self::F16(SharedMut::new(d)),
        }
    }
    pub(super) fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::Bf16(_) => DType::Bf16,
            Self::F16(_) => DType::F16,
        }
    }
    /// Where elements lie: for prefetching, not for reading.
    #[inline(always)]
    pub(super) fn addresses(&self, range: Range<usize>) -> Range<*const u8> {
        fn bytes<T>(range: Range<*const T>) -> Range<*const u8> {
            range.start.cast()..range.end.cast()
        }
        match self {
            Self::F32(d) => bytes(d.addresses(range)),
            Self::Bf16(d) => bytes(d.addresses(range)),
            Self::F16(d) => bytes(d.addresses(range)),
        }
    }

    /// Reads rows of `k_dim` elements from `start` on, padded with zeros.
    ///
    /// # Safety
    /// No other thread writes these elements meanwhile, and no part that overlaps them lives.
    #[inline(always)]
    pub(super) unsafe fn load<const CH: usize>(&self, start: usize, k_dim: usize, to: &mut [Row<CH>]) {
        let range = start..start + to.len() * k_dim;
        // SAFETY: the caller's promise; each part ends with its statement.
        unsafe {
            match self {
                Self::F32(d) => read(d.part(range), k_dim, to, <[f32]>::copy_from_slice),
                // A bf16 is the upper half of an f32, so that plain shifts turn into vector code.
                Self::Bf16(d) => read(d.part(range), k_dim, to, |to, from| {
                    for (to, from) in to.iter_mut().zip(from) {
                        *to = f32::from_bits(u32::from(from.to_bits()) << 16);
                    }
                }),
                Self::F16(d) => read(d.part(range), k_dim, to, |to, from| from.convert_to_f32_slice(to)),
            }
        }
    }

    /// Writes rows of `k_dim` elements from `start` on. They were rounded to the dtype before.
    ///
    /// # Safety
    /// No other thread touches these elements meanwhile, and no part that overlaps them lives.
    #[inline(always)]
    pub(super) unsafe fn store<const CH: usize>(&self, start: usize, k_dim: usize, from: &[Row<CH>]) {
        let range = start..start + from.len() * k_dim;
        // SAFETY: the caller's promise; each part ends with its statement.
        unsafe {
            match self {
                Self::F32(d) => write(d.part(range), k_dim, from, <[f32]>::copy_from_slice),
                Self::Bf16(d) => write(d.part(range), k_dim, from, |to, from| {
                    for (to, from) in to.iter_mut().zip(from) {
                        *to = bf16::from_bits((from.to_bits() >> 16) as u16);
                    }
                }),
                Self::F16(d) => write(d.part(range), k_dim, from, |to, from| to.convert_from_f32_slice(from)),
            }
        }
    }
}

#[inline(always)]
fn read<T, const CH: usize>(from: &[T], k_dim: usize, to: &mut [Row<CH>], copy: impl Fn(&mut [f32], &[T])) {
    for (to, from) in to.iter_mut().zip(from.chunks_exact(k_dim)) {
        let (values, padding) = to.as_flattened_mut().split_at_mut(k_dim);
        copy(values, from);
        padding.fill(0.0);
    }
}

#[inline(always)]
fn write<T, const CH: usize>(to: &mut [T], k_dim: usize, from: &[Row<CH>], copy: impl Fn(&mut [T], &[f32])) {
    for (to, from) in to.chunks_exact_mut(k_dim).zip(from) {
        copy(to, &from.as_flattened()[..k_dim]);
    }
}
