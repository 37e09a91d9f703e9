//! Pointers of the caller other than tensors.

use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};

use crate::status::{Failure, Result, UNDRAFT_UNSUPPORTED};

fn null(arg: &'static str, expected: &str) -> Failure {
    Failure::invalid(format!("`{arg}` is NULL, expected {expected}"))
}

fn check_aligned<T>(arg: &'static str, pointer: *const T) -> Result<()> {
    match pointer.is_aligned() {
        true => Ok(()),
        false => Err(Failure::invalid(format!("`{arg}` is {pointer:?}, expected a multiple of {}", align_of::<T>()))),
    }
}

/// An object that undraft gave.
///
/// # Safety
/// `pointer` is null or an object that this library made and that lives for `'a`.
pub(crate) unsafe fn object<'a, T>(arg: &'static str, pointer: *const T) -> Result<&'a T> {
    check_aligned(arg, pointer)?;
    // SAFETY: an object of this library, or null, by the function's contract.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(arg, "an object that undraft made"))
}

/// Gives an object out.
pub(crate) fn boxed<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// Frees an object.
///
/// # Safety
/// `pointer` is null or was made by [`boxed`], and is not used afterwards.
pub(crate) unsafe fn free<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: made by `Box::into_raw`, and given back once, by the function's contract.
        drop(unsafe { Box::from_raw(pointer) });
    }
}

/// Writes a result.
///
/// # Safety
/// `to` is null or may be written.
pub(crate) unsafe fn write<T>(arg: &'static str, to: *mut T, value: T) -> Result<()> {
    check_writable(arg, to)?;
    // SAFETY: not null and aligned, as was checked; writable by the function's contract.
    unsafe { to.write(value) };
    Ok(())
}

/// Checks a place for a result before anything is done for it.
pub(crate) fn check_writable<T>(arg: &'static str, to: *mut T) -> Result<()> {
    if to.is_null() {
        return Err(null(arg, "a place for the result"));
    }
    check_aligned(arg, to)
}

/// A list of the caller; null where it is empty.
///
/// # Safety
/// `pointer` is null or leads to `len` elements, which nobody writes during `'a`.
pub(crate) unsafe fn list<'a, T>(arg: &'static str, pointer: *const T, len: usize) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(null(arg, &format!("{len} elements")));
    }
    check_aligned(arg, pointer)?;
    if len > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Failure::invalid(format!("`{arg}` has {len} elements, expected fewer bytes than addresses")));
    }
    // SAFETY: not null, aligned and no larger than an object can be, as was checked; readable by the function's contract.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// A string of the caller.
///
/// # Safety
/// `pointer` is null or ends with a zero byte, and nobody writes it during `'a`.
pub(crate) unsafe fn c_str<'a>(arg: &'static str, pointer: *const c_char) -> Result<&'a CStr> {
    if pointer.is_null() {
        return Err(null(arg, "a string"));
    }
    // SAFETY: not null, and terminated by the function's contract.
    Ok(unsafe { CStr::from_ptr(pointer) })
}

/// A string of the caller in UTF-8.
///
/// # Safety
/// As [`c_str`].
pub(crate) unsafe fn text<'a>(arg: &'static str, pointer: *const c_char) -> Result<&'a str> {
    // SAFETY: the same contract.
    let text = unsafe { c_str(arg, pointer) }?;
    text.to_str().map_err(|_| Failure::invalid(format!("`{arg}` is {text:?}, expected UTF-8")))
}

/// A path of the caller: any bytes on Unix, UTF-8 elsewhere.
///
/// # Safety
/// As [`c_str`].
pub(crate) unsafe fn path(arg: &'static str, pointer: *const c_char) -> Result<PathBuf> {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        // SAFETY: the same contract.
        let path = unsafe { c_str(arg, pointer) }?;
        Ok(Path::new(std::ffi::OsStr::from_bytes(path.to_bytes())).to_owned())
    }
    #[cfg(not(unix))]
    {
        // SAFETY: the same contract.
        unsafe { text(arg, pointer) }.map(|path| Path::new(path).to_owned())
    }
}

/// A struct that begins with its `size` and is valid with any bytes in its other fields.
///
/// # Safety
/// `repr(C)`, the first field is a `usize`, and all zeros, or any other bytes, are a value.
pub(crate) unsafe trait Sized_: Copy {
    /// Name in messages.
    const NAME: &'static str;
    /// Bytes that it had in the first version: today's, until a field is added.
    const MIN: usize;
}

/// Declares a struct of the interface that begins with its `size`.
macro_rules! sized {
    ($name:ident) => {
        // SAFETY: `repr(C)`, begins with `size: usize`, and holds integers, floats, raw pointers and arrays of these alone.
        unsafe impl crate::pointer::Sized_ for $name {
            const NAME: &'static str = stringify!($name);
            const MIN: usize = size_of::<$name>();
        }
    };
}
pub(crate) use sized;

fn check_size<T: Sized_>(size: usize) -> Result<()> {
    if size >= T::MIN {
        return Ok(());
    }
    let (name, min, now) = (T::NAME, T::MIN, size_of::<T>());
    Err(Failure::invalid(format!("`size` of `{name}` is {size}, expected {now}, or at least {min} in old programs")))
}

/// Reads a struct of an older or a newer program: absent fields are 0, and fields that are not known must be 0.
///
/// # Safety
/// `pointer` is null or leads to a struct of as many bytes as its first field says.
pub(crate) unsafe fn read_sized<T: Sized_>(arg: &'static str, pointer: *const T) -> Result<T> {
    if pointer.is_null() {
        return Err(null(arg, "a struct"));
    }
    check_aligned(arg, pointer)?;
    // SAFETY: not null and aligned; begins with a `usize` by the contracts of this function and of the trait.
    let size = unsafe { pointer.cast::<usize>().read() };
    check_size::<T>(size)?;
    // SAFETY: a `T` may be zero by the trait's contract; `size` bytes are readable by this function's, and no more than `T`
    // has are written.
    let value = unsafe {
        let mut value = std::mem::zeroed::<T>();
        let known = size.min(size_of::<T>());
        std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut value).cast::<u8>(), known);
        value
    };
    for at in size_of::<T>()..size {
        // SAFETY: within the `size` bytes of the caller's struct.
        if unsafe { pointer.cast::<u8>().add(at).read() } != 0 {
            let text = format!("`{}` has a field at byte {at} that this version does not know, expected 0", T::NAME);
            return Err(Failure::new(UNDRAFT_UNSUPPORTED, text));
        }
    }
    Ok(value)
}

/// Writes a struct whose `size` the caller has set: the fields that both sides know.
///
/// # Safety
/// `pointer` is null or leads to a struct of as many writable bytes as its first field says.
pub(crate) unsafe fn write_sized<T: Sized_>(arg: &'static str, pointer: *mut T, value: T) -> Result<()> {
    check_writable(arg, pointer)?;
    // SAFETY: not null and aligned; begins with a `usize` by the contracts of this function and of the trait.
    let size = unsafe { pointer.cast::<usize>().read() };
    check_size::<T>(size)?;
    let (first, known) = (size_of::<usize>(), size.min(size_of::<T>()));
    // SAFETY: `known` bytes are readable in `value` and writable in the caller's struct; the caller's `size` stays.
    unsafe {
        let from = (&raw const value).cast::<u8>().add(first);
        std::ptr::copy_nonoverlapping(from, pointer.cast::<u8>().add(first), known - first);
    }
    Ok(())
}

/// Checks that fields kept for later are 0.
pub(crate) fn check_reserved(of: &'static str, reserved: &[u32]) -> Result<()> {
    match reserved.iter().find(|&&x| x != 0) {
        Some(got) => Err(Failure::invalid(format!("`reserved` of `{of}` is {got}, expected 0"))),
        None => Ok(()),
    }
}
