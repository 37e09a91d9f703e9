//! A window of tokens that stays undecided until its caller has seen what the model makes of them.

use std::ops::Range;

use undraft::Round;

use super::Model;
use super::forward::{Forward, Logits};
use crate::dense::KvCache;
use crate::error::{ModelError, Result};

/// An undecided window: [`Window::commit`] says how many of its tokens stay; dropping it keeps none.
///
/// Keys, values and states move together. While it lives, the cache cannot be used otherwise.
#[derive(Debug)]
#[must_use = "a window that is dropped is rolled back"]
pub struct Window<'c> {
    round: Option<Round<'c>>,
    kv: &'c mut [KvCache],
    /// Positions of the cache.
    len: &'c mut usize,
}

/// A part of a prompt that has gone through the model.
#[derive(Debug)]
pub struct Chunk<'a> {
    /// Which tokens of the prompt.
    pub tokens: Range<usize>,
    /// Tokens of the prompt.
    pub total: usize,
    /// What they gave.
    pub forward: &'a Forward,
}

impl<'c> Window<'c> {
    pub(super) fn new(round: Round<'c>, kv: &'c mut [KvCache], len: &'c mut usize) -> Self {
        Self { round: Some(round), kv, len }
    }

    /// Runs the window's tokens, which were checked.
    pub(super) fn run(&mut self, model: &Model, tokens: &[u32], logits: Logits, out: &mut Forward) -> Result<()> {
        let Some(round) = &mut self.round else { return Err(ModelError::ForeignCache) };
        model.run(tokens, *self.len, round, self.kv, logits, out)
    }

    /// Tokens of the window.
    pub fn num_tokens(&self) -> usize {
        self.round.as_ref().map_or(0, Round::num_tokens)
    }

    /// Keeps the first `num_kept` tokens, 0..=`num_tokens()`; 0 leaves the cache as it was.
    ///
    /// # Errors
    /// [`ModelError::Pool`] if there are fewer tokens; the window is then rolled back.
    pub fn commit(mut self, num_kept: usize) -> Result<()> {
        if let Some(round) = self.round.take() {
            round.commit(&[num_kept])?;
            *self.len += num_kept;
        }
        Ok(())
    }

    /// Keeps nothing; the same as dropping the window.
    pub fn rollback(self) {}
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        // The round undoes itself; keys and values of tokens that do not stay are cut off here.
        let len = *self.len;
        self.kv.iter_mut().for_each(|kv| kv.truncate(len));
    }
}
