//! The model's own head for the token after the next.

use super::{Choose, DraftLimits, Drafter, Drafts};
use crate::error::Result;
use crate::model::{DraftStep, MtpCache, MtpHead, TreeShape};

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

    /// Bytes of the head's keys and values.
    pub fn memory(&self) -> usize {
        self.cache.memory()
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
    fn propose(&mut self, limits: DraftLimits, choose: &mut dyn Choose, drafts: &mut Drafts) -> Result<()> {
        let mut choose = |step: DraftStep<'_>| choose.token(step.position as u64, step.logits);
        self.head.draft(&mut self.cache, limits.max_depth, &mut choose, drafts.begin_chain())?;
        Ok(())
    }
}

/// Drafts trees with a model's MTP head: at each depth the likeliest tokens behind every token.
///
/// The shape says how wide and deep, [`DraftLimits::max_drafts`] how many tokens in all. With a chance of `a` that the
/// likeliest token is right and `b` that one of the next is, a chain of depth 1 accepts `a` tokens and a tree `a + b`; it
/// pays where verifying some tokens more costs less than that.
#[derive(Debug)]
pub struct MtpTreeDrafter<'m> {
    head: &'m MtpHead,
    cache: MtpCache,
    shape: TreeShape,
}

impl<'m> MtpTreeDrafter<'m> {
    /// A drafter for sequences of up to `capacity` tokens. A tree's pairs lie in the same memory until it is made, so that
    /// the trees become small where fewer than its size are left.
    ///
    /// # Errors
    /// As [`MtpHead::new_cache`].
    pub fn new(head: &'m MtpHead, capacity: usize, shape: TreeShape) -> Result<Self> {
        Ok(Self { head, cache: head.new_cache(capacity)?, shape })
    }

    /// Bytes of the head's keys and values.
    pub fn memory(&self) -> usize {
        self.cache.memory()
    }
}

impl Drafter for MtpTreeDrafter<'_> {
    fn begin(&mut self, _first_token: u32) -> Result<()> {
        self.cache.reset();
        Ok(())
    }
    fn observe(&mut self, hidden: &[f32], next_tokens: &[u32]) -> Result<()> {
        self.head.feed(&mut self.cache, hidden, next_tokens)
    }
    fn propose(&mut self, limits: DraftLimits, choose: &mut dyn Choose, drafts: &mut Drafts) -> Result<()> {
        let limits = (limits.max_drafts, limits.max_depth);
        self.head.draft_tree(
            &mut self.cache,
            &self.shape,
            limits,
            &mut |step, width, candidates| choose.candidates(step.position as u64, step.logits, width, candidates),
            drafts,
        )?;
        Ok(())
    }
}
