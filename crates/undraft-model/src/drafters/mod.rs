//! Who guesses the next tokens.
//!
//! A drafter only ever guesses: what is generated depends on the model, the prompt and the sampling parameters alone.

pub mod lookup;
mod mtp;
mod scripted;

pub use lookup::{LookupDrafter, LookupOptions};
pub use mtp::MtpDrafter;
pub use scripted::ScriptedDrafter;

use crate::error::Result;

/// Takes a token for a position from a drafter's logits, as the generation samples.
pub type Choose<'a> = dyn FnMut(u64, &[f32]) -> Result<u32> + 'a;

/// Guesses how a sequence goes on.
pub trait Drafter {
    /// The first token of the sequence; forgets any sequence before.
    ///
    /// # Errors
    /// The drafter's.
    fn begin(&mut self, first_token: u32) -> Result<()>;

    /// Makes room for a sequence of `num_tokens`, so that nothing is allocated while it grows; a hint.
    fn reserve(&mut self, num_tokens: usize) {
        let _ = num_tokens;
    }

    /// True tokens behind those known, each with the state `[H]` of the trunk (behind its last norm) at the position
    /// before it: `hidden` is `[n, H]` for n tokens.
    ///
    /// # Errors
    /// The drafter's.
    fn observe(&mut self, hidden: &[f32], next_tokens: &[u32]) -> Result<()>;

    /// Clears `drafts` and fills it with up to `max_drafts` guesses for the tokens behind those known. A guess from
    /// logits is taken through `choose`, with its position in the sequence; any other counts as certain.
    ///
    /// # Errors
    /// The drafter's, or that of `choose`.
    fn propose(&mut self, max_drafts: usize, choose: &mut Choose<'_>, drafts: &mut Vec<u32>) -> Result<()>;
}

impl Drafter for LookupDrafter {
    fn begin(&mut self, first_token: u32) -> Result<()> {
        self.clear();
        self.extend(&[first_token]);
        Ok(())
    }
    fn reserve(&mut self, num_tokens: usize) {
        LookupDrafter::reserve(self, num_tokens.saturating_sub(self.tokens().len()));
    }
    fn observe(&mut self, _hidden: &[f32], next_tokens: &[u32]) -> Result<()> {
        self.extend(next_tokens);
        Ok(())
    }
    fn propose(&mut self, max_drafts: usize, _choose: &mut Choose<'_>, drafts: &mut Vec<u32>) -> Result<()> {
        LookupDrafter::propose(self, max_drafts, drafts);
        Ok(())
    }
}
