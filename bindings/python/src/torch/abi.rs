//! The functions of torch's stable C ABI that are used, found in the libraries that the process has loaded already: no
//! libtorch at build time, and no C++.

use std::ffi::{CStr, c_char, c_void};

use libloading::os::unix::{Library as Loaded, RTLD_NOW};

use crate::error::{Error, Result};

/// Of `dlopen`: finds a library that is loaded and loads none.
const RTLD_NOLOAD: i32 = if cfg!(target_os = "macos") { 0x10 } else { 4 };
const SUFFIX: &str = if cfg!(target_os = "macos") { "dylib" } else { "so" };

/// A tensor, a library or another object of torch's.
pub(super) type Handle = *mut c_void;
/// A kernel as the dispatcher calls it: values in, values out, in one array.
pub(super) type BoxedKernel = unsafe extern "C-unwind" fn(*mut u64, u64, u64);

macro_rules! abi {
    ($($(#[$meta:meta])* $field:ident = $symbol:literal: fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        /// Functions of libtorch. Those that give an `i32` give 0 where all went well, unless said otherwise.
        pub(super) struct Abi {
            $($(#[$meta])* pub(super) $field: unsafe extern "C-unwind" fn($($arg),*) $(-> $result)?,)*
            /// Current stream of a CUDA device; none where torch has no CUDA.
            pub(super) current_cuda_stream: Option<unsafe extern "C-unwind" fn(i32, *mut *mut c_void) -> i32>,
            pub(super) codes: Codes,
        }

        impl Abi {
            fn find(torch: &Loaded, cuda: Option<&Loaded>) -> Result<Self> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the symbol is a function of this type in torch's headers, since it was added.
                        let symbol = unsafe { torch.get($symbol.as_bytes()) };
                        *symbol.map_err(|_| missing($symbol))?
                    },)*
                    current_cuda_stream: cuda.and_then(|cuda| {
                        // SAFETY: as above.
                        unsafe { cuda.get(b"aoti_torch_get_current_cuda_stream") }.ok().map(|symbol| *symbol)
                    }),
                    codes: Codes::find(torch)?,
                })
            }
        }
    };
}

abi! {
    init_fragment = "aoti_torch_library_init_fragment": fn(*const c_char, *const c_char, u32, *mut Handle) -> i32;
    init_impl = "aoti_torch_library_init_impl":
        fn(*const c_char, *const c_char, *const c_char, u32, *mut Handle) -> i32;
    library_def = "aoti_torch_library_def": fn(Handle, *const c_char) -> i32;
    library_impl = "aoti_torch_library_impl": fn(Handle, *const c_char, BoxedKernel) -> i32;
    data_ptr = "aoti_torch_get_data_ptr": fn(Handle, *mut *mut c_void) -> i32;
    dim = "aoti_torch_get_dim": fn(Handle, *mut i64) -> i32;
    sizes = "aoti_torch_get_sizes": fn(Handle, *mut *mut i64) -> i32;
    strides = "aoti_torch_get_strides": fn(Handle, *mut *mut i64) -> i32;
    dtype = "aoti_torch_get_dtype": fn(Handle, *mut i32) -> i32;
    device_type = "aoti_torch_get_device_type": fn(Handle, *mut i32) -> i32;
    device_index = "aoti_torch_get_device_index": fn(Handle, *mut i32) -> i32;
    empty_strided = "aoti_torch_empty_strided":
        fn(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> i32;
    delete_tensor = "aoti_torch_delete_tensor_object": fn(Handle) -> i32;
    /// Throws the message where the condition does not hold.
    check = "aoti_torch_check": fn(bool, *const c_char, *const c_char, u32, *const c_char);
    /// C++'s `operator delete`, for the box of an optional value.
    delete = "_ZdlPv": fn(*mut c_void);
}

/// Numbers of dtypes and devices, which are torch's to choose.
pub(super) struct Codes {
    pub(super) f32: i32,
    pub(super) bf16: i32,
    pub(super) f16: i32,
    pub(super) i32: i32,
    pub(super) u8: i32,
    /// Dtypes that are refused by name.
    pub(super) others: [(i32, &'static str); 6],
    pub(super) cpu: i32,
    pub(super) cuda: i32,
}

impl Codes {
    fn find(torch: &Loaded) -> Result<Self> {
        let code = |symbol: &'static str| -> Result<i32> {
            // SAFETY: a function without arguments in torch's headers.
            unsafe {
                let function = torch.get::<unsafe extern "C" fn() -> i32>(symbol.as_bytes());
                Ok(function.map_err(|_| missing(symbol))?())
            }
        };
        Ok(Self {
            f32: code("aoti_torch_dtype_float32")?,
            bf16: code("aoti_torch_dtype_bfloat16")?,
            f16: code("aoti_torch_dtype_float16")?,
            i32: code("aoti_torch_dtype_int32")?,
            u8: code("aoti_torch_dtype_uint8")?,
            others: [
                (code("aoti_torch_dtype_float64")?, "f64"),
                (code("aoti_torch_dtype_int64")?, "int64"),
                (code("aoti_torch_dtype_int16")?, "int16"),
                (code("aoti_torch_dtype_int8")?, "int8"),
                (code("aoti_torch_dtype_uint8")?, "uint8"),
                (code("aoti_torch_dtype_bool")?, "bool"),
            ],
            cpu: code("aoti_torch_device_type_cpu")?,
            cuda: code("aoti_torch_device_type_cuda")?,
        })
    }
}

fn missing(symbol: &str) -> Error {
    Error::Torch { why: format!("its library has no `{symbol}`, expected torch 2.11 or later") }
}

/// A library of torch's that the process has loaded; it stays so.
fn loaded(name: &str) -> Option<Loaded> {
    // SAFETY: nothing is loaded, so that nothing runs.
    unsafe { Loaded::open(Some(format!("{name}.{SUFFIX}")), RTLD_NOW | RTLD_NOLOAD) }.ok()
}

impl Abi {
    /// Finds the functions.
    ///
    /// # Errors
    /// [`Error::Torch`] where torch is not loaded, or lacks one.
    pub(super) fn load() -> Result<Self> {
        let torch = loaded("libtorch_cpu");
        let torch = torch.ok_or_else(|| Error::Torch { why: "it is not loaded; `import torch` first".into() })?;
        let cuda = loaded("libtorch_cuda");
        let abi = Self::find(&torch, cuda.as_ref());
        // The functions are used for as long as the process runs.
        std::mem::forget((torch, cuda));
        abi
    }
}

/// A library object of torch's, through which operations are defined and implemented. It stays for good: its end would
/// take the registrations back.
pub(super) struct Library<'a> {
    abi: &'a Abi,
    handle: Handle,
}

/// Where torch says that operations come from.
const FILE: &CStr = c"undraft";

fn well(status: i32, what: &str, of: &CStr) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    Err(Error::Torch { why: format!("it refused {what} `{}`", of.to_string_lossy()) })
}

impl<'a> Library<'a> {
    /// For definitions in a namespace.
    pub(super) fn fragment(abi: &'a Abi, namespace: &CStr) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: texts that end with 0, which torch copies; the handle is written.
        let status = unsafe { (abi.init_fragment)(namespace.as_ptr(), FILE.as_ptr(), line!(), &raw mut handle) };
        well(status, "the namespace", namespace).map(|()| Self { abi, handle })
    }
    /// For kernels of a dispatch key.
    pub(super) fn implementation(abi: &'a Abi, namespace: &CStr, key: &CStr) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: as above.
        let status =
            unsafe { (abi.init_impl)(namespace.as_ptr(), key.as_ptr(), FILE.as_ptr(), line!(), &raw mut handle) };
        well(status, "kernels of", key).map(|()| Self { abi, handle })
    }
    pub(super) fn define(&self, schema: &CStr) -> Result<()> {
        // SAFETY: the handle is torch's; it copies the text.
        well(unsafe { (self.abi.library_def)(self.handle, schema.as_ptr()) }, "the operation", schema)
    }
    pub(super) fn implement(&self, name: &CStr, kernel: BoxedKernel) -> Result<()> {
        // SAFETY: as above; the kernel takes what the operation's schema says.
        well(unsafe { (self.abi.library_impl)(self.handle, name.as_ptr(), kernel) }, "a kernel of", name)
    }
}
