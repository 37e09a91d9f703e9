//! Host memory that shows when it is read or written out of place.

use std::ops::Range;

use undraft_core::{DType, Data, DataMut, Rows, RowsMut, bf16, f16};

/// What fills every element that an operation must write, or must not touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poison {
    /// Bytes 0xff: a NaN in each dtype, so that reading one spoils a result.
    Nan,
    /// Bytes 0x3e: a harmless number in each dtype, so that a forgotten write is no NaN that a test might filter.
    Number,
}

impl Poison {
    fn byte(self) -> u8 {
        match self {
            Poison::Nan => 0xff,
            Poison::Number => 0x3e,
        }
    }
    /// As f32.
    pub fn f32(self) -> f32 {
        f32::from_ne_bytes([self.byte(); 4])
    }
}

/// How a case lies in memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Filling.
    pub poison: Poison,
    /// Elements before the first row, so that rows are not aligned.
    pub lead: usize,
    /// Elements between two rows.
    pub gap: usize,
    /// Whether q, k and v (or a and b, or x and z) are parts of one row.
    pub fused: bool,
}

impl Memory {
    /// Separate, contiguous, aligned as the allocator does.
    pub const PLAIN: Memory = Memory { poison: Poison::Nan, lead: 0, gap: 0, fused: false };

    /// `contiguous`, or what it is instead.
    pub fn name(self) -> &'static str {
        match (self.fused, self.gap > 0) {
            (false, false) => "contiguous",
            (false, true) => "strided",
            (true, false) => "fused",
            (true, true) => "fused+strided",
        }
    }

    /// One of four, in turn.
    pub fn nth(n: usize) -> Self {
        [
            Self::PLAIN,
            Memory { poison: Poison::Number, lead: 3, gap: 5, fused: true },
            Memory { poison: Poison::Nan, lead: 1, gap: 0, fused: true },
            Memory { poison: Poison::Number, lead: 7, gap: 16, fused: false },
        ][n % 4]
    }
}

enum Elements {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

impl Elements {
    fn poisoned(dtype: DType, len: usize, poison: Poison) -> Self {
        let half = u16::from_ne_bytes([poison.byte(); 2]);
        match dtype {
            DType::F32 => Elements::F32(vec![poison.f32(); len]),
            DType::Bf16 => Elements::Bf16(vec![bf16::from_bits(half); len]),
            DType::F16 => Elements::F16(vec![f16::from_bits(half); len]),
        }
    }
    fn len(&self) -> usize {
        match self {
            Elements::F32(d) => d.len(),
            Elements::Bf16(d) => d.len(),
            Elements::F16(d) => d.len(),
        }
    }
    fn is_poison(&self, i: usize, poison: Poison) -> bool {
        let byte = poison.byte();
        match self {
            Elements::F32(d) => d[i].to_ne_bytes() == [byte; 4],
            Elements::Bf16(d) => d[i].to_ne_bytes() == [byte; 2],
            Elements::F16(d) => d[i].to_ne_bytes() == [byte; 2],
        }
    }
    fn get(&self, i: usize) -> f32 {
        match self {
            Elements::F32(d) => d[i],
            Elements::Bf16(d) => d[i].to_f32(),
            Elements::F16(d) => d[i].to_f32(),
        }
    }
    fn bits(&self, i: usize) -> u32 {
        match self {
            Elements::F32(d) => d[i].to_bits(),
            Elements::Bf16(d) => d[i].to_bits().into(),
            Elements::F16(d) => d[i].to_bits().into(),
        }
    }
    fn set(&mut self, i: usize, x: f32) {
        match self {
            Elements::F32(d) => d[i] = x,
            Elements::Bf16(d) => d[i] = bf16::from_f32(x),
            Elements::F16(d) => d[i] = f16::from_f32(x),
        }
    }
    fn data(&self, range: Range<usize>) -> Data<'_> {
        match self {
            Elements::F32(d) => Data::F32(&d[range]),
            Elements::Bf16(d) => Data::Bf16(&d[range]),
            Elements::F16(d) => Data::F16(&d[range]),
        }
    }
    fn data_mut(&mut self, range: Range<usize>) -> DataMut<'_> {
        match self {
            Elements::F32(d) => DataMut::F32(&mut d[range]),
            Elements::Bf16(d) => DataMut::Bf16(&mut d[range]),
            Elements::F16(d) => DataMut::F16(&mut d[range]),
        }
    }
}

/// Input matrices with the same number of rows, as parts of one row or each on its own.
pub struct Inputs {
    elements: Elements,
    /// Offset of row 0 and length of a row, per part.
    parts: Vec<(usize, usize)>,
    strides: Vec<usize>,
    num_rows: usize,
}

impl Inputs {
    /// Lays out `(values, row length)` of each part; what lies between is poison.
    pub fn new(memory: Memory, dtype: DType, num_rows: usize, parts: &[(&[f32], usize)]) -> Self {
        let fused: usize = parts.iter().map(|&(_, len)| len).sum::<usize>() + memory.gap;
        let (mut offsets, mut strides, mut end) = (Vec::new(), Vec::new(), memory.lead);
        for &(_, len) in parts {
            offsets.push((end, len));
            strides.push(if memory.fused { fused } else { len + memory.gap });
            end += if memory.fused { len } else { num_rows * (len + memory.gap) + memory.lead };
        }
        let total = if memory.fused { memory.lead + num_rows.max(1) * fused } else { end + memory.lead };
        let mut inputs =
            Self { elements: Elements::poisoned(dtype, total, memory.poison), parts: offsets, strides, num_rows };
        for (part, &(values, len)) in parts.iter().enumerate() {
            assert_eq!(values.len(), num_rows * len, "a case holds all rows of its inputs");
            for row in 0..num_rows {
                for i in 0..len {
                    let at = inputs.parts[part].0 + row * inputs.strides[part] + i;
                    inputs.elements.set(at, values[row * len + i]);
                }
            }
        }
        inputs
    }
    /// A part; its data end with the last row.
    pub fn rows(&self, part: usize) -> Rows<'_> {
        let (start, len) = self.parts[part];
        let end = if self.num_rows == 0 { start } else { start + (self.num_rows - 1) * self.strides[part] + len };
        Rows { data: self.elements.data(start..end), row_stride: self.strides[part] }
    }
}

/// An output matrix: every element is poison, before, between and after its rows as well.
pub struct Outputs {
    elements: Elements,
    memory: Memory,
    num_rows: usize,
    row_len: usize,
}

/// Elements after the last row of an output, and around every other buffer.
const GUARD: usize = 19;

impl Outputs {
    /// `num_rows` rows to be written.
    pub fn new(memory: Memory, dtype: DType, num_rows: usize, row_len: usize) -> Self {
        let total = memory.lead + num_rows * (row_len + memory.gap) + GUARD;
        Self { elements: Elements::poisoned(dtype, total, memory.poison), memory, num_rows, row_len }
    }
    /// What the operation gets: the rows, the gaps and half of the guard.
    pub fn rows_mut(&mut self) -> RowsMut<'_> {
        let (start, end) = (self.memory.lead, self.elements.len() - GUARD / 2);
        RowsMut { data: self.elements.data_mut(start..end), row_stride: self.row_len + self.memory.gap }
    }
    /// The rows, widened, if nothing else was written.
    ///
    /// # Errors
    /// Where something was.
    pub fn finish(&self, arg: &str) -> Result<Vec<f32>, String> {
        let stride = self.row_len + self.memory.gap;
        for i in 0..self.elements.len() {
            let (row, column) = match i.checked_sub(self.memory.lead) {
                None => (0, usize::MAX),
                Some(at) => (at.checked_div(stride).unwrap_or(0), at.checked_rem(stride).unwrap_or(at)),
            };
            let inside = row < self.num_rows && column < self.row_len;
            if !inside && !self.elements.is_poison(i, self.memory.poison) {
                let got = self.elements.get(i);
                return Err(format!("`{arg}`: {got} was written outside the rows, at element {i} near row {row}"));
            }
        }
        let mut values = Vec::with_capacity(self.num_rows * self.row_len);
        for row in 0..self.num_rows {
            values.extend((0..self.row_len).map(|i| self.elements.get(self.memory.lead + row * stride + i)));
        }
        Ok(values)
    }
    /// Checks that nothing at all was written.
    ///
    /// # Errors
    /// Where something was.
    pub fn untouched(&self, arg: &str) -> Result<(), String> {
        match (0..self.elements.len()).find(|&i| !self.elements.is_poison(i, self.memory.poison)) {
            None => Ok(()),
            Some(i) => Err(format!("`{arg}`: {} was written at element {i} by a refused call", self.elements.get(i))),
        }
    }
}

/// A buffer between guards, with a copy of what it held before the call.
pub struct Guarded {
    cells: Elements,
    before: Elements,
    poison: Poison,
}

impl Guarded {
    /// Holds these values in f32.
    pub fn new(poison: Poison, values: &[f32]) -> Self {
        Self::of(DType::F32, poison, values)
    }
    /// Holds these values in another dtype.
    pub fn of(dtype: DType, poison: Poison, values: &[f32]) -> Self {
        let mut cells = Elements::poisoned(dtype, values.len() + 2 * GUARD, poison);
        let mut before = Elements::poisoned(dtype, values.len(), poison);
        for (i, &x) in values.iter().enumerate() {
            cells.set(GUARD + i, x);
            before.set(i, x);
        }
        Self { cells, before, poison }
    }
    /// All poison.
    pub fn poisoned(dtype: DType, poison: Poison, len: usize) -> Self {
        let cells = Elements::poisoned(dtype, len + 2 * GUARD, poison);
        Self { cells, before: Elements::poisoned(dtype, len, poison), poison }
    }
    /// What the operation gets.
    pub fn data_mut(&mut self) -> DataMut<'_> {
        let len = self.before.len();
        self.cells.data_mut(GUARD..GUARD + len)
    }
    /// The same of an f32 buffer.
    ///
    /// # Panics
    /// With another dtype.
    pub fn cells_mut(&mut self) -> &mut [f32] {
        match self.data_mut() {
            DataMut::F32(cells) => cells,
            other => panic!("the buffer is {}, expected f32", other.dtype().name()),
        }
    }
    /// What it holds now, widened.
    pub fn values(&self) -> Vec<f32> {
        (GUARD..GUARD + self.before.len()).map(|i| self.cells.get(i)).collect()
    }
    /// Checks that the guards, and the elements where `may_change` is false, hold the bits that they held before.
    ///
    /// # Errors
    /// Where they do not.
    pub fn check(&self, arg: &str, may_change: impl Fn(usize) -> bool) -> Result<(), String> {
        let end = GUARD + self.before.len();
        for i in 0..self.cells.len() {
            let (same, place) = if (GUARD..end).contains(&i) {
                let same = self.cells.bits(i) == self.before.bits(i - GUARD);
                (same || may_change(i - GUARD), "which is not the call's to write")
            } else {
                (self.cells.is_poison(i, self.poison), "outside the buffer")
            };
            if !same {
                let (cell, at) = (self.cells.get(i), i as i64 - GUARD as i64);
                return Err(format!("`{arg}`: {cell} was written at element {at}, {place}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poison_is_a_nan_or_a_number_in_every_dtype() {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            assert!(Elements::poisoned(dtype, 1, Poison::Nan).get(0).is_nan());
            assert!(Elements::poisoned(dtype, 1, Poison::Number).get(0).is_finite());
        }
    }

    #[test]
    fn parts_keep_their_values_and_lie_apart() {
        for n in 0..4 {
            let memory = Memory::nth(n);
            let inputs = Inputs::new(memory, DType::F32, 2, &[(&[1., 2., 3., 4.], 2), (&[5., 6.], 1)]);
            let (a, b) = (inputs.rows(0), inputs.rows(1));
            let (Data::F32(x), Data::F32(y)) = (a.data, b.data) else { panic!("f32 was asked for") };
            assert_eq!([x[0], x[1], x[a.row_stride], x[a.row_stride + 1]], [1., 2., 3., 4.]);
            assert_eq!([y[0], y[b.row_stride]], [5., 6.]);
        }
    }

    #[test]
    fn a_write_into_a_gap_or_a_guard_is_seen() {
        let memory = Memory::nth(1);
        for at in 0..memory.lead + 2 * 8 + GUARD {
            let mut out = Outputs::new(memory, DType::Bf16, 2, 3);
            out.elements.set(at, 9.0);
            let inside = at.checked_sub(memory.lead).is_some_and(|i| i / 8 < 2 && i % 8 < 3);
            assert_eq!(out.finish("out").is_ok(), inside, "element {at}");
        }
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            let mut state = Guarded::of(dtype, Poison::Nan, &[1.0, 2.0]);
            assert!(state.check("state", |_| false).is_ok());
            state.cells.set(GUARD + 1, 3.0);
            assert_eq!(state.values(), [1.0, 3.0]);
            assert!(state.check("state", |i| i == 1).is_ok());
            assert!(state.check("state", |_| false).is_err());
            state.cells.set(GUARD + 2, 0.0);
            assert!(state.check("state", |_| true).is_err());
        }
    }
}
