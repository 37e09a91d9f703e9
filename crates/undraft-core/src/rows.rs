//! Strided views of host tensors in f32, bf16 or f16.

use half::{bf16, f16};

use crate::error::{Error, Result};

/// Element type of q, k, v, o and friends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
}

impl DType {
    /// Rounds to this dtype (nearest even) and back. What lies beyond the largest number becomes an infinity, as IEEE
    /// 754 has it; nothing saturates.
    ///
    /// ```
    /// use undraft_core::DType;
    /// assert_eq!(DType::Bf16.round(1.00390625), 1.0);
    /// assert_eq!(DType::F32.round(1.1), 1.1);
    /// assert_eq!(DType::F16.round(65_520.0), f32::INFINITY);
    /// ```
    pub fn round(self, x: f32) -> f32 {
        match self {
            DType::F32 => x,
            DType::Bf16 => bf16::from_f32(x).to_f32(),
            DType::F16 => f16::from_f32(x).to_f32(),
        }
    }
    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::Bf16 | DType::F16 => 2,
        }
    }
    /// `f32`, `bf16` or `f16`.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
        }
    }
}

/// Elements to read.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// f32.
    F32(&'a [f32]),
    /// bf16.
    Bf16(&'a [bf16]),
    /// f16.
    F16(&'a [f16]),
}

/// Elements to write.
#[derive(Debug)]
pub enum DataMut<'a> {
    /// f32.
    F32(&'a mut [f32]),
    /// bf16.
    Bf16(&'a mut [bf16]),
    /// f16.
    F16(&'a mut [f16]),
}

impl Data<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Data::F32(d) => d.len(),
            Data::Bf16(d) => d.len(),
            Data::F16(d) => d.len(),
        }
    }
    /// The elements in f32, exactly.
    pub fn to_f32(&self) -> Vec<f32> {
        match self {
            Data::F32(d) => d.to_vec(),
            Data::Bf16(d) => d.iter().map(|x| x.to_f32()).collect(),
            Data::F16(d) => d.iter().map(|x| x.to_f32()).collect(),
        }
    }
    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Element type.
    pub fn dtype(&self) -> DType {
        match self {
            Data::F32(_) => DType::F32,
            Data::Bf16(_) => DType::Bf16,
            Data::F16(_) => DType::F16,
        }
    }
}

impl DataMut<'_> {
    /// The same elements for a shorter time.
    pub fn reborrow(&mut self) -> DataMut<'_> {
        match self {
            DataMut::F32(d) => DataMut::F32(d),
            DataMut::Bf16(d) => DataMut::Bf16(d),
            DataMut::F16(d) => DataMut::F16(d),
        }
    }
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            DataMut::F32(d) => d.len(),
            DataMut::Bf16(d) => d.len(),
            DataMut::F16(d) => d.len(),
        }
    }
    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Element type.
    pub fn dtype(&self) -> DType {
        match self {
            DataMut::F32(_) => DType::F32,
            DataMut::Bf16(_) => DType::Bf16,
            DataMut::F16(_) => DType::F16,
        }
    }
}

impl<'a> From<&'a [f32]> for Data<'a> {
    fn from(d: &'a [f32]) -> Self {
        Data::F32(d)
    }
}
impl<'a> From<&'a [bf16]> for Data<'a> {
    fn from(d: &'a [bf16]) -> Self {
        Data::Bf16(d)
    }
}
impl<'a> From<&'a [f16]> for Data<'a> {
    fn from(d: &'a [f16]) -> Self {
        Data::F16(d)
    }
}
impl<'a> From<&'a mut [f32]> for DataMut<'a> {
    fn from(d: &'a mut [f32]) -> Self {
        DataMut::F32(d)
    }
}
impl<'a> From<&'a mut [bf16]> for DataMut<'a> {
    fn from(d: &'a mut [bf16]) -> Self {
        DataMut::Bf16(d)
    }
}
impl<'a> From<&'a mut [f16]> for DataMut<'a> {
    fn from(d: &'a mut [f16]) -> Self {
        DataMut::F16(d)
    }
}

/// A matrix to read, one row a token, rows `row_stride` elements apart.
///
/// q, k and v may so be views of one fused row `[q | k | v]`: slice the data at the part's offset and keep the stride.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Elements, from the first one of row 0.
    pub data: Data<'a>,
    /// Elements between the starts of two rows, at least the row's length.
    pub row_stride: usize,
}

/// A matrix to write; see [`Rows`].
#[derive(Debug)]
pub struct RowsMut<'a> {
    /// Elements, from the first one of row 0.
    pub data: DataMut<'a>,
    /// Elements between the starts of two rows, at least the row's length.
    pub row_stride: usize,
}

impl<'a> Rows<'a> {
    /// A view with the given stride.
    pub fn new(data: impl Into<Data<'a>>, row_stride: usize) -> Self {
        Self { data: data.into(), row_stride }
    }
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }
    pub(crate) fn check(&self, arg: &'static str, num_rows: usize, row_len: usize) -> Result<()> {
        check_rows(arg, self.data.len(), self.row_stride, num_rows, row_len)
    }
}

impl<'a> RowsMut<'a> {
    /// The same view for a shorter time.
    pub fn reborrow(&mut self) -> RowsMut<'_> {
        RowsMut { data: self.data.reborrow(), row_stride: self.row_stride }
    }
    /// A view with the given stride.
    pub fn new(data: impl Into<DataMut<'a>>, row_stride: usize) -> Self {
        Self { data: data.into(), row_stride }
    }
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }
    pub(crate) fn check(&self, arg: &'static str, num_rows: usize, row_len: usize) -> Result<()> {
        check_rows(arg, self.data.len(), self.row_stride, num_rows, row_len)
    }
}

fn check_rows(arg: &'static str, got: usize, stride: usize, num_rows: usize, row_len: usize) -> Result<()> {
    if stride < row_len {
        return Err(Error::Stride { arg, row_len, got: stride });
    }
    let expected = match num_rows {
        0 => 0,
        n => (n - 1).saturating_mul(stride).saturating_add(row_len),
    };
    if got < expected {
        return Err(Error::TooShort { arg, expected, got, num_rows, row_len, stride });
    }
    Ok(())
}
