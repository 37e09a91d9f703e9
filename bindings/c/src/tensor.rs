//! Tensors of the caller: shapes, strides, alignment and overlaps are checked before any of them becomes a slice.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;

use undraft::{DType, Data, DataMut, NamedShape, Rows, RowsMut};

use crate::choices::{UNDRAFT_BF16, UNDRAFT_F16, UNDRAFT_F32, UNDRAFT_I32, UNDRAFT_U32, undraft_dtype};
use crate::pointer::list;
use crate::status::{Failure, Result};

/// Most axes of a tensor.
pub const UNDRAFT_MAX_NDIM: usize = 5;

/// Memory of the caller.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_tensor {
    /// First element.
    pub data: *mut c_void,
    /// Element type; 0 with an absent tensor.
    pub dtype: undraft_dtype,
    /// Number of axes.
    pub ndim: u32,
    /// Sizes of the axes.
    pub shape: [i64; UNDRAFT_MAX_NDIM],
    /// Elements from one index of an axis to the next.
    pub strides: [i64; UNDRAFT_MAX_NDIM],
}

impl undraft_tensor {
    pub(crate) fn is_absent(&self) -> bool {
        self.data.is_null() && self.dtype == 0 && self.ndim == 0
    }
    /// Size of an axis; 0 where there is no such axis or it is negative, which the check of the shape reports.
    pub(crate) fn axis(&self, axis: usize) -> usize {
        let ndim = (self.ndim as usize).min(UNDRAFT_MAX_NDIM);
        self.shape[..ndim].get(axis).map_or(0, |&n| usize::try_from(n).unwrap_or(0))
    }
}

/// A tensor that is given by its address.
///
/// # Safety
/// `tensor` is null or a struct.
pub(crate) unsafe fn read_tensor(arg: &'static str, tensor: *const undraft_tensor) -> Result<undraft_tensor> {
    // SAFETY: by this function's contract.
    match unsafe { list(arg, tensor, 1) }? {
        [tensor] => Ok(*tensor),
        _ => Err(Failure::invalid(format!("`{arg}` is missing, expected a tensor"))),
    }
}

/// Axes by name.
pub(crate) type Axes<'a> = &'a [(&'static str, usize)];

/// Element types that an argument may have.
#[derive(Clone, Copy)]
pub(crate) struct DTypes(&'static [undraft_dtype]);

pub(crate) const F32: DTypes = DTypes(&[UNDRAFT_F32]);
pub(crate) const FLOAT: DTypes = DTypes(&[UNDRAFT_F32, UNDRAFT_BF16, UNDRAFT_F16]);
pub(crate) const I32: DTypes = DTypes(&[UNDRAFT_I32]);
pub(crate) const U32: DTypes = DTypes(&[UNDRAFT_U32]);

fn dtype_name(dtype: undraft_dtype) -> &'static str {
    match dtype {
        UNDRAFT_F32 => "f32",
        UNDRAFT_BF16 => "bf16",
        UNDRAFT_F16 => "f16",
        UNDRAFT_I32 => "i32",
        UNDRAFT_U32 => "u32",
        _ => "of no known dtype",
    }
}

impl fmt::Display for DTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(|&dtype| dtype_name(dtype)).collect();
        f.write_str(&names.join(", "))
    }
}

/// A checked tensor, not yet a slice. Its dtype is one of those that it was checked for.
#[derive(Debug)]
pub(crate) struct View {
    data: *mut c_void,
    dtype: undraft_dtype,
    /// Elements from the first to behind the last.
    len: usize,
    /// Elements between the starts of two rows.
    row_stride: usize,
}

/// What a tensor occupies.
#[derive(Clone, Copy, Debug)]
struct Span {
    arg: &'static str,
    start: usize,
    end: usize,
    is_written: bool,
}

/// The tensors of a call. Most calls have no more than this many.
const CAPACITY: usize = 24;

pub(crate) struct Tensors<'a> {
    spans: Vec<Span>,
    memory: PhantomData<&'a mut [u8]>,
}

/// Shows that no written tensor overlaps with another one; its views may become slices.
pub(crate) struct Disjoint<'a>(PhantomData<&'a mut [u8]>);

impl<'a> Tensors<'a> {
    /// # Safety
    /// Each tensor that is added is absent or leads to memory that is readable, and writable where it is written, for its dtype,
    /// shape and strides; nobody else writes to it during `'a`, nor reads what is written.
    pub(crate) unsafe fn new() -> Self {
        Self { spans: Vec::with_capacity(CAPACITY), memory: PhantomData }
    }

    /// A tensor of this shape, contiguous, to read.
    pub(crate) fn read(&mut self, arg: &'static str, t: &undraft_tensor, of: DTypes, shape: Axes<'_>) -> Result<View> {
        self.contiguous(arg, t, of, shape, false)
    }
    /// A tensor of this shape, contiguous, to write.
    pub(crate) fn write(&mut self, arg: &'static str, t: &undraft_tensor, of: DTypes, shape: Axes<'_>) -> Result<View> {
        self.contiguous(arg, t, of, shape, true)
    }
    /// As [`Tensors::read`], or an empty view of an absent tensor.
    pub(crate) fn optional(
        &mut self,
        arg: &'static str,
        t: &undraft_tensor,
        of: DTypes,
        shape: Axes<'_>,
    ) -> Result<Option<View>> {
        if t.is_absent() { Ok(None) } else { self.read(arg, t, of, shape).map(Some) }
    }
    /// Rows of this shape to read; the axes behind the first may be joined.
    pub(crate) fn rows(&mut self, arg: &'static str, t: &undraft_tensor, shape: Axes<'_>) -> Result<View> {
        self.strided(arg, t, shape, false)
    }
    /// Rows of this shape to write; the axes behind the first may be joined.
    pub(crate) fn rows_mut(&mut self, arg: &'static str, t: &undraft_tensor, shape: Axes<'_>) -> Result<View> {
        self.strided(arg, t, shape, true)
    }

    fn contiguous(
        &mut self,
        arg: &'static str,
        t: &undraft_tensor,
        of: DTypes,
        shape: Axes<'_>,
        is_written: bool,
    ) -> Result<View> {
        check_dtype(arg, t, of)?;
        check_shape(arg, t, shape, false)?;
        let len = check_contiguous(arg, t, 0)?;
        self.add(arg, t, len, len, is_written)
    }

    fn strided(&mut self, arg: &'static str, t: &undraft_tensor, shape: Axes<'_>, is_written: bool) -> Result<View> {
        check_dtype(arg, t, FLOAT)?;
        check_shape(arg, t, shape, true)?;
        let row_len = check_contiguous(arg, t, 1)?;
        let num_rows = t.axis(0);
        let row_stride = match num_rows {
            0 | 1 => row_len,
            _ => match usize::try_from(t.strides[0]) {
                Ok(stride) if stride >= row_len => stride,
                _ => {
                    let got = t.strides[0];
                    return Err(Failure::invalid(format!(
                        "`{arg}` has row stride {got}, expected at least the row length {row_len}"
                    )));
                }
            },
        };
        let len = match num_rows.checked_sub(1) {
            None => 0,
            Some(n) => n.checked_mul(row_stride).and_then(|n| n.checked_add(row_len)).ok_or_else(|| too_large(arg))?,
        };
        self.add(arg, t, len, row_stride, is_written)
    }

    fn add(
        &mut self,
        arg: &'static str,
        t: &undraft_tensor,
        len: usize,
        row_stride: usize,
        is_written: bool,
    ) -> Result<View> {
        let element = match t.dtype {
            UNDRAFT_BF16 | UNDRAFT_F16 => 2,
            _ => 4,
        };
        if len > 0 {
            let start = t.data as usize;
            if t.data.is_null() {
                return Err(Failure::invalid(format!("`{arg}` has no data, expected {len} elements")));
            }
            if !start.is_multiple_of(element) {
                let text =
                    format!("`{arg}` lies at {:?}, expected a multiple of {element}, its elements' size", t.data);
                return Err(Failure::invalid(text));
            }
            let bytes = len.checked_mul(element).filter(|&n| n <= isize::MAX as usize);
            let end = bytes.and_then(|n| start.checked_add(n)).ok_or_else(|| too_large(arg))?;
            self.spans.push(Span { arg, start, end, is_written });
        }
        Ok(View { data: t.data, dtype: t.dtype, len, row_stride })
    }

    /// Checks that no written tensor overlaps with another one.
    pub(crate) fn disjoint(self) -> Result<Disjoint<'a>> {
        for (i, a) in self.spans.iter().enumerate() {
            for b in &self.spans[..i] {
                if (a.is_written || b.is_written) && a.start < b.end && b.start < a.end {
                    let (written, other) = if a.is_written { (a.arg, b.arg) } else { (b.arg, a.arg) };
                    return Err(Failure::invalid(format!(
                        "`{written}` overlaps with `{other}`, expected memory of its own as it is written"
                    )));
                }
            }
        }
        Ok(Disjoint(PhantomData))
    }
}

fn too_large(arg: &'static str) -> Failure {
    Failure::invalid(format!("`{arg}` reaches over more bytes than there are addresses, expected fewer"))
}

fn check_dtype(arg: &'static str, t: &undraft_tensor, of: DTypes) -> Result<()> {
    if t.is_absent() {
        return Err(Failure::invalid(format!("`{arg}` is absent, expected a tensor")));
    }
    if of.0.contains(&t.dtype) {
        return Ok(());
    }
    Err(Failure::invalid(format!("`{arg}` is {} ({}), expected one of {of}", dtype_name(t.dtype), t.dtype)))
}

/// The axes as they are named, or with all behind the first in one.
fn check_shape(arg: &'static str, t: &undraft_tensor, shape: Axes<'_>, may_join: bool) -> Result<()> {
    let ndim = t.ndim as usize;
    if ndim > UNDRAFT_MAX_NDIM {
        return Err(Failure::invalid(format!("`{arg}` has {ndim} axes, expected at most {UNDRAFT_MAX_NDIM}")));
    }
    let got = &t.shape[..ndim];
    let is_same = |&(axis, &(_, n)): &(&i64, &(&str, usize))| usize::try_from(*axis) == Ok(n);
    if ndim == shape.len() && got.iter().zip(shape).all(|pair| is_same(&pair)) {
        return Ok(());
    }
    if may_join && ndim == 2 && shape.len() > 2 {
        let joined = shape[1..].iter().try_fold(1usize, |n, &(_, axis)| n.checked_mul(axis));
        if usize::try_from(got[0]) == Ok(shape[0].1) && usize::try_from(got[1]).ok() == joined {
            return Ok(());
        }
    }
    let expected = NamedShape(shape.to_vec());
    Err(Failure::invalid(format!("`{arg}` has shape {got:?}, expected {expected}")))
}

/// Elements of the axes from `first` on, which must be contiguous.
fn check_contiguous(arg: &'static str, t: &undraft_tensor, first: usize) -> Result<usize> {
    let ndim = t.ndim as usize;
    let mut len = 1usize;
    let mut is_contiguous = true;
    for axis in (first..ndim).rev() {
        let n = t.axis(axis);
        // The stride of an axis with one index is never used.
        is_contiguous &= n <= 1 || usize::try_from(t.strides[axis]) == Ok(len);
        len = len.checked_mul(n).ok_or_else(|| too_large(arg))?;
    }
    if is_contiguous || len == 0 {
        return Ok(len);
    }
    let (shape, strides) = (&t.shape[..ndim], &t.strides[..ndim]);
    let what = if first == 0 { "a contiguous tensor" } else { "contiguous rows" };
    Err(Failure::invalid(format!("`{arg}` has strides {strides:?} with shape {shape:?}, expected {what}")))
}

impl View {
    /// The elements, which are of the view's dtype.
    fn slice<'t, T>(&self, _: &'t Disjoint<'_>) -> &'t [T] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: not null, aligned and no larger than an object can be, as `Tensors::add` has checked; readable, and not
        // written by others, by the contract of `Tensors::new`; disjoint from what this call writes, as `Disjoint` shows. Any
        // bits are a number of the five dtypes.
        unsafe { std::slice::from_raw_parts(self.data.cast(), self.len) }
    }
    /// The elements, which are of the view's dtype, to write.
    // `Disjoint` shows that they may be written; they are not part of it.
    #[allow(clippy::mut_from_ref)]
    fn slice_mut<'t, T>(self, _: &'t Disjoint<'_>) -> &'t mut [T] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: as in `slice`; writable and used by nobody else by the contract of `Tensors::new`, disjoint from every other
        // tensor of this call, and no second slice of it, as the view is used up.
        unsafe { std::slice::from_raw_parts_mut(self.data.cast(), self.len) }
    }

    pub(crate) fn f32s<'t>(&self, shown: &'t Disjoint<'_>) -> &'t [f32] {
        self.slice(shown)
    }
    pub(crate) fn f32s_mut<'t>(self, shown: &'t Disjoint<'_>) -> &'t mut [f32] {
        self.slice_mut(shown)
    }
    pub(crate) fn i32s<'t>(&self, shown: &'t Disjoint<'_>) -> &'t [i32] {
        self.slice(shown)
    }
    pub(crate) fn u32s<'t>(&self, shown: &'t Disjoint<'_>) -> &'t [u32] {
        self.slice(shown)
    }
    /// Elements of one of the float dtypes.
    pub(crate) fn data<'t>(&self, shown: &'t Disjoint<'_>) -> Data<'t> {
        match self.dtype() {
            DType::F32 => Data::F32(self.slice(shown)),
            DType::Bf16 => Data::Bf16(self.slice(shown)),
            DType::F16 => Data::F16(self.slice(shown)),
        }
    }
    /// Elements of one of the float dtypes, to write.
    pub(crate) fn data_mut<'t>(self, shown: &'t Disjoint<'_>) -> DataMut<'t> {
        match self.dtype() {
            DType::F32 => DataMut::F32(self.slice_mut(shown)),
            DType::Bf16 => DataMut::Bf16(self.slice_mut(shown)),
            DType::F16 => DataMut::F16(self.slice_mut(shown)),
        }
    }
    pub(crate) fn rows<'t>(&self, shown: &'t Disjoint<'_>) -> Rows<'t> {
        Rows { data: self.data(shown), row_stride: self.row_stride }
    }
    pub(crate) fn rows_mut<'t>(self, shown: &'t Disjoint<'_>) -> RowsMut<'t> {
        let row_stride = self.row_stride;
        RowsMut { data: self.data_mut(shown), row_stride }
    }
    /// The float dtype.
    pub(crate) fn dtype(&self) -> DType {
        match self.dtype {
            UNDRAFT_BF16 => DType::Bf16,
            UNDRAFT_F16 => DType::F16,
            _ => DType::F32,
        }
    }
}

/// A list that is empty where its tensor is absent.
pub(crate) fn u32s_or_empty<'t>(view: &Option<View>, shown: &'t Disjoint<'_>) -> &'t [u32] {
    view.as_ref().map_or(&[], |view| view.u32s(shown))
}

/// A list that is empty where its tensor is absent.
pub(crate) fn i32s_or_empty<'t>(view: &Option<View>, shown: &'t Disjoint<'_>) -> &'t [i32] {
    view.as_ref().map_or(&[], |view| view.i32s(shown))
}
