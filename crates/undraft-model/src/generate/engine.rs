//! What the generation asks of a model, wherever it runs.

use std::ops::Range;

use crate::config::ModelConfig;
use crate::drafters::Drafter;
use crate::error::Result;
use crate::model::{Forward, HybridCache, Logits, Model, Window};

/// Sees which tokens of a prompt have gone through, and what they gave.
pub type EachChunk<'a, O> = dyn FnMut(Range<usize>, &O) -> Result<()> + 'a;

/// A model with a cache: it runs prompts and windows of tokens, and keeps of a window what its caller says.
pub trait Engine {
    /// What one sequence leaves behind.
    type Cache: SequenceCache;
    /// States of the trunk behind its last norm, one row a token, where they lie.
    type Hidden: ?Sized;
    /// What a call gives.
    type Outputs: Outputs<Hidden = Self::Hidden>;
    /// A window that is undecided; dropping it leaves the cache as it was.
    type Window<'c>: Undecided
    where
        Self: 'c;

    /// Sizes and constants.
    fn config(&self) -> &ModelConfig;

    /// Outputs to be used again and again. Unless `needs_logits` is set, the largest logit of each row may be all that
    /// there is of them.
    fn new_outputs(&self, needs_logits: bool) -> Self::Outputs;

    /// Runs a prompt, all of whose tokens stay; `each_chunk` sees which of them have gone through, and what they gave. With
    /// [`Logits::Last`] the last token alone has logits.
    ///
    /// # Errors
    /// Those of the model, or of `each_chunk`.
    fn prefill(
        &self,
        cache: &mut Self::Cache,
        tokens: &[u32],
        logits: Logits,
        out: &mut Self::Outputs,
        each_chunk: &mut EachChunk<'_, Self::Outputs>,
    ) -> Result<()>;

    /// Runs a window: a chain, or with `parents` a tree (token `i` follows token `parents[i]`, or what is committed where that
    /// is -1).
    ///
    /// # Errors
    /// Those of the model; the cache is then as it was, or has to be reset.
    fn verify<'c>(
        &self,
        cache: &'c mut Self::Cache,
        tokens: &[u32],
        parents: Option<&[i32]>,
        out: &mut Self::Outputs,
    ) -> Result<Self::Window<'c>>;
}

/// What one sequence leaves behind in an [`Engine`].
pub trait SequenceCache {
    /// Positions held.
    fn len(&self) -> usize;
    /// Whether no position is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Positions there is room for.
    fn capacity(&self) -> usize;
    /// Longest window that can be taken back.
    fn max_window(&self) -> usize;
    /// Back to an empty sequence, whatever went wrong before.
    ///
    /// # Errors
    /// Those of the device.
    fn reset(&mut self) -> Result<()>;
}

/// Outputs of the last call of an [`Engine`].
pub trait Outputs {
    /// As in [`Engine`].
    type Hidden: ?Sized;
    /// Tokens of the last call.
    fn num_tokens(&self) -> usize;
    /// Logits of the tokens that have some, which are the last ones, `[.., vocab_size]`; empty where the largest alone
    /// were wanted.
    fn logits(&self) -> &[f32];
    /// Logits of token `token` of the call, if it has some.
    fn token_logits(&self, token: usize) -> Option<&[f32]>;
    /// The token of the largest logit behind token `token` of the call, of equal ones the lowest; where there are no logits.
    fn largest(&self, token: usize) -> Option<u32>;
    /// Shows a drafter the states of some tokens of the call, each with the token behind it.
    ///
    /// # Errors
    /// The drafter's.
    fn show(
        &self,
        tokens: Range<usize>,
        next_tokens: &[u32],
        drafter: &mut (dyn Drafter<Self::Hidden> + '_),
    ) -> Result<()>;
    /// Keeps some tokens of a call that gave logits of all; `tokens` rises.
    fn keep(&mut self, tokens: &[usize]);
}

/// A window that waits for a decision.
pub trait Undecided {
    /// Keeps the tokens of a path from what is committed on.
    ///
    /// # Errors
    /// If it is no path, or the device fails; the window is then rolled back.
    fn commit_path(self, path: &[usize]) -> Result<()>;
}

impl Engine for Model {
    type Cache = HybridCache;
    type Hidden = [f32];
    type Outputs = Forward;
    type Window<'c> = Window<'c>;

    fn config(&self) -> &ModelConfig {
        Model::config(self)
    }
    fn new_outputs(&self, _needs_logits: bool) -> Forward {
        Forward::new()
    }
    fn prefill(
        &self,
        cache: &mut HybridCache,
        tokens: &[u32],
        logits: Logits,
        out: &mut Forward,
        each_chunk: &mut EachChunk<'_, Forward>,
    ) -> Result<()> {
        Model::prefill(self, cache, tokens, logits, out, &mut |chunk| each_chunk(chunk.tokens, chunk.forward))
    }
    fn verify<'c>(
        &self,
        cache: &'c mut HybridCache,
        tokens: &[u32],
        parents: Option<&[i32]>,
        out: &mut Forward,
    ) -> Result<Window<'c>> {
        match parents {
            None => Model::verify(self, cache, tokens, out),
            Some(parents) => self.verify_tree(cache, tokens, parents, out),
        }
    }
}

impl SequenceCache for HybridCache {
    fn len(&self) -> usize {
        HybridCache::len(self)
    }
    fn capacity(&self) -> usize {
        HybridCache::capacity(self)
    }
    fn max_window(&self) -> usize {
        HybridCache::max_window(self)
    }
    fn reset(&mut self) -> Result<()> {
        HybridCache::reset(self)
    }
}

impl Outputs for Forward {
    type Hidden = [f32];
    fn num_tokens(&self) -> usize {
        Forward::num_tokens(self)
    }
    fn logits(&self) -> &[f32] {
        Forward::logits(self)
    }
    fn token_logits(&self, token: usize) -> Option<&[f32]> {
        Forward::token_logits(self, token)
    }
    fn largest(&self, _token: usize) -> Option<u32> {
        None
    }
    fn show(&self, tokens: Range<usize>, next_tokens: &[u32], drafter: &mut (dyn Drafter<[f32]> + '_)) -> Result<()> {
        drafter.observe(self.hidden_rows(tokens), next_tokens)
    }
    fn keep(&mut self, tokens: &[usize]) {
        Forward::keep(self, tokens);
    }
}

impl Undecided for Window<'_> {
    fn commit_path(self, path: &[usize]) -> Result<()> {
        Window::commit_path(self, path)
    }
}
