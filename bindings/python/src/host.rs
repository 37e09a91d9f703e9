//! Tensors in host memory as slices, and the CPU back end that runs on them.

use std::borrow::Cow;
use std::sync::{Arc, PoisonError, RwLock};

use undraft::cpu::{CpuBackend, ThreadPool};
use undraft::{DType, Data, DataMut, Rows, RowsMut, bf16, f16};

use crate::error::Result;
use crate::tensor::{Tensor, Tokens};

/// The back end of all calls, made with the first one.
static BACKEND: RwLock<Option<Arc<CpuBackend>>> = RwLock::new(None);

/// The CPU back end, with as many threads as were asked for, or as the machine has.
pub(crate) fn backend() -> Arc<CpuBackend> {
    if let Some(backend) = &*BACKEND.read().unwrap_or_else(PoisonError::into_inner) {
        return backend.clone();
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    BACKEND.write().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| make(threads)).clone()
}

fn make(threads: usize) -> Arc<CpuBackend> {
    let backend = CpuBackend::new();
    Arc::new(if threads > 1 { backend.with_executor(Arc::new(ThreadPool::new(threads))) } else { backend })
}

/// Sets the number of threads of calls that begin from now on.
pub(crate) fn set_num_threads(threads: usize) {
    *BACKEND.write().unwrap_or_else(PoisonError::into_inner) = Some(make(threads));
}

/// In the child of a fork: the threads of the pool are not there, and nobody waits for them.
pub(crate) fn forget_threads() {
    let mut backend = BACKEND.write().unwrap_or_else(PoisonError::into_inner);
    std::mem::forget(backend.take());
}

impl Tensor {
    /// `len` elements from the first one on.
    ///
    /// # Safety
    /// The tensor lies in host memory, has elements of type `T`, and so many of them; nobody writes them for `'a`.
    unsafe fn elements<'a, T>(&self, len: usize) -> &'a [T] {
        if len == 0 {
            return &[];
        }
        // SAFETY: the caller's promise; `Values` has checked the alignment.
        unsafe { std::slice::from_raw_parts(self.data as *const T, len) }
    }
    /// # Safety
    /// As [`Tensor::elements`], and nobody else reads or writes them.
    unsafe fn elements_mut<'a, T>(&self, len: usize) -> &'a mut [T] {
        if len == 0 {
            return &mut [];
        }
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.data as *mut T, len) }
    }

    /// Contiguous f32, checked.
    ///
    /// # Safety
    /// The tensor lies in host memory, and nobody writes it for `'a`.
    pub(crate) unsafe fn f32s<'a>(&self) -> Result<&'a [f32]> {
        self.check_f32()?;
        self.check_contiguous()?;
        // SAFETY: checked above; the caller's promise.
        Ok(unsafe { self.elements(self.numel()) })
    }
    /// # Safety
    /// As [`Tensor::f32s`], and nobody else reads or writes it.
    pub(crate) unsafe fn f32s_mut<'a>(&self) -> Result<&'a mut [f32]> {
        self.check_f32()?;
        self.check_contiguous()?;
        // SAFETY: checked above; the caller's promise.
        Ok(unsafe { self.elements_mut(self.numel()) })
    }
    /// Contiguous int32, checked.
    ///
    /// # Safety
    /// As [`Tensor::f32s`].
    pub(crate) unsafe fn i32s<'a>(&self) -> Result<&'a [i32]> {
        self.check_i32()?;
        self.check_contiguous()?;
        // SAFETY: checked above; the caller's promise.
        Ok(unsafe { self.elements(self.numel()) })
    }
    /// Contiguous int32 that are not negative where they count, checked.
    ///
    /// # Safety
    /// As [`Tensor::f32s`].
    pub(crate) unsafe fn u32s<'a>(&self) -> Result<&'a [u32]> {
        self.check_i32()?;
        self.check_contiguous()?;
        // SAFETY: checked above; both types have any bits; the caller's promise.
        Ok(unsafe { self.elements(self.numel()) })
    }
    /// All elements of contiguous states, to write.
    ///
    /// # Safety
    /// As [`Tensor::f32s_mut`].
    pub(crate) unsafe fn states<'a>(&self) -> Result<DataMut<'a>> {
        self.check_contiguous()?;
        // SAFETY: checked above; the caller's promise.
        unsafe { self.data_mut(self.numel()) }
    }

    unsafe fn data_mut<'a>(&self, len: usize) -> Result<DataMut<'a>> {
        let dtype = self.float()?;
        // SAFETY: the elements are of that type; the caller's promise.
        Ok(unsafe {
            match dtype {
                DType::F32 => DataMut::F32(self.elements_mut(len)),
                DType::Bf16 => DataMut::Bf16(self.elements_mut::<bf16>(len)),
                DType::F16 => DataMut::F16(self.elements_mut::<f16>(len)),
            }
        })
    }

    /// Rows of tokens to read.
    ///
    /// # Safety
    /// As [`Tensor::f32s`]; `tokens` are those of this tensor.
    pub(crate) unsafe fn rows<'a>(&self, tokens: &Tokens) -> Result<Rows<'a>> {
        let (dtype, len) = (self.float()?, tokens.extent());
        // SAFETY: the rows reach to the tensor's last element; the elements are of that type; the caller's promise.
        let data: Data<'a> = unsafe {
            match dtype {
                DType::F32 => Data::F32(self.elements(len)),
                DType::Bf16 => Data::Bf16(self.elements::<bf16>(len)),
                DType::F16 => Data::F16(self.elements::<f16>(len)),
            }
        };
        Ok(Rows { data, row_stride: tokens.stride })
    }
    /// Rows of tokens to write.
    ///
    /// # Safety
    /// As [`Tensor::f32s_mut`]; `tokens` are those of this tensor.
    pub(crate) unsafe fn rows_mut<'a>(&self, tokens: &Tokens) -> Result<RowsMut<'a>> {
        // SAFETY: the rows reach to the tensor's last element; the caller's promise.
        Ok(RowsMut { data: unsafe { self.data_mut(tokens.extent())? }, row_stride: tokens.stride })
    }
    /// Rows of tokens in f32 without gaps: as they lie, or converted, which is exact.
    ///
    /// # Safety
    /// As [`Tensor::rows`].
    pub(crate) unsafe fn f32_rows<'a>(&self, tokens: &Tokens) -> Result<Cow<'a, [f32]>> {
        // SAFETY: the caller's promise.
        let rows = unsafe { self.rows(tokens)? };
        if let Data::F32(data) = rows.data
            && (tokens.stride == tokens.len || tokens.num <= 1)
        {
            return Ok(Cow::Borrowed(&data[..tokens.num * tokens.len]));
        }
        let all = rows.data.to_f32();
        let gather = (0..tokens.num).flat_map(|t| &all[t * tokens.stride..t * tokens.stride + tokens.len]);
        Ok(Cow::Owned(gather.copied().collect()))
    }
}

impl Tokens {
    /// Elements from the first row's first to the last row's last.
    fn extent(&self) -> usize {
        if self.num == 0 { 0 } else { (self.num - 1) * self.stride + self.len }
    }
}
