//! Drafts that a test dictates.

use super::{Choose, DraftLimits, Drafter, Drafts};
use crate::error::Result;

/// Asks a closure for the drafts: it gets the tokens known so far and how many drafts are wanted, and gives a chain
/// (`Vec<u32>`) or [`Drafts`].
///
/// A chain is asked for with [`DraftLimits::max_depth`], a tree with [`DraftLimits::max_drafts`]: see
/// [`ScriptedDrafter::trees`].
pub struct ScriptedDrafter<F> {
    tokens: Vec<u32>,
    script: F,
    trees: bool,
}

impl<F> ScriptedDrafter<F> {
    /// A drafter that follows `script`, which is asked for chains.
    pub fn new<D: Into<Drafts>>(script: F) -> Self
    where
        F: FnMut(&[u32], usize) -> D,
    {
        Self { tokens: Vec::new(), script, trees: false }
    }

    /// A drafter that follows `script`, which is asked for trees.
    pub fn trees<D: Into<Drafts>>(script: F) -> Self
    where
        F: FnMut(&[u32], usize) -> D,
    {
        Self { tokens: Vec::new(), script, trees: true }
    }
}

impl<H: ?Sized, D: Into<Drafts>, F: FnMut(&[u32], usize) -> D> Drafter<H> for ScriptedDrafter<F> {
    fn begin(&mut self, first_token: u32) -> Result<()> {
        self.tokens.clear();
        self.tokens.push(first_token);
        Ok(())
    }
    fn observe(&mut self, _hidden: &H, next_tokens: &[u32]) -> Result<()> {
        self.tokens.extend_from_slice(next_tokens);
        Ok(())
    }
    fn propose(&mut self, limits: DraftLimits, _choose: &mut dyn Choose, drafts: &mut Drafts) -> Result<()> {
        let wanted = if self.trees { limits.max_drafts } else { limits.max_depth };
        *drafts = (self.script)(&self.tokens, wanted).into();
        Ok(())
    }
}
