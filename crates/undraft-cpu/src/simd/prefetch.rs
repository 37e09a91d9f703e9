//! A hint to the memory system.

use std::ops::Range;

/// Bytes that come at once.
const LINE: usize = 64;

/// Memory that will be needed soon, asked for a little at a time so that other loads are not held up.
#[derive(Clone, Debug)]
pub struct Ahead {
    left: Range<*const u8>,
}

impl Ahead {
    /// Memory to ask for; it is never read through this.
    #[inline(always)]
    pub fn new(memory: Range<*const u8>) -> Self {
        Self { left: memory }
    }

    /// Asks for the next `num_lines` cache lines.
    #[inline(always)]
    pub fn fetch(&mut self, num_lines: usize) {
        for _ in 0..num_lines {
            if self.left.start >= self.left.end {
                return;
            }
            prefetch(self.left.start);
            self.left.start = self.left.start.wrapping_byte_add(LINE);
        }
    }

    /// Cache lines that are left.
    #[inline(always)]
    pub fn num_lines(&self) -> usize {
        (self.left.end as usize).saturating_sub(self.left.start as usize).div_ceil(LINE)
    }
}

/// Asks for the cache line that holds `x`; where there is no such instruction, nothing happens.
#[inline(always)]
pub fn prefetch<T>(x: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint that may be given for any address, and SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(x.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = x;
}
