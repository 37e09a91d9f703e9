//! One tensor of a file: its bytes where they lie, and checked copies of them.

use std::fmt;
use std::path::Path;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::error::{ModelError, Result};

/// Element type of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightDtype {
    /// 32-bit float.
    F32,
    /// 16-bit float with 8 bits of exponent.
    Bf16,
    /// 16-bit float with 5 bits of exponent.
    F16,
}

impl WeightDtype {
    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}

impl fmt::Display for WeightDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "F32",
            Self::Bf16 => "BF16",
            Self::F16 => "F16",
        })
    }
}

/// Weights in the type that the file has, all finite.
#[derive(Clone, Debug, PartialEq)]
pub enum WeightData {
    /// From F32.
    F32(Vec<f32>),
    /// From BF16.
    Bf16(Vec<bf16>),
    /// From F16.
    F16(Vec<f16>),
}

impl WeightData {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bf16(values) => values.len(),
            Self::F16(values) => values.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element type.
    pub fn dtype(&self) -> WeightDtype {
        match self {
            Self::F32(_) => WeightDtype::F32,
            Self::Bf16(_) => WeightDtype::Bf16,
            Self::F16(_) => WeightDtype::F16,
        }
    }

    /// The elements, if they are bf16.
    pub fn as_bf16(&self) -> Option<&[bf16]> {
        if let Self::Bf16(values) = self { Some(values) } else { None }
    }

    /// The elements, if they are f16.
    pub fn as_f16(&self) -> Option<&[f16]> {
        if let Self::F16(values) = self { Some(values) } else { None }
    }

    /// The elements widened to f32, which changes no value.
    pub fn to_f32(&self) -> Vec<f32> {
        let widen = |len, convert: &dyn Fn(&mut [f32])| {
            let mut values = vec![0.0; len];
            convert(&mut values);
            values
        };
        match self {
            Self::F32(values) => values.clone(),
            Self::Bf16(half) => widen(half.len(), &|out| half.convert_to_f32_slice(out)),
            Self::F16(half) => widen(half.len(), &|out| half.convert_to_f32_slice(out)),
        }
    }
}

/// A tensor in a mapped file. `bytes` are little endian, as many as `shape` and `dtype` ask for, and may be unaligned.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    name: &'a str,
    dtype: WeightDtype,
    shape: &'a [usize],
    bytes: &'a [u8],
    file: &'a Path,
}

impl<'a> TensorView<'a> {
    /// The caller has checked that `bytes` are as many as `shape` and `dtype` ask for.
    pub(super) fn new(
        name: &'a str,
        dtype: safetensors::Dtype,
        shape: &'a [usize],
        bytes: &'a [u8],
        file: &'a Path,
    ) -> Result<Self> {
        let dtype = match dtype {
            safetensors::Dtype::F32 => WeightDtype::F32,
            safetensors::Dtype::BF16 => WeightDtype::Bf16,
            safetensors::Dtype::F16 => WeightDtype::F16,
            found => return Err(ModelError::TensorDtype { tensor: name.to_owned(), file: file.to_path_buf(), found }),
        };
        Ok(Self { name, dtype, shape, bytes, file })
    }

    /// Name.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Element type.
    pub fn dtype(&self) -> WeightDtype {
        self.dtype
    }

    /// Sizes of the axes, outermost first.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// Bytes of the elements, outermost axis first.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// File that holds the tensor.
    pub fn file(&self) -> &'a Path {
        self.file
    }

    /// The view itself, if its shape is `expected`.
    ///
    /// # Errors
    /// [`ModelError::TensorShape`].
    pub fn expect_shape(self, expected: &[usize]) -> Result<Self> {
        if self.shape == expected {
            return Ok(self);
        }
        Err(ModelError::TensorShape {
            tensor: self.name.to_owned(),
            file: self.file.to_path_buf(),
            found: self.shape.to_vec(),
            expected: expected.to_vec(),
        })
    }

    /// The elements in the type that the file has.
    ///
    /// # Errors
    /// [`ModelError::NonFiniteWeight`] with the first NaN or infinity.
    pub fn to_storage(&self) -> Result<WeightData> {
        match self.dtype {
            WeightDtype::F32 => self.to_f32().map(WeightData::F32),
            WeightDtype::Bf16 => {
                let values = collect(self.bytes, bf16::from_le_bytes);
                self.check_finite(&values, |x| x.to_bits() & 0x7f80 == 0x7f80, bf16::to_f32)?;
                Ok(WeightData::Bf16(values))
            }
            WeightDtype::F16 => {
                let values = collect(self.bytes, f16::from_le_bytes);
                self.check_finite(&values, |x| x.to_bits() & 0x7c00 == 0x7c00, f16::to_f32)?;
                Ok(WeightData::F16(values))
            }
        }
    }

    /// The elements widened to f32, which changes no value.
    ///
    /// # Errors
    /// [`ModelError::NonFiniteWeight`] with the first NaN or infinity.
    pub fn to_f32_vec(&self) -> Result<Vec<f32>> {
        match self.to_storage()? {
            WeightData::F32(values) => Ok(values),
            half => Ok(half.to_f32()),
        }
    }

    fn to_f32(self) -> Result<Vec<f32>> {
        let values = collect(self.bytes, f32::from_le_bytes);
        self.check_finite(&values, |x| !x.is_finite(), |x| x)?;
        Ok(values)
    }

    fn check_finite<T: Copy>(&self, values: &[T], bad: impl Fn(T) -> bool, widen: impl Fn(T) -> f32) -> Result<()> {
        // Whole blocks without an early exit, so that the test runs on vectors.
        let any_bad = |block: &[T]| block.iter().fold(false, |any, &x| any | bad(x));
        if !values.chunks(4096).any(any_bad) {
            return Ok(());
        }
        let index = values.iter().position(|&x| bad(x)).unwrap_or(0);
        Err(ModelError::NonFiniteWeight {
            tensor: self.name.to_owned(),
            file: self.file.to_path_buf(),
            index,
            value: widen(values[index]),
        })
    }
}

/// Elements of `N` bytes each, wherever they lie.
fn collect<const N: usize, T>(bytes: &[u8], from_le_bytes: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|&element| from_le_bytes(element)).collect()
}
