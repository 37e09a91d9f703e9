//! A window of tokens that stays undecided until its caller has seen what the model makes of them.

use std::ops::Range;

use undraft::Round;

use super::forward::{Forward, Logits};
use super::{Model, Placed};
use crate::dense::{KvCache, Paths};
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
    /// Of a tree.
    paths: Option<&'c Paths>,
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
    pub(super) fn new(round: Round<'c>, kv: &'c mut [KvCache], len: &'c mut usize, paths: Option<&'c Paths>) -> Self {
        Self { round: Some(round), kv, len, paths }
    }

    /// Runs the window's tokens, which were checked.
    pub(super) fn run(&mut self, model: &Model, tokens: &[u32], logits: Logits, out: &mut Forward) -> Result<()> {
        let Some(round) = &mut self.round else { return Err(ModelError::ForeignCache) };
        model.run(Placed { tokens, start: *self.len, paths: self.paths }, round, self.kv, logits, out)
    }

    /// Tokens of the window.
    pub fn num_tokens(&self) -> usize {
        self.round.as_ref().map_or(0, Round::num_tokens)
    }

    /// Keeps the first `num_kept` tokens of a chain, 0..=`num_tokens()`; 0 leaves the cache as it was.
    ///
    /// # Errors
    /// [`ModelError::Pool`] if there are fewer tokens, [`ModelError::TreePath`] if the first tokens of a tree are not one
    /// path; the window is then rolled back.
    pub fn commit(mut self, num_kept: usize) -> Result<()> {
        if let Some(paths) = self.paths {
            // Those that are there; that there are enough is the round's to check.
            check_path(paths, 0..num_kept.min(paths.len()))?;
        }
        if let Some(round) = self.round.take() {
            round.commit(&[num_kept])?;
            *self.len += num_kept;
        }
        Ok(())
    }

    /// Keeps the tokens of a path: the first one follows what is committed, each other the one before it. An empty path
    /// leaves the cache as it was. What stays is, bit for bit, what the tokens of the path alone would have left.
    ///
    /// # Errors
    /// [`ModelError::TreePath`] if it is no path; the window is then rolled back.
    pub fn commit_path(mut self, path: &[usize]) -> Result<()> {
        let Some(paths) = self.paths else {
            // A chain has one path to each token.
            let is_prefix = path.iter().enumerate().find(|&(index, &token)| token != index);
            if let Some((index, &found)) = is_prefix {
                return Err(ModelError::TreePath { index, found, expected: "the token behind the one before it" });
            }
            return self.commit(path.len());
        };
        check_path(paths, path.iter().copied())?;
        if let Some(round) = self.round.take() {
            round.commit_path(&[path])?;
            self.kv.iter_mut().for_each(|kv| kv.keep(*self.len, path));
            *self.len += path.len();
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

/// Checks that some tokens of a tree follow one another, from what is committed on.
fn check_path(paths: &Paths, path: impl Iterator<Item = usize>) -> Result<()> {
    let mut previous: Option<usize> = None;
    for (index, found) in path.enumerate() {
        let refuse = |expected| Err(ModelError::TreePath { index, found, expected });
        if found >= paths.len() {
            return refuse("a token of the tree");
        }
        match (paths.parent(found), previous) {
            (parent, previous) if parent == previous => {}
            (_, None) => return refuse("a token that follows what is committed"),
            (_, Some(_)) => return refuse("a token that follows the one before it in the path"),
        }
        previous = Some(found);
    }
    Ok(())
}
