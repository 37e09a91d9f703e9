//! Devices by name.

use std::ffi::c_char;
use std::sync::Arc;

use undraft::cpu::{CpuBackend, Isa, ThreadPool};
use undraft::cuda::CudaError;
use undraft::{Device, Error, Support};

use crate::choices::{
    capture, decay_shape, float_dtype, op, undraft_capture, undraft_decay_shape, undraft_dtype, undraft_op,
};
use crate::pointer::{
    boxed, check_reserved, check_writable, free, object, read_sized, sized, text, write, write_sized,
};
use crate::status::{Failure, Result, UNDRAFT_NO_DEVICE, give_string, guard, undraft_status};

/// A device.
#[derive(Debug)]
pub struct undraft_device {
    pub(crate) device: Device,
    name: String,
    num_threads: u32,
}

/// Most threads of a device.
const MAX_THREADS: u32 = 1024;

/// How a device runs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_device_options {
    /// Bytes of the struct.
    pub size: usize,
    /// Threads of the CPU; 0 is 1.
    pub num_threads: u32,
    /// 0.
    pub reserved: u32,
    /// Instruction set of the CPU; null is the best.
    pub isa: *const c_char,
}
sized!(undraft_device_options);

/// What a device is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_device_info {
    /// Bytes of the struct.
    pub size: usize,
    /// As it was asked for.
    pub name: [c_char; 32],
    /// As messages name it.
    pub backend: [c_char; 32],
    /// Threads of the CPU.
    pub num_threads: u32,
    /// Largest head size.
    pub max_head_dim: u32,
    /// 1 if draft trees are verified.
    pub has_trees: u32,
    /// 0.
    pub reserved: u32,
}
sized!(undraft_device_info);

/// One question to [`undraft_device_supports`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_support {
    /// Bytes of the struct.
    pub size: usize,
    /// Operation.
    pub op: undraft_op,
    /// Dtype of q, k, v, o or x.
    pub io_dtype: undraft_dtype,
    /// `K`.
    pub head_k_dim: u32,
    /// `V`.
    pub head_v_dim: u32,
    /// What windows record.
    pub capture: undraft_capture,
    /// Dtype of the states.
    pub state_dtype: undraft_dtype,
    /// Over what the state decays.
    pub decay_shape: undraft_decay_shape,
    /// 1: windows are draft trees.
    pub tree: u32,
}
sized!(undraft_support);

impl undraft_device {
    /// # Safety
    /// `options.isa` is null or a string.
    unsafe fn new(name: &str, options: Option<undraft_device_options>) -> Result<Self> {
        let num_threads = options.map_or(1, |o| o.num_threads.max(1));
        if num_threads > MAX_THREADS {
            return Err(Failure::invalid(format!("`num_threads` is {num_threads}, expected at most {MAX_THREADS}")));
        }
        let isa = match options {
            Some(options) => {
                check_reserved("undraft_device_options", &[options.reserved])?;
                match options.isa.is_null() {
                    true => None,
                    // SAFETY: by this function's contract.
                    false => Some(isa(unsafe { text("isa", options.isa) }?)?),
                }
            }
            None => None,
        };
        let (kind, number) = name.split_once(':').map_or((name, None), |(kind, number)| (kind, Some(number)));
        match (kind, number) {
            ("cpu", None) => {
                let mut cpu = CpuBackend::with_isa(isa.unwrap_or_else(Isa::best))?;
                if num_threads > 1 {
                    cpu = cpu.with_executor(Arc::new(ThreadPool::new(num_threads as usize)));
                }
                Ok(Self { device: Device::cpu_with(cpu), name: name.to_owned(), num_threads })
            }
            ("metal", None) => Ok(Self { device: Device::metal()?, name: name.to_owned(), num_threads: 1 }),
            ("cuda" | "wgpu", number) if number.unwrap_or("0").bytes().all(|c| c.is_ascii_digit()) => {
                let ordinal = number.unwrap_or("0").parse().map_err(|_| unknown(name))?;
                let device = if kind == "cuda" { Device::cuda(ordinal)? } else { Device::wgpu(ordinal)? };
                Ok(Self { device, name: format!("{kind}:{ordinal}"), num_threads: 1 })
            }
            _ => Err(unknown(name)),
        }
    }
}

fn unknown(name: &str) -> Failure {
    Failure::new(UNDRAFT_NO_DEVICE, format!("`name` is {name:?}, expected cpu, cuda, cuda:N, metal, wgpu or wgpu:N"))
}

fn isa(name: &str) -> Result<Isa> {
    Isa::ALL.into_iter().find(|isa| isa.name() == name).ok_or_else(|| {
        let names: Vec<_> = Isa::ALL.iter().map(|isa| isa.name()).collect();
        Failure::invalid(format!("`isa` is {name:?}, expected one of {}", names.join(", ")))
    })
}

/// A string with its end in an array, cut where it is too long.
fn chars(text: &str) -> [c_char; 32] {
    let mut chars = [0; 32];
    for (to, byte) in chars[..31].iter_mut().zip(text.bytes()) {
        *to = byte as c_char;
    }
    chars
}

/// Names of the devices of this machine, one a line.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_device_names(names: *mut *mut c_char, message: *mut *mut c_char) -> undraft_status {
    let body = || {
        check_writable("names", names)?;
        let mut lines = "cpu".to_owned();
        for ordinal in 0.. {
            match Device::cuda(ordinal) {
                Ok(_) => lines += &format!("\ncuda:{ordinal}"),
                // Too old for the kernels; the next one may not be.
                Err(Error::Cuda(CudaError::ComputeCapability { .. })) => {}
                Err(_) => break,
            }
        }
        if Device::metal().is_ok() {
            lines += "\nmetal";
        }
        for adapter in undraft::wgpu::adapters() {
            lines += &format!("\nwgpu:{}", adapter.ordinal);
        }
        // SAFETY: by this function's contract.
        unsafe { give_string("names", names, lines) }
    };
    // SAFETY: `message` by this function's contract.
    unsafe { guard(message, body) }
}

/// Opens a device.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_device_new(
    name: *const c_char,
    options: *const undraft_device_options,
    device: *mut *mut undraft_device,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = || {
        check_writable("device", device)?;
        // SAFETY: `name` and `options` by this function's contract.
        let made = unsafe {
            let name = text("name", name)?;
            let options = if options.is_null() { None } else { Some(read_sized("options", options)?) };
            undraft_device::new(name, options)?
        };
        // SAFETY: `device` by this function's contract.
        unsafe { write("device", device, boxed(made)) }
    };
    // SAFETY: `message` by this function's contract.
    unsafe { guard(message, body) }
}

/// Frees a device.
///
/// # Safety
/// `device` is null or an object of this library that is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_device_free(device: *mut undraft_device) {
    let body = || {
        // SAFETY: by this function's contract.
        unsafe { free(device) };
        Ok(())
    };
    // SAFETY: no message is asked for.
    unsafe { guard(std::ptr::null_mut(), body) };
}

/// Describes a device.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_device_get_info(
    device: *const undraft_device,
    info: *mut undraft_device_info,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = || {
        // SAFETY: by this function's contract.
        let device = unsafe { object("device", device) }?;
        let caps = device.device.backend().caps();
        let values = undraft_device_info {
            size: size_of::<undraft_device_info>(),
            name: chars(&device.name),
            backend: chars(caps.backend),
            num_threads: device.num_threads,
            max_head_dim: caps.max_head_dim as u32,
            has_trees: u32::from(caps.trees),
            reserved: 0,
        };
        // SAFETY: a struct of as many bytes as it says, by this function's contract.
        unsafe { write_sized("info", info, values) }
    };
    // SAFETY: `message` by this function's contract.
    unsafe { guard(message, body) }
}

/// Whether a device does something.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_device_supports(
    device: *const undraft_device,
    what: *const undraft_support,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = || {
        // SAFETY: by this function's contract.
        let (device, what) = unsafe { (object("device", device)?, read_sized("what", what)?) };
        let question = Support {
            op: op("op", what.op)?,
            io: float_dtype("io_dtype", what.io_dtype)?,
            head_k_dim: what.head_k_dim as usize,
            head_v_dim: what.head_v_dim as usize,
            capture: capture("capture", what.capture)?,
            state: float_dtype("state_dtype", what.state_dtype)?,
            decay_shape: decay_shape("decay_shape", what.decay_shape)?,
            tree: what.tree != 0,
        };
        Ok(device.device.backend().caps().supports(&question)?)
    };
    // SAFETY: `message` by this function's contract.
    unsafe { guard(message, body) }
}
