//! The model's own head for the token after the next.

use super::{Choose, Drafter};
use crate::error::Result;
use crate::model::{MtpCache, MtpHead};

/// Drafts with a model's MTP head, each guess fed back for the next one.
///
/// The head has a key/value cache of its own over the true pairs of the whole sequence, so that a draft depends on the
/// true tokens alone, never on earlier drafts.
#[derive(Debug)]
pub struct MtpDrafter<'m> {
    head: &'m MtpHead,
    cache: MtpCache,
}

impl<'m> MtpDrafter<'m> {
    /// A drafter for sequences of up to `capacity` tokens.
    ///
    /// # Errors
    /// As [`MtpHead::new_cache`].
    pub fn new(head: &'m MtpHead, capacity: usize) -> Result<Self> {
        Ok(Self { head, cache: head.new_cache(capacity)? })
    }
}

impl Drafter for MtpDrafter<'_> {
    fn begin(&mut self, _first_token: u32) -> Result<()> {
        self.cache.reset();
        Ok(())
    }
    fn observe(&mut self, hidden: &[f32], next_tokens: &[u32]) -> Result<()> {
        self.head.feed(&mut self.cache, hidden, next_tokens)
    }
    fn propose(&mut self, max_drafts: usize, choose: &mut Choose<'_>, drafts: &mut Vec<u32>) -> Result<()> {
        self.head.draft(&mut self.cache, max_drafts, &mut |step| choose(step.position as u64, step.logits), drafts)?;
        Ok(())
    }
}
