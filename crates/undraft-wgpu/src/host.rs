//! Host tensors on their way to the device and back.
//!
//! A 16-bit tensor is packed with an even number of elements a row, so that a row begins with a word; what lies between the rows
//! on the host stays there.

use undraft_core::{DType, Data, DataMut, Rows, RowsMut, bf16, f16};

use crate::buffer::Binding;
use crate::device::Device;
use crate::error::{Result, WgpuError};
use crate::raw::{Elements, NONE};

/// A number as kernels take it.
pub(crate) fn count(arg: &'static str, n: u64) -> Result<u32> {
    u32::try_from(n).map_err(|_| WgpuError::TooLarge { arg, got: n })
}

/// Rows on the device.
pub(crate) struct Upload {
    pub(crate) buffer: wgpu::Buffer,
    /// Elements from one row to the next.
    pub(crate) stride: u32,
    /// An [`Elements`].
    pub(crate) dtype: u32,
}

impl Upload {
    pub(crate) fn rows(
        device: &Device,
        label: &'static str,
        rows: &Rows<'_>,
        num_rows: usize,
        row_len: usize,
    ) -> Result<Self> {
        let (words, stride) = pack(rows, num_rows, row_len);
        count(label, words.len() as u64)?;
        let buffer = device.buffer_from(label, &words)?;
        Ok(Self { buffer, stride: count(label, stride as u64)?, dtype: Elements::from(rows.dtype()).word() })
    }
}

/// Elements from one packed row to the next.
pub(crate) fn packed_stride(dtype: DType, row_len: usize) -> usize {
    if dtype == DType::F32 { row_len } else { row_len.next_multiple_of(2) }
}

/// The rows as words, and the elements from one to the next.
pub(crate) fn pack(rows: &Rows<'_>, num_rows: usize, row_len: usize) -> (Vec<u32>, usize) {
    let stride = packed_stride(rows.dtype(), row_len);
    let mut words = Vec::with_capacity(num_rows * stride * rows.dtype().size() / 4);
    for row in 0..num_rows {
        let at = row * rows.row_stride..row * rows.row_stride + row_len;
        match rows.data {
            Data::F32(d) => words.extend(d[at].iter().map(|x| x.to_bits())),
            Data::Bf16(d) => words.extend(pairs(&d[at], |x| x.to_bits())),
            Data::F16(d) => words.extend(pairs(&d[at], |x| x.to_bits())),
        }
    }
    (words, stride)
}

fn pairs<T: Copy>(elements: &[T], bits: impl Fn(T) -> u16) -> impl Iterator<Item = u32> {
    elements.chunks(2).map(move |pair| {
        let high = pair.get(1).map_or(0, |&x| bits(x));
        u32::from(bits(pair[0])) | u32::from(high) << 16
    })
}

/// Packed rows back into the host's.
pub(crate) fn unpack(bytes: &[u8], to: &mut RowsMut<'_>, num_rows: usize, row_len: usize) {
    let stride = packed_stride(to.dtype(), row_len) * to.dtype().size();
    let row_stride = to.row_stride;
    for (row, from) in bytes.chunks(stride.max(1)).take(num_rows).enumerate() {
        let at = row * row_stride..row * row_stride + row_len;
        match &mut to.data {
            DataMut::F32(d) => read_f32(from, &mut d[at]),
            DataMut::Bf16(d) => read_halves(from, &mut d[at], bf16::from_bits),
            DataMut::F16(d) => read_halves(from, &mut d[at], f16::from_bits),
        }
    }
}

pub(crate) fn read_f32(bytes: &[u8], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(bytes.as_chunks().0) {
        *to = f32::from_bits(u32::from_le_bytes(*from));
    }
}

fn read_halves<T>(bytes: &[u8], to: &mut [T], from_bits: impl Fn(u16) -> T) {
    for (to, from) in to.iter_mut().zip(bytes.as_chunks().0) {
        *to = from_bits(u16::from_le_bytes(*from));
    }
}

/// Several tensors on their way into one buffer, each from a multiple of four words on.
#[derive(Default)]
pub(crate) struct Packed(Vec<u32>);

impl Packed {
    /// Adds elements of 32 bits; gives the place of the first.
    pub(crate) fn push<T: bytemuck::NoUninit>(&mut self, arg: &'static str, elements: &[T]) -> Result<u32> {
        self.push_words(arg, bytemuck::cast_slice(elements))
    }
    /// The same, [`NONE`] where there are none.
    pub(crate) fn push_some<T: bytemuck::NoUninit>(&mut self, arg: &'static str, elements: &[T]) -> Result<u32> {
        if elements.is_empty() { Ok(NONE) } else { self.push(arg, elements) }
    }
    /// Adds rows; gives the place of the first element, in elements, and the elements from one row to the next.
    pub(crate) fn push_rows(
        &mut self,
        arg: &'static str,
        rows: &Rows<'_>,
        num_rows: usize,
        row_len: usize,
    ) -> Result<(u32, u32)> {
        let (words, stride) = pack(rows, num_rows, row_len);
        let first = self.push_words(arg, &words)?;
        let elements_a_word = (4 / rows.dtype().size()) as u64;
        Ok((count(arg, u64::from(first) * elements_a_word)?, count(arg, stride as u64)?))
    }
    fn push_words(&mut self, arg: &'static str, words: &[u32]) -> Result<u32> {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        let first = count(arg, self.0.len() as u64)?;
        self.0.extend_from_slice(words);
        Ok(first)
    }
    pub(crate) fn upload(&self, device: &Device, label: &'static str) -> Result<wgpu::Buffer> {
        count(label, self.0.len() as u64)?;
        device.buffer_from(label, &self.0)
    }
}

/// Elements that the device writes in part, with the host memory that they go back to.
pub(crate) struct Elementwise<'a> {
    pub(crate) buffer: wgpu::Buffer,
    to: DataMut<'a>,
}

impl<'a> Elementwise<'a> {
    pub(crate) fn upload(device: &Device, label: &'static str, to: DataMut<'a>) -> Result<Self> {
        let len = to.len();
        let (words, _) = match &to {
            DataMut::F32(d) => pack(&Rows::new(&**d, len), 1, len),
            DataMut::Bf16(d) => pack(&Rows::new(&**d, len), 1, len),
            DataMut::F16(d) => pack(&Rows::new(&**d, len), 1, len),
        };
        count(label, words.len() as u64)?;
        Ok(Self { buffer: device.buffer_from(label, &words)?, to })
    }
    pub(crate) fn dtype(&self) -> DType {
        self.to.dtype()
    }
    /// What is to be read for [`Elementwise::finish`].
    pub(crate) fn part(&self) -> Binding<'_> {
        Binding::part(&self.buffer, 0..(self.to.len() * self.to.dtype().size()) as u64)
    }
    pub(crate) fn finish(self, bytes: &[u8]) {
        match self.to {
            DataMut::F32(d) => read_f32(bytes, d),
            DataMut::Bf16(d) => read_halves(bytes, d, bf16::from_bits),
            DataMut::F16(d) => read_halves(bytes, d, f16::from_bits),
        }
    }
}
