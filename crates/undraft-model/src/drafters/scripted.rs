//! Drafts that a test dictates.

use super::{Choose, Drafter};
use crate::error::Result;

/// Asks a closure for the drafts: it gets the tokens known so far and how many drafts are wanted.
pub struct ScriptedDrafter<F> {
    tokens: Vec<u32>,
    script: F,
}

impl<F: FnMut(&[u32], usize) -> Vec<u32>> ScriptedDrafter<F> {
    /// A drafter that follows `script`.
    pub fn new(script: F) -> Self {
        Self { tokens: Vec::new(), script }
    }
}

impl<F: FnMut(&[u32], usize) -> Vec<u32>> Drafter for ScriptedDrafter<F> {
    fn begin(&mut self, first_token: u32) -> Result<()> {
        self.tokens.clear();
        self.tokens.push(first_token);
        Ok(())
    }
    fn observe(&mut self, _hidden: &[f32], next_tokens: &[u32]) -> Result<()> {
        self.tokens.extend_from_slice(next_tokens);
        Ok(())
    }
    fn propose(&mut self, max_drafts: usize, _choose: &mut Choose<'_>, drafts: &mut Vec<u32>) -> Result<()> {
        drafts.clear();
        drafts.extend((self.script)(&self.tokens, max_drafts).into_iter().take(max_drafts));
        Ok(())
    }
}
