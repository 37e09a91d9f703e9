//! The multi-token prediction head: one block that drafts the token after the next.
//!
//! Pair p is the trunk's state of position p (behind its last norm) and the token at p + 1; the head's cache holds the
//! pairs so far, p at rotary position p. A draft further on puts the head's own output in the place of the trunk's
//! state; what it leaves in the cache is dropped again, so that a draft depends on true pairs alone.

use std::sync::Arc;

use undraft::Device;

use super::block::{Block, Pass, Workspace};
use super::cache::{check_capacity, check_room};
use super::gated_attention::GatedAttention;
use super::mtp_tree::TreeScratch;
use super::{PREFILL_CHUNK, check_tokens};
use crate::dense::{AlignedBuffer, Compute, KvCache, Linear, Paths, RmsNorm, Rope};
use crate::error::{ModelError, Result};

/// The head; embedding and output head are the trunk's.
#[derive(Debug)]
pub struct MtpHead {
    pub(super) model_id: u64,
    pub(super) norm_embedding: RmsNorm,
    pub(super) norm_hidden: RmsNorm,
    /// `[H, 2 H]`: columns of the embedding, then of the hidden state.
    pub(super) fc: Linear,
    pub(super) block: Block<GatedAttention>,
    pub(super) norm: RmsNorm,
    pub(super) embed: Arc<Linear>,
    pub(super) head: Arc<Linear>,
    pub(super) rope: Rope,
    pub(super) device: Device,
    pub(super) compute: Compute,
    pub(super) max_positions: usize,
}

/// Pairs of one sequence, and scratch memory.
#[derive(Debug)]
pub struct MtpCache {
    pub(super) model_id: u64,
    pub(super) kv: KvCache,
    /// State of the last true pair behind the head's norm, `[H]`.
    pub(super) last: Vec<f32>,
    /// The same of a draft's last step.
    own: Vec<f32>,
    pub(super) scratch: Scratch,
    pub(super) tree: TreeScratch,
}

#[derive(Debug, Default)]
pub(super) struct Scratch {
    embedding: AlignedBuffer,
    /// What `fc` reads, `[n, 2 H]`.
    pairs: AlignedBuffer,
    pub(super) logits: AlignedBuffer,
    work: Workspace,
}

/// What the head says about one token to draft.
#[derive(Debug)]
pub struct DraftStep<'a> {
    /// 0 for the first token of a draft.
    pub index: usize,
    /// Position of the token to be drafted.
    pub position: usize,
    /// State behind the head's norm, `[H]`.
    pub hidden: &'a [f32],
    /// Its logits, `[vocab_size]`.
    pub logits: &'a [f32],
}

impl MtpCache {
    /// Pairs held.
    pub fn len(&self) -> usize {
        self.kv.len()
    }

    /// Whether no pair is held.
    pub fn is_empty(&self) -> bool {
        self.kv.is_empty()
    }

    /// Pairs there is room for.
    pub fn capacity(&self) -> usize {
        self.kv.capacity()
    }

    /// State of the last pair behind the head's norm, `[H]`; `None` before the first pair.
    pub fn last_hidden(&self) -> Option<&[f32]> {
        (!self.kv.is_empty()).then_some(&self.last)
    }

    /// Keys and values of the pairs.
    pub fn kv(&self) -> &KvCache {
        &self.kv
    }

    /// Bytes of the keys and values at capacity.
    pub fn memory(&self) -> usize {
        self.kv.memory()
    }

    /// Back to no pairs.
    pub fn reset(&mut self) {
        self.kv.truncate(0);
    }
}

impl MtpHead {
    /// An empty cache for `capacity` pairs, a draft's own included: that of the trunk will do.
    ///
    /// # Errors
    /// [`ModelError::Capacity`] and [`ModelError::OutOfMemory`].
    pub fn new_cache(&self, capacity: usize) -> Result<MtpCache> {
        check_capacity(capacity, self.max_positions)?;
        let attention = &self.block.mixer;
        let hidden_size = self.fc.out_features();
        Ok(MtpCache {
            model_id: self.model_id,
            kv: KvCache::new(attention.num_kv_heads, attention.head_dim, capacity)?,
            last: vec![0.0; hidden_size],
            own: vec![0.0; hidden_size],
            scratch: Scratch::default(),
            tree: TreeScratch::default(),
        })
    }

    /// Puts true pairs behind those held: states `[n, H]` of the trunk behind its last norm, each with the token at the
    /// next position.
    ///
    /// The whole prompt is fed, and after every verification its kept tokens; the trunk's newest state waits for the
    /// token after it. Any cut into calls gives the same bits.
    ///
    /// # Errors
    /// [`ModelError::HiddenRows`], [`ModelError::TokenId`], [`ModelError::CacheFull`] or [`ModelError::ForeignCache`];
    /// the cache is then as it was.
    pub fn feed(&self, cache: &mut MtpCache, hidden: &[f32], next_tokens: &[u32]) -> Result<()> {
        let hidden_size = self.fc.out_features();
        if cache.model_id != self.model_id {
            return Err(ModelError::ForeignCache);
        }
        if hidden.len() != next_tokens.len() * hidden_size {
            return Err(ModelError::HiddenRows { found: hidden.len(), num_tokens: next_tokens.len(), hidden_size });
        }
        check_tokens(next_tokens, self.embed.out_features())?;
        check_room(cache.len(), next_tokens.len(), cache.capacity())?;
        for (hidden, tokens) in hidden.chunks(PREFILL_CHUNK * hidden_size).zip(next_tokens.chunks(PREFILL_CHUNK)) {
            self.join(&mut cache.scratch, hidden, tokens);
            self.run(&mut cache.scratch, &mut cache.kv, tokens.len(), None, &mut cache.last);
        }
        Ok(())
    }

    /// Drafts up to `max_drafts` tokens behind the last pair's token into `drafts` (cleared first), `choose` taking each
    /// from its logits; gives their number.
    ///
    /// Fewer come when the cache has no room for more, and none before the first pair. The pairs held stay as they are.
    ///
    /// # Errors
    /// [`ModelError::ForeignCache`], [`ModelError::TokenId`] for a choice that is no token, or that of `choose`.
    pub fn draft(
        &self,
        cache: &mut MtpCache,
        max_drafts: usize,
        choose: &mut dyn FnMut(DraftStep<'_>) -> Result<u32>,
        drafts: &mut Vec<u32>,
    ) -> Result<usize> {
        drafts.clear();
        if cache.model_id != self.model_id {
            return Err(ModelError::ForeignCache);
        }
        let num_pairs = cache.len();
        let result = self.draft_behind(cache, max_drafts, choose, drafts);
        cache.kv.truncate(num_pairs);
        result.map(|()| drafts.len())
    }

    fn draft_behind(
        &self,
        cache: &mut MtpCache,
        max_drafts: usize,
        choose: &mut dyn FnMut(DraftStep<'_>) -> Result<u32>,
        drafts: &mut Vec<u32>,
    ) -> Result<()> {
        if cache.is_empty() {
            return Ok(());
        }
        let MtpCache { kv, last, own, scratch, .. } = cache;
        own.copy_from_slice(last);
        while drafts.len() < max_drafts {
            if let Some(&token) = drafts.last() {
                if kv.len() == kv.capacity() {
                    break;
                }
                self.join(scratch, own, &[token]);
                self.run(scratch, kv, 1, None, own);
            }
            let logits = scratch.logits.resized(self.head.out_features());
            self.head.forward(&self.compute, own, logits);
            // With n pairs the tokens up to position n are known.
            let token = choose(DraftStep { index: drafts.len(), position: kv.len() + 1, hidden: own, logits })?;
            check_tokens(&[token], self.embed.out_features())?;
            drafts.push(token);
        }
        Ok(())
    }

    /// Puts embeddings and states side by side, each behind its norm.
    pub(super) fn join(&self, scratch: &mut Scratch, hidden: &[f32], tokens: &[u32]) {
        let hidden_size = self.fc.out_features();
        let embedding = scratch.embedding.resized(hidden_size);
        let pairs = scratch.pairs.resized(tokens.len() * 2 * hidden_size).chunks_exact_mut(2 * hidden_size);
        for ((pair, hidden), &token) in pairs.zip(hidden.chunks_exact(hidden_size)).zip(tokens) {
            let (first, second) = pair.split_at_mut(hidden_size);
            self.embed.row(token as usize, embedding);
            self.norm_embedding.forward(&self.compute, embedding, first);
            self.norm_hidden.forward(&self.compute, hidden, second);
        }
    }

    /// Runs the block over `n` joined pairs behind those of `kv`; `out` `[m, H]` gets the states of the last m. With
    /// `paths` the pairs are the last n of a tree.
    pub(super) fn run(
        &self,
        scratch: &mut Scratch,
        kv: &mut KvCache,
        n: usize,
        paths: Option<&Paths>,
        out: &mut [f32],
    ) {
        let hidden_size = self.fc.out_features();
        let num_out = out.len() / hidden_size;
        let (Scratch { pairs, work, .. }, compute) = (scratch, &self.compute);
        let (x, h, delta) = (
            work.x.resized(n * hidden_size),
            work.h.resized(n * hidden_size),
            work.delta.resized(num_out * hidden_size),
        );
        self.fc.forward(compute, &pairs[..n * 2 * hidden_size], x);
        let rope = work.rope.resized(n * self.rope.dim());
        match paths {
            Some(paths) => {
                let committed = kv.len() + n - paths.len();
                self.rope.table_of((paths.len() - n..paths.len()).map(|token| committed + paths.depth(token)), rope);
            }
            None => self.rope.table(kv.len(), rope),
        }
        let mut pass = Pass { device: &self.device, compute, rope, paths, trace: None, layer: 0 };
        self.block.input_norm.forward(compute, x, h);
        self.block.mixer.forward(&mut pass, h, num_out, kv, &mut work.attention, delta);
        // Of the other pairs nothing but keys and values is needed.
        let (x, h) = (&mut x[(n - num_out) * hidden_size..], &mut h[..num_out * hidden_size]);
        self.block.post_norm.add_forward(compute, x, delta, h);
        self.block.mlp.forward(compute, h, &mut work.mlp, delta);
        self.norm.add_forward(compute, x, delta, out);
    }
}
