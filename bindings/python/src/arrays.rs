//! The operations on arrays of host memory: NumPy's, and what comes through DLPack.

use std::ffi::c_void;

use undraft::DType;
use undraft::cuda::raw::{CUstream, Launcher};

use crate::args::{Caller, Values};
use crate::error::{Error, Result};
use crate::ops::OPS;
use crate::tensor::{Device, ElementType, MAX_RANK, Shape, Tensor};

/// An array as Python describes it.
#[derive(Debug)]
#[repr(C)]
pub struct ArrayView {
    /// First element.
    pub data: *mut c_void,
    /// 0: f32, 1: bf16, 2: f16, 3: int32, else another.
    pub elements: i32,
    /// Number of axes.
    pub rank: i32,
    /// Whether it may be written.
    pub is_writable: i32,
    /// Bytes of an element.
    pub element_size: i32,
    /// Sizes of the axes.
    pub shape: [i64; MAX_RANK],
    /// Elements from one entry of an axis to the next.
    pub strides: [i64; MAX_RANK],
}

/// Runs an operation on arrays.
///
/// # Errors
/// What is wrong with the call.
///
/// # Safety
/// `bits` are the values of the operation: numbers, and addresses of [`ArrayView`]s of host memory (0 for none) that lives until
/// this returns and that nobody else uses meanwhile.
pub unsafe fn call(op: usize, bits: &[u64]) -> Result<()> {
    let op = OPS.get(op).ok_or_else(|| Error::Internal { what: format!("no operation {op}") })?;
    if bits.len() != op.params.len() {
        let what = format!("`{}` got {} values, expected {}", op.name, bits.len(), op.params.len());
        return Err(Error::Internal { what });
    }
    let mut caller = Arrays { written: op.params.iter().map(|p| (p.name, is_written(p.kind))).collect() };
    (op.run)(&mut Values::new(bits, &mut caller))
}

fn is_written(kind: crate::args::Kind) -> bool {
    matches!(kind, crate::args::Kind::Out | crate::args::Kind::MaybeOut)
}

struct Arrays {
    written: Vec<(&'static str, bool)>,
}

impl Caller for Arrays {
    fn tensor(&mut self, arg: &'static str, bits: u64) -> Result<Tensor> {
        if bits == 0 {
            return Err(Error::Missing { arg, because: "in every call" });
        }
        // SAFETY: the promise of `call`.
        let view = unsafe { &*(bits as *const ArrayView) };
        let rank = usize::try_from(view.rank).unwrap_or(usize::MAX);
        let list = |of: &[i64; MAX_RANK]| of.get(..rank).and_then(Shape::new);
        let too_many = || Error::Number { arg, got: i64::from(view.rank), expected: "an array of at most 6 axes" };
        let (shape, strides) = (list(&view.shape).ok_or_else(too_many)?, list(&view.strides).ok_or_else(too_many)?);
        if shape.as_slice().iter().zip(strides.as_slice()).any(|(&n, &stride)| n > 1 && stride < 0) {
            let (shape, strides) = (Box::new(shape), Box::new(strides));
            return Err(Error::Strides { arg, shape, strides, expected: "strides that are not negative" });
        }
        if view.is_writable == 0 && self.written.iter().any(|&(name, written)| written && name == arg) {
            return Err(Error::ReadOnly { arg });
        }
        let elements = match view.elements {
            0 => ElementType::Float(DType::F32),
            1 => ElementType::Float(DType::Bf16),
            2 => ElementType::Float(DType::F16),
            3 => ElementType::I32,
            4 => ElementType::Other("f64"),
            5 => ElementType::Other("int64"),
            _ => ElementType::Other("of another dtype"),
        };
        let element_size = usize::try_from(view.element_size).unwrap_or(1);
        Ok(Tensor { arg, data: view.data as usize, elements, element_size, device: Device::Cpu, shape, strides })
    }
    fn optional(&mut self, bits: u64) -> Option<u64> {
        (bits != 0).then_some(bits)
    }
    fn cuda(&mut self, _: i32) -> Result<(Launcher, CUstream)> {
        Err(Error::Internal { what: "arrays lie in host memory".into() })
    }
    fn scratch(&mut self, _: i32, _: usize) -> Result<u64> {
        Err(Error::Internal { what: "arrays lie in host memory".into() })
    }
}
