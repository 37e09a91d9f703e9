//! A mutable slice that tasks share, each its own part.

use std::marker::PhantomData;
use std::ops::Range;

/// A `&mut [T]` from which tasks on several threads take disjoint parts.
///
/// Bounds are checked on every access; that the parts are disjoint is the caller's promise.
#[derive(Clone, Copy, Debug)]
pub struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: a `SharedMut` is a borrowed `&mut [T]`; parts of it may move to and be used from other threads as `&mut [T]`
// may, and `part` makes the caller promise that no two live parts overlap.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Shares a slice for as long as it is borrowed.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), life: PhantomData }
    }

    /// The part `range`.
    ///
    /// # Panics
    /// If the range does not lie in the slice.
    ///
    /// # Safety
    /// While the part lives, no other part that overlaps it may.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} lies outside of 0..{}", self.len);
        // SAFETY: the range lies in the slice (checked above), which is borrowed for 'a, and the caller promises that
        // no overlapping part lives.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }

    /// Where a range lies, as far as it lies in the slice: for prefetching, not for reading.
    #[inline(always)]
    pub fn addresses(&self, range: Range<usize>) -> Range<*const T> {
        let at = |index: usize| self.start.wrapping_add(index.min(self.len)).cast_const();
        at(range.start)..at(range.end)
    }
}
