//! A hint to the memory system.

/// Asks for the cache line that holds `x`; where there is no such instruction, nothing happens.
#[inline(always)]
pub fn prefetch(x: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint that may be given for any address, and SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(x.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = x;
}
