//! The boxed kernels: what the dispatcher calls with the values of a call.

use std::cell::RefCell;
use std::ffi::{CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use undraft::DType;
use undraft::cuda::raw::{CUstream, Launcher};

use super::ABI;
use super::abi::{Abi, BoxedKernel, Handle};
use crate::args::{Caller, Kind, Values};
use crate::cuda::{self, KeepContext};
use crate::error::{Error, Result};
use crate::ops::OPS;
use crate::tensor::{Device, ElementType, Shape, Tensor};

/// One kernel an operation, for all devices: where the tensors lie is seen from the tensors.
pub(super) static KERNELS: [BoxedKernel; OPS.len()] =
    [boxed::<0>, boxed::<1>, boxed::<2>, boxed::<3>, boxed::<4>, boxed::<5>, boxed::<6>, boxed::<7>, boxed::<8>];

thread_local! {
    /// What torch is told of a call that failed; it reads the text while this stays.
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// # Safety
/// torch's promise: `stack` holds the values of operation `OP`, as many as `num_args` says, and they are the kernel's to give
/// back.
unsafe extern "C-unwind" fn boxed<const OP: usize>(stack: *mut u64, num_args: u64, _num_outputs: u64) {
    let Some(abi) = ABI.get() else { return };
    // SAFETY: torch's promise.
    let bits = unsafe { std::slice::from_raw_parts(stack, num_args as usize) };
    let outcome = catch_unwind(AssertUnwindSafe(|| call(OP, abi, bits)));
    let outcome = outcome.unwrap_or_else(|_| Err(Error::Internal { what: format!("`{}` panicked", OPS[OP].name) }));
    let Err(error) = outcome else { return };
    let message = MESSAGE.with(|message| {
        *message.borrow_mut() = CString::new(error.to_string()).unwrap_or_default();
        message.borrow().as_ptr()
    });
    // SAFETY: texts that end with 0, the message in this thread's memory. torch throws from here, which this function lets
    // pass: nothing of it is left to be dropped.
    unsafe { (abi.check)(false, c"undraft".as_ptr(), c"undraft".as_ptr(), 0, message) };
}

fn call(op: usize, abi: &Abi, bits: &[u64]) -> Result<()> {
    let mut caller =
        Torch { abi, handles: Vec::with_capacity(bits.len()), boxes: Vec::with_capacity(8), context: None };
    // All tensors are this call's to give back, also those behind one that is refused.
    caller.own(op, bits);
    (OPS[op].run)(&mut Values::new(bits, &mut caller))
}

/// torch as a caller; gives the call's tensors back.
struct Torch<'a> {
    abi: &'a Abi,
    handles: Vec<Handle>,
    /// Where optional tensors lie.
    boxes: Vec<*mut c_void>,
    context: Option<KeepContext>,
}

impl Torch<'_> {
    fn own(&mut self, op: usize, bits: &[u64]) {
        for (param, &bits) in OPS[op].params.iter().zip(bits) {
            match param.kind {
                Kind::In | Kind::Out => self.handles.push(bits as Handle),
                Kind::MaybeIn | Kind::MaybeOut => {
                    if let Some(handle) = self.optional(bits) {
                        self.handles.push(handle as Handle);
                        self.boxes.push(bits as *mut c_void);
                    }
                }
                Kind::Int | Kind::Float | Kind::Bool => {}
            }
        }
    }

    /// A call of torch's that gives a status.
    fn well(&self, status: i32, what: &str) -> Result<()> {
        if status == 0 { Ok(()) } else { Err(Error::Torch { why: format!("`{what}` failed") }) }
    }
    fn elements(&self, code: i32) -> (ElementType, usize) {
        let codes = &self.abi.codes;
        let float = |dtype: DType| (ElementType::Float(dtype), dtype.size());
        if code == codes.f32 {
            float(DType::F32)
        } else if code == codes.bf16 {
            float(DType::Bf16)
        } else if code == codes.f16 {
            float(DType::F16)
        } else if code == codes.i32 {
            (ElementType::I32, 4)
        } else {
            let name = codes.others.iter().find(|(other, _)| *other == code).map_or("of another dtype", |o| o.1);
            (ElementType::Other(name), 1)
        }
    }
}

impl Caller for Torch<'_> {
    fn tensor(&mut self, arg: &'static str, bits: u64) -> Result<Tensor> {
        let (abi, handle) = (self.abi, bits as Handle);
        let (mut rank, mut sizes, mut strides) = (0i64, std::ptr::null_mut(), std::ptr::null_mut());
        let (mut data, mut dtype, mut device_type, mut index) = (std::ptr::null_mut::<c_void>(), 0, 0, 0);
        // SAFETY: the handle is a tensor of this call; everything is written where the status is 0.
        let status = unsafe {
            (abi.dim)(handle, &raw mut rank)
                | (abi.sizes)(handle, &raw mut sizes)
                | (abi.strides)(handle, &raw mut strides)
                | (abi.data_ptr)(handle, &raw mut data)
                | (abi.dtype)(handle, &raw mut dtype)
                | (abi.device_type)(handle, &raw mut device_type)
                | (abi.device_index)(handle, &raw mut index)
        };
        self.well(status, arg)?;
        let rank = usize::try_from(rank).unwrap_or(0);
        let list = |of: *mut i64| match rank {
            0 => Shape::new(&[]),
            // SAFETY: torch's lists have an entry an axis, and live as long as the tensor.
            _ => Shape::new(unsafe { std::slice::from_raw_parts(of, rank) }),
        };
        let too_many = || Error::Number { arg, got: rank as i64, expected: "a tensor of at most 6 axes" };
        let (elements, element_size) = self.elements(dtype);
        let device = if device_type == abi.codes.cpu {
            Device::Cpu
        } else if device_type == abi.codes.cuda {
            Device::Cuda(index)
        } else {
            Device::Other
        };
        let (shape, strides) = (list(sizes).ok_or_else(too_many)?, list(strides).ok_or_else(too_many)?);
        Ok(Tensor { arg, data: data as usize, elements, element_size, device, shape, strides })
    }

    fn optional(&mut self, bits: u64) -> Option<u64> {
        // SAFETY: an optional value is null or a pointer to the value.
        (bits != 0).then(|| unsafe { *(bits as *const u64) })
    }

    fn cuda(&mut self, index: i32) -> Result<(Launcher, CUstream)> {
        let current = self.abi.current_cuda_stream.ok_or_else(|| Error::Torch { why: "it has no CUDA".into() })?;
        self.context.get_or_insert_with(KeepContext::new);
        let mut stream = std::ptr::null_mut();
        // SAFETY: the stream is written where the status is 0.
        self.well(unsafe { current(index, &raw mut stream) }, "aoti_torch_get_current_cuda_stream")?;
        let stream: CUstream = stream.cast();
        Ok((cuda::launcher(index, stream)?, stream))
    }

    fn scratch(&mut self, index: i32, bytes: usize) -> Result<u64> {
        let (sizes, strides) = ([bytes as i64], [1]);
        let (mut handle, mut data) = (std::ptr::null_mut(), std::ptr::null_mut());
        let codes = &self.abi.codes;
        // SAFETY: one axis, as both lists have; the handle is written where the status is 0.
        let status = unsafe {
            (self.abi.empty_strided)(1, sizes.as_ptr(), strides.as_ptr(), codes.u8, codes.cuda, index, &raw mut handle)
        };
        self.well(status, "aoti_torch_empty_strided")?;
        // Given back with the call's tensors: torch's allocator gives the memory to later work of the same stream alone.
        self.handles.push(handle);
        // SAFETY: torch has just made the tensor.
        self.well(unsafe { (self.abi.data_ptr)(handle, &raw mut data) }, "aoti_torch_get_data_ptr")?;
        Ok(data as u64)
    }
}

impl Drop for Torch<'_> {
    fn drop(&mut self) {
        for &handle in &self.handles {
            // SAFETY: the call's tensors, given back here alone.
            unsafe { (self.abi.delete_tensor)(handle) };
        }
        for &boxed in &self.boxes {
            // SAFETY: torch made it with `new` for the kernel to delete.
            unsafe { (self.abi.delete)(boxed) };
        }
    }
}
