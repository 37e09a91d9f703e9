//! What a call gives, and the memory it works in.

use super::block::Workspace;
use super::trace::Trace;
use crate::dense::{AlignedBuffer, Compute, Linear};

/// Which tokens of a call get logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Logits {
    /// None.
    None,
    /// The last one.
    Last,
    /// Every one.
    All,
}

/// Outputs of the last call, and scratch memory. Use one again and again: a warm one allocates nothing.
#[derive(Debug, Default)]
pub struct Forward {
    num_tokens: usize,
    /// Tokens with logits: the last ones.
    num_logits: usize,
    hidden_size: usize,
    vocab_size: usize,
    pub(super) hidden: AlignedBuffer,
    logits: AlignedBuffer,
    pub(super) work: Workspace,
    pub(super) trace: Option<Trace>,
}

impl Forward {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// Empty, and records intermediate values of every call.
    pub fn with_trace() -> Self {
        Self { trace: Some(Trace::default()), ..Self::default() }
    }

    /// Tokens of the last call; 0 if it failed.
    pub fn num_tokens(&self) -> usize {
        self.num_tokens
    }

    /// States behind the last norm, which the output head sees: `[num_tokens, hidden_size]`.
    pub fn hidden(&self) -> &[f32] {
        &self.hidden[..self.num_tokens * self.hidden_size]
    }

    /// Logits of the tokens that have some, `[.., vocab_size]`.
    pub fn logits(&self) -> &[f32] {
        &self.logits[..self.num_logits * self.vocab_size]
    }

    /// Logits of token `token` of the call, if it has some.
    pub fn token_logits(&self, token: usize) -> Option<&[f32]> {
        let row = token.checked_sub(self.num_tokens - self.num_logits)?;
        self.logits().get(row * self.vocab_size..(row + 1) * self.vocab_size)
    }

    /// State of token `token` of the call behind the last norm.
    pub fn token_hidden(&self, token: usize) -> Option<&[f32]> {
        self.hidden().get(token * self.hidden_size..(token + 1) * self.hidden_size)
    }

    /// States of some tokens of the call behind the last norm.
    pub(crate) fn hidden_rows(&self, tokens: std::ops::Range<usize>) -> &[f32] {
        &self.hidden()[tokens.start * self.hidden_size..tokens.end * self.hidden_size]
    }

    /// Intermediate values, if it was made [with](Forward::with_trace) them.
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// Forgets the last call. Sizes of tokens are set when its states are there.
    pub(super) fn begin(&mut self, hidden_size: usize, vocab_size: usize) {
        (self.num_tokens, self.num_logits) = (0, 0);
        (self.hidden_size, self.vocab_size) = (hidden_size, vocab_size);
        if let Some(trace) = &mut self.trace {
            trace.clear();
        }
    }

    /// Keeps some tokens of a call that gave logits of all; `tokens` rises.
    pub(crate) fn keep(&mut self, tokens: &[usize]) {
        for (to, &from) in tokens.iter().enumerate().filter(|&(to, &from)| to != from) {
            let (hidden, logits) = (self.hidden_size, self.vocab_size);
            self.hidden.copy_within(from * hidden..(from + 1) * hidden, to * hidden);
            self.logits.copy_within(from * logits..(from + 1) * logits, to * logits);
        }
        (self.num_tokens, self.num_logits) = (tokens.len(), tokens.len());
    }

    /// Ends a call whose hidden states of `num_tokens` tokens are there.
    pub(super) fn end(&mut self, compute: &Compute, head: &Linear, num_tokens: usize, logits: Logits) {
        let num_logits = match logits {
            Logits::None => 0,
            Logits::Last => num_tokens.min(1),
            Logits::All => num_tokens,
        };
        let hidden = &self.hidden[..num_tokens * self.hidden_size];
        let hidden = &hidden[(num_tokens - num_logits) * self.hidden_size..];
        head.forward(compute, hidden, self.logits.resized(num_logits * self.vocab_size));
        (self.num_tokens, self.num_logits) = (num_tokens, num_logits);
    }
}
