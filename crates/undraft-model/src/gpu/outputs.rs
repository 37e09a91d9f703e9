//! What a call gives.

use std::ops::Range;
use std::sync::Arc;

use super::INVALID;
use super::device::Gpu;
use super::workspace::Workspace;
use crate::drafters::Drafter;
use crate::error::Result;
use crate::generate::Outputs;

/// States of the trunk behind its last norm, one row a token, on the device. They stay as they are until the next call with
/// the same cache.
#[derive(Debug)]
pub struct HiddenRows<G: Gpu> {
    /// `[.., hidden_size]`.
    pub(super) buffer: Arc<G::Buffer<f32>>,
    pub(super) first: usize,
    pub(super) num_rows: usize,
}

impl<G: Gpu> Clone for HiddenRows<G> {
    fn clone(&self) -> Self {
        Self { buffer: self.buffer.clone(), ..*self }
    }
}

/// Outputs of the last call. Use one again and again: a warm one allocates nothing.
#[derive(Debug)]
pub struct GpuOutputs<G: Gpu> {
    needs_logits: bool,
    vocab_size: usize,
    num_tokens: usize,
    /// Logits of the last tokens, in host memory.
    logits: Vec<f32>,
    num_logits: usize,
    /// The tokens of the largest logits of the last tokens.
    largest: Vec<u32>,
    hidden: Option<Arc<G::Buffer<f32>>>,
}

impl<G: Gpu> GpuOutputs<G> {
    pub(super) fn new(needs_logits: bool, vocab_size: usize) -> Self {
        Self {
            needs_logits,
            vocab_size,
            num_tokens: 0,
            logits: Vec::new(),
            num_logits: 0,
            largest: Vec::new(),
            hidden: None,
        }
    }

    /// Forgets the last call.
    pub(super) fn begin(&mut self) {
        (self.num_tokens, self.num_logits) = (0, 0);
        self.largest.clear();
    }

    /// Copies what `n` rows of logits came to behind those that were copied; waits for the device.
    pub(super) fn add(&mut self, gpu: &G, work: &Workspace<G>, n: usize) -> Result<()> {
        if !self.needs_logits {
            let first = self.largest.len();
            self.largest.resize(first + n, 0);
            gpu.read(&work.largest, &mut self.largest[first..])?;
            if !self.largest[first..].contains(&INVALID) {
                return Ok(());
            }
            // Whoever draws from these logits says what is wrong with them.
            self.largest.clear();
        }
        let at = self.num_logits * self.vocab_size;
        let end = at + n * self.vocab_size;
        if self.logits.len() < end {
            self.logits.resize(end, 0.0);
        }
        gpu.read(&work.logits, &mut self.logits[at..end])?;
        self.num_logits += n;
        Ok(())
    }

    /// Ends a call of `num_tokens` tokens whose states are on the device.
    pub(super) fn end(&mut self, num_tokens: usize, hidden: &Arc<G::Buffer<f32>>) {
        self.num_tokens = num_tokens;
        if self.hidden.as_ref().is_none_or(|held| !Arc::ptr_eq(held, hidden)) {
            self.hidden = Some(hidden.clone());
        }
    }

    /// States of some tokens of the last call.
    pub fn hidden(&self, tokens: Range<usize>) -> Option<HiddenRows<G>> {
        let buffer = self.hidden.clone().filter(|_| tokens.start <= tokens.end && tokens.end <= self.num_tokens)?;
        Some(HiddenRows { buffer, first: tokens.start, num_rows: tokens.len() })
    }
}

impl<G: Gpu> Outputs for GpuOutputs<G> {
    type Hidden = HiddenRows<G>;
    fn num_tokens(&self) -> usize {
        self.num_tokens
    }
    fn logits(&self) -> &[f32] {
        &self.logits[..self.num_logits * self.vocab_size]
    }
    fn token_logits(&self, token: usize) -> Option<&[f32]> {
        let row = token.checked_sub(self.num_tokens - self.num_logits)?;
        self.logits().get(row * self.vocab_size..(row + 1) * self.vocab_size)
    }
    fn largest(&self, token: usize) -> Option<u32> {
        self.largest.get(token.checked_sub(self.num_tokens - self.largest.len())?).copied()
    }
    fn show(
        &self,
        tokens: Range<usize>,
        next_tokens: &[u32],
        drafter: &mut (dyn Drafter<HiddenRows<G>> + '_),
    ) -> Result<()> {
        match self.hidden(tokens) {
            Some(hidden) => drafter.observe(&hidden, next_tokens),
            None => Ok(()),
        }
    }
    /// No tree comes: [`super::GpuModel`] refuses them.
    fn keep(&mut self, _tokens: &[usize]) {}
}
