//! A tensor of the caller: where it lies, how large it is, and the checks that a call makes of it.

use std::fmt;
use std::ops::Range;

use undraft::DType;

use crate::error::{Axes, Error, Result};

/// Most axes of a tensor.
pub const MAX_RANK: usize = 6;

/// Element type, as the caller's library names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// Floats that states, inputs and outputs may have.
    Float(DType),
    /// 32-bit signed integers: slots, lengths, counts.
    I32,
    /// Any other, by its name where that is known.
    Other(&'static str),
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ElementType::Float(dtype) => dtype.name(),
            ElementType::I32 => "int32",
            ElementType::Other(name) => name,
        })
    }
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// Host memory.
    Cpu,
    /// A CUDA device, by its number.
    Cuda(i32),
    /// Elsewhere.
    Other,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(index) => write!(f, "cuda:{index}"),
            Device::Other => f.write_str("another device"),
        }
    }
}

/// Sizes or strides of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    rank: usize,
    sizes: [i64; MAX_RANK],
}

impl Shape {
    /// The list; none where it has more than [`MAX_RANK`] entries.
    pub fn new(list: &[i64]) -> Option<Self> {
        let mut sizes = [0; MAX_RANK];
        sizes.get_mut(..list.len())?.copy_from_slice(list);
        Some(Self { rank: list.len(), sizes })
    }
    /// The entries.
    pub fn as_slice(&self) -> &[i64] {
        &self.sizes[..self.rank]
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_slice())
    }
}

/// A tensor of the caller.
#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    /// Argument.
    pub arg: &'static str,
    /// Address of the first element.
    pub data: usize,
    /// Element type.
    pub elements: ElementType,
    /// Bytes of an element.
    pub element_size: usize,
    /// Where it lies.
    pub device: Device,
    /// Sizes of the axes.
    pub shape: Shape,
    /// Elements from one entry of an axis to the next.
    pub strides: Shape,
}

/// Tokens of a tensor: `num` rows of `len` elements, `stride` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Tokens.
    pub num: usize,
    /// Elements of a token.
    pub len: usize,
    /// Elements from one token to the next.
    pub stride: usize,
}

impl Tensor {
    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.rank
    }
    /// Size of an axis; 1 beyond the last.
    pub fn size(&self, axis: usize) -> usize {
        self.shape.as_slice().get(axis).map_or(1, |&n| n.max(0) as usize)
    }
    /// Elements.
    pub fn numel(&self) -> usize {
        (0..self.rank()).map(|axis| self.size(axis)).product()
    }

    /// Addresses from the first byte to behind the last; empty without elements.
    pub fn bytes(&self) -> Range<usize> {
        if self.numel() == 0 {
            return self.data..self.data;
        }
        let last: usize = (0..self.rank()).map(|a| (self.size(a) - 1) * self.strides.sizes[a].max(0) as usize).sum();
        self.data..self.data + (last + 1) * self.element_size
    }

    /// Checks the sizes.
    pub fn check_shape(&self, expected: &[(&'static str, usize)]) -> Result<()> {
        self.check_shape_or(expected, "")
    }
    /// Checks the sizes; the error says what to do.
    pub fn check_shape_or(&self, expected: &[(&'static str, usize)], hint: &'static str) -> Result<()> {
        let same = self.rank() == expected.len() && expected.iter().enumerate().all(|(a, e)| self.size(a) == e.1);
        if same {
            return Ok(());
        }
        Err(Error::Shape { arg: self.arg, got: Box::new(self.shape), expected: Axes(expected.to_vec()), hint })
    }

    /// Checks that it is f32, bf16 or f16.
    pub fn float(&self) -> Result<DType> {
        match self.elements {
            ElementType::Float(dtype) => Ok(dtype),
            got => {
                let (expected, hint) = ("f32, bf16 or f16", "`.to(torch.float32)` or NumPy's `.astype(\"float32\")`");
                Err(Error::Elements { arg: self.arg, got, expected, hint })
            }
        }
    }
    /// Checks that it is f32.
    pub fn check_f32(&self) -> Result<()> {
        match self.elements {
            ElementType::Float(DType::F32) => Ok(()),
            got => {
                let hint = "`.to(torch.float32)` or NumPy's `.astype(\"float32\")`";
                Err(Error::Elements { arg: self.arg, got, expected: "f32", hint })
            }
        }
    }
    /// Checks that it is int32.
    pub fn check_i32(&self) -> Result<()> {
        match self.elements {
            ElementType::I32 => Ok(()),
            got => {
                let hint = "`.to(torch.int32)` or NumPy's `.astype(\"int32\")`";
                Err(Error::Elements { arg: self.arg, got, expected: "int32", hint })
            }
        }
    }

    fn strides_error(&self, expected: &'static str) -> Error {
        Error::Strides { arg: self.arg, shape: Box::new(self.shape), strides: Box::new(self.strides), expected }
    }

    /// Whether the axes from `from` on lie without gaps.
    fn is_packed_from(&self, from: usize) -> bool {
        let mut expected = 1;
        (from..self.rank()).rev().all(|axis| {
            let fits = self.size(axis) == 1 || self.strides.sizes[axis] == expected as i64;
            expected *= self.size(axis);
            fits
        })
    }

    /// Checks that it lies without gaps.
    pub fn check_contiguous(&self) -> Result<()> {
        if self.numel() == 0 || self.is_packed_from(0) {
            return Ok(());
        }
        Err(self.strides_error("a contiguous tensor"))
    }

    /// Elements from one entry of the first axis to the next, where everything behind that axis lies without gaps.
    pub fn outer_stride(&self, from: usize) -> Result<usize> {
        let len: usize = (from + 1..self.rank()).map(|axis| self.size(axis)).product();
        if self.numel() == 0 || self.size(from) == 1 && self.is_packed_from(from + 1) {
            return Ok(len);
        }
        let stride = self.strides.sizes[from];
        if !self.is_packed_from(from + 1) || stride < len as i64 {
            return Err(self.strides_error("everything behind the axis of the slots to lie without gaps"));
        }
        Ok(stride as usize)
    }

    /// Rows of tokens: the first `leading` axes count tokens, one after the other at one stride; the rest of a token lies
    /// without gaps.
    pub fn tokens(&self, leading: usize) -> Result<Tokens> {
        let num: usize = (0..leading).map(|axis| self.size(axis)).product();
        let len: usize = (leading..self.rank()).map(|axis| self.size(axis)).product();
        if num == 0 || len == 0 {
            return Ok(Tokens { num, len, stride: len });
        }
        let bad = || self.strides_error("heads of a token without gaps and tokens at one stride");
        if !self.is_packed_from(leading) {
            return Err(bad());
        }
        // The innermost axis of several tokens sets the stride, those around it must follow from it.
        let mut stride = None;
        let mut inside = 1;
        for axis in (0..leading).rev() {
            if self.size(axis) > 1 {
                let here = self.strides.sizes[axis];
                let stride = *stride.get_or_insert(here);
                if here != stride * inside as i64 && inside > 1 {
                    return Err(bad());
                }
            }
            inside *= self.size(axis);
        }
        let stride = stride.map_or(len, |n| n.max(0) as usize);
        if stride < len {
            return Err(bad());
        }
        Ok(Tokens { num, len, stride })
    }

    /// Checks that no two entries of an axis are the same memory, for what is written.
    pub fn check_own_elements(&self) -> Result<()> {
        let repeated = |axis: usize| self.size(axis) > 1 && self.strides.sizes[axis] <= 0;
        if self.numel() > 0 && (0..self.rank()).any(repeated) {
            return Err(self.strides_error("every element to have memory of its own, since it is written"));
        }
        Ok(())
    }

    /// Checks that it begins at a multiple of so many bytes.
    pub fn check_alignment(&self, alignment: usize) -> Result<()> {
        if self.numel() == 0 || self.data.is_multiple_of(alignment) {
            return Ok(());
        }
        Err(Error::Alignment { arg: self.arg, alignment })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(sizes: &[i64], strides: &[i64]) -> Tensor {
        Tensor {
            arg: "q",
            data: 4096,
            elements: ElementType::Float(DType::F32),
            element_size: 4,
            device: Device::Cpu,
            shape: Shape::new(sizes).unwrap(),
            strides: Shape::new(strides).unwrap(),
        }
    }

    #[test]
    fn tokens_have_one_stride_or_are_refused() {
        let stride = |sizes: &[i64], strides: &[i64]| tensor(sizes, strides).tokens(2).map(|t| (t.num, t.stride)).ok();
        assert_eq!(stride(&[2, 3, 4, 8], &[96, 32, 8, 1]), Some((6, 32)));
        assert_eq!(stride(&[2, 3, 4, 8], &[300, 100, 8, 1]), Some((6, 100)));
        assert_eq!(stride(&[2, 3, 4, 8], &[301, 100, 8, 1]), None);
        assert_eq!(stride(&[2, 1, 4, 8], &[301, 7, 8, 1]), Some((2, 301)));
        assert_eq!(stride(&[1, 3, 4, 8], &[0, 32, 8, 1]), Some((3, 32)));
        assert_eq!(stride(&[1, 1, 4, 8], &[1, 1, 8, 1]), Some((1, 32)));
        assert_eq!(stride(&[2, 3, 4, 8], &[96, 32, 1, 4]), None);
        assert_eq!(stride(&[2, 3, 4, 8], &[48, 16, 8, 1]), None);
        assert_eq!(stride(&[0, 3, 4, 8], &[96, 32, 8, 1]), Some((0, 32)));
    }

    #[test]
    fn bytes_reach_to_the_last_element() {
        assert_eq!(tensor(&[2, 3], &[10, 1]).bytes(), 4096..4096 + 4 * 13);
        assert_eq!(tensor(&[0, 3], &[10, 1]).bytes(), 4096..4096);
    }

    #[test]
    fn a_shape_error_names_axes() {
        let error = tensor(&[12, 16], &[16, 1]).check_shape(&[("num_tokens", 12), ("num_v_heads", 32)]).unwrap_err();
        assert_eq!(error.to_string(), "`q` has shape [12, 16], expected [num_tokens=12, num_v_heads=32]");
    }
}
