//! Regions of pages with space between them that must not be touched.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

unsafe extern "C" {
    fn lockstep_reserve(bytes: usize) -> *mut c_void;
    fn lockstep_protect(at: *mut c_void, bytes: usize, open: c_int) -> c_int;
    fn lockstep_release(at: *mut c_void, bytes: usize);
    fn lockstep_watch(at: *mut c_void, bytes: usize, on: c_int);
}

/// A multiple of the page sizes of x86-64 and ARM.
pub(crate) const PAGE: usize = 64 << 10;
/// Address space of a device.
const RESERVED: usize = 64 << 30;

/// Pages that may be read and written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) begin: NonNull<u8>,
    pub(crate) bytes: usize,
}

impl Region {
    /// Has the address sanitizer, where the kernels were compiled for it, tell of whoever touches these bytes, or no longer.
    pub(crate) fn watch(&self, at: usize, bytes: usize, on: bool) {
        assert!(at <= self.bytes && bytes <= self.bytes - at, "bytes {at}..{at}+{bytes} of a region of {}", self.bytes);
        // SAFETY: within the region, as was just checked.
        unsafe { lockstep_watch(self.begin.as_ptr().add(at).cast(), bytes, on.into()) }
    }
}

/// Address space, given out in regions of a power of two pages, each followed by one that stays closed.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// Reserved with the first region.
    begin: Option<NonNull<u8>>,
    used: usize,
    /// Closed regions, by size.
    free: HashMap<usize, Vec<NonNull<u8>>>,
}

// SAFETY: the address space belongs to the one `Pages`.
unsafe impl Send for Pages {}

impl Pages {
    /// At least so many bytes.
    pub(crate) fn open(&mut self, bytes: usize) -> Option<Region> {
        let bytes = bytes.checked_next_multiple_of(PAGE)?.checked_next_power_of_two()?;
        let begin = match self.free.get_mut(&bytes).and_then(Vec::pop) {
            Some(begin) => begin,
            None => self.fresh(bytes)?,
        };
        // SAFETY: reserved address space that belongs to nobody else.
        let failed = unsafe { lockstep_protect(begin.as_ptr().cast(), bytes, 1) };
        (failed == 0).then_some(Region { begin, bytes })
    }
    fn fresh(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        if self.begin.is_none() {
            // SAFETY: no conditions.
            self.begin = NonNull::new(unsafe { lockstep_reserve(RESERVED) }.cast());
            // What lies before the first region stays closed as well.
            self.used = PAGE;
        }
        let (at, end) = (self.used, self.used.checked_add(bytes)?.checked_add(PAGE)?);
        if end > RESERVED {
            return None;
        }
        self.used = end;
        // SAFETY: within the reserved address space.
        self.begin.map(|begin| unsafe { begin.add(at) })
    }
    /// Whoever touches the region after this is caught.
    pub(crate) fn close(&mut self, region: Region) {
        // SAFETY: opened before, and no longer in use.
        unsafe { lockstep_protect(region.begin.as_ptr().cast(), region.bytes, 0) };
        self.free.entry(region.bytes).or_default().push(region.begin);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if let Some(begin) = self.begin {
            // SAFETY: reserved by `fresh`, released here alone.
            unsafe { lockstep_release(begin.as_ptr().cast(), RESERVED) };
        }
    }
}
