//! `write_words` and `clear_words`: memory that is written in its turn among launches.

use crate::error::Result;
use crate::raw::{Call, EncoderHandle, Launcher, Slice, check_sizes};
use crate::select::Kernel;

/// Words that one launch writes: its parameters, at most 4,096 bytes, are their number and they.
const MOST_WORDS: usize = 1023;

/// As in the kernel's source.
#[repr(C)]
struct ClearWords {
    num_words: i64,
}

/// A launch of a thread for each word.
fn call<'a>(op: &'static str, kernel: Kernel, to: &'a [Slice; 1], num_words: u64) -> Call<'a> {
    Call {
        op,
        kernel,
        buffers: to,
        params_slot: 1,
        threadgroups: [num_words.div_ceil(128), 1, 1],
        threads: [128, 1, 1],
        threadgroup_bytes: 0,
    }
}

impl Launcher {
    /// Writes words of 32 bits behind the launches before and ahead of those that come, 1,023 a launch. They are copied now.
    ///
    /// # Errors
    /// [`crate::MetalError`] of the launches.
    ///
    /// # Safety
    /// The contract of [`crate::raw`]; `to` has as many words.
    pub unsafe fn write_words(&self, encoder: EncoderHandle, to: Slice, words: &[u32]) -> Result<()> {
        for (part, words) in words.chunks(MOST_WORDS).enumerate() {
            let mut params = [words.len() as u32; 1 + MOST_WORDS];
            params[1..=words.len()].copy_from_slice(words);
            let to = [to.skip(part * MOST_WORDS * size_of::<u32>())];
            let call = call("write_words", Kernel::WriteWords, &to, words.len() as u64);
            // SAFETY: the kernel takes these parameters; the caller's promise.
            unsafe { self.launch(encoder, call, &params[..=words.len()])? };
        }
        Ok(())
    }

    /// Sets so many words of 32 bits to 0, in the same way.
    ///
    /// # Errors
    /// [`crate::MetalError`] of the launch.
    ///
    /// # Safety
    /// As of [`Launcher::write_words`].
    pub unsafe fn clear_words(&self, encoder: EncoderHandle, to: Slice, num_words: i64) -> Result<()> {
        check_sizes("clear_words", 0, &[("num_words", num_words)])?;
        let to = [to];
        let call = call("clear_words", Kernel::ClearWords, &to, num_words as u64);
        // SAFETY: the kernel takes these parameters; the caller's promise.
        unsafe { self.launch(encoder, call, &ClearWords { num_words }) }
    }
}
