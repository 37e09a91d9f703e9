//! Reading and writing rows of any I/O dtype.

use half::slice::HalfFloatSliceExt;
use undraft_core::{DType, Data, DataMut, Rows, RowsMut, bf16, f16};

use crate::shared::SharedMut;

/// Copies `to.len()` elements of `rows`, from `column` of row `row`, as f32 (exactly).
#[inline]
pub(crate) fn read_f32(rows: &Rows<'_>, row: usize, column: usize, to: &mut [f32]) {
    let start = row * rows.row_stride + column;
    let range = start..start + to.len();
    match rows.data {
        Data::F32(d) => to.copy_from_slice(&d[range]),
        Data::Bf16(d) => d[range].convert_to_f32_slice(to),
        Data::F16(d) => d[range].convert_to_f32_slice(to),
    }
}

/// Rows to write, shared by tasks.
pub(crate) struct SharedRows<'a> {
    data: SharedData<'a>,
    row_stride: usize,
}

enum SharedData<'a> {
    F32(SharedMut<'a, f32>),
    Bf16(SharedMut<'a, bf16>),
    F16(SharedMut<'a, f16>),
}

impl<'a> SharedRows<'a> {
    pub(crate) fn new(rows: RowsMut<'a>) -> Self {
        let data = match rows.data {
            DataMut::F32(d) => SharedData::F32(SharedMut::new(d)),
            DataMut::Bf16(d) => SharedData::Bf16(SharedMut::new(d)),
            DataMut::F16(d) => SharedData::F16(SharedMut::new(d)),
        };
        Self { data, row_stride: rows.row_stride }
    }

    /// Element type.
    pub(crate) fn dtype(&self) -> DType {
        match self.data {
            SharedData::F32(_) => DType::F32,
            SharedData::Bf16(_) => DType::Bf16,
            SharedData::F16(_) => DType::F16,
        }
    }
    /// Elements between the starts of two rows.
    pub(crate) fn row_stride(&self) -> usize {
        self.row_stride
    }
    /// Where an element lies: for prefetching, not for reading.
    pub(crate) fn address(&self, row: usize, column: usize) -> *const u8 {
        let index = row * self.row_stride + column;
        match &self.data {
            SharedData::F32(d) => d.addresses(index..index).start.cast(),
            SharedData::Bf16(d) => d.addresses(index..index).start.cast(),
            SharedData::F16(d) => d.addresses(index..index).start.cast(),
        }
    }

    /// Reads `to.len()` elements from `column` of row `row` on, as f32 (exactly).
    ///
    /// # Safety
    /// No other thread writes these elements meanwhile.
    #[inline]
    pub(crate) unsafe fn read(&self, row: usize, column: usize, to: &mut [f32]) {
        let start = row * self.row_stride + column;
        let range = start..start + to.len();
        // SAFETY: the caller promises that nobody else writes this range; the part lives for one statement.
        unsafe {
            match &self.data {
                SharedData::F32(d) => to.copy_from_slice(d.part(range)),
                SharedData::Bf16(d) => d.part(range).convert_to_f32_slice(to),
                SharedData::F16(d) => d.part(range).convert_to_f32_slice(to),
            }
        }
    }

    /// Writes `from` at `column` of row `row`, rounded to nearest even.
    ///
    /// # Safety
    /// No other thread reads or writes these elements meanwhile.
    #[inline]
    pub(crate) unsafe fn write(&self, row: usize, column: usize, from: &[f32]) {
        let start = row * self.row_stride + column;
        let range = start..start + from.len();
        // SAFETY: the caller promises that nobody else touches this range; the part lives for one statement.
        unsafe {
            match &self.data {
                SharedData::F32(d) => d.part(range).copy_from_slice(from),
                SharedData::Bf16(d) => d.part(range).convert_from_f32_slice(from),
                SharedData::F16(d) => d.part(range).convert_from_f32_slice(from),
            }
        }
    }
}
