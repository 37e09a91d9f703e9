//! f32 memory that starts on a cache line, so that no vector of it spans two.

use std::ops::{Deref, DerefMut};

/// One cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// A growable slice of f32 at a 64-byte boundary.
///
/// ```
/// let mut buffer = undraft_cpu::AlignedBuffer::zeroed(5)?;
/// buffer[4] = 1.0;
/// assert_eq!(&buffer[..], [0.0, 0.0, 0.0, 0.0, 1.0]);
/// assert_eq!(buffer.as_ptr() as usize % 64, 0);
/// # Ok::<(), std::collections::TryReserveError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct AlignedBuffer {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedBuffer {
    /// `len` zeros.
    ///
    /// # Errors
    /// If the system refuses the memory.
    pub fn zeroed(len: usize) -> Result<Self, std::collections::TryReserveError> {
        let mut lines = Vec::new();
        let num_lines = len.div_ceil(16);
        lines.try_reserve_exact(num_lines)?;
        lines.resize(num_lines, Line([0.0; 16]));
        Ok(Self { lines, len })
    }

    /// The first `len` elements, after growing to hold them; new ones are zero.
    pub fn resized(&mut self, len: usize) -> &mut [f32] {
        if self.len < len {
            self.lines.resize(len.div_ceil(16), Line([0.0; 16]));
            self.len = len;
        }
        &mut self[..len]
    }
}

impl Deref for AlignedBuffer {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        // SAFETY: a `Line` is 16 f32 without padding (64 bytes, repr(C)), and `len <= 16 * lines.len()`.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above; the lines are borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
