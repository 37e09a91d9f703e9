//! The whole model: embedding, blocks, output head, and what a sequence leaves behind in it.
//!
//! ```no_run
//! use std::path::Path;
//! use undraft::Device;
//! use undraft_model::model::{CacheConfig, Forward, Logits, Model};
//!
//! let model = Model::load(Path::new("models/qwen3_5-tiny-mtp"), &Device::cpu(), &mut |_, _| {})?;
//! let mut cache = model.new_cache(CacheConfig { capacity: 1024, max_window: 8 })?;
//! let mut out = Forward::new();
//! model.prefill(&mut cache, &[5, 17, 9], Logits::Last, &mut out, &mut |_| Ok(()))?;
//!
//! let window = model.verify(&mut cache, &[42, 7, 7], &mut out)?; // three tokens, of which we keep two
//! let logits = out.logits(); // [3, vocab_size]
//! window.commit(2)?; // dropping it instead keeps none
//! assert_eq!(cache.len(), 5);
//! # Ok::<(), undraft_model::ModelError>(())
//! ```

mod block;
mod cache;
mod forward;
mod gated_attention;
mod gdn;
mod load;
mod mtp;
mod mtp_tree;
mod trace;
mod window;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use undraft::{Device, Round};

use crate::config::ModelConfig;
use crate::dense::{Compute, KvCache, Linear, Paths, RmsNorm, Rope};
use crate::error::{ModelError, Result};
use block::{Block, Mixer, Pass};

use cache::Kind;
pub use cache::{CacheConfig, HybridCache};
pub(crate) use cache::{check_capacity, check_room};
pub use forward::{Forward, Logits};
pub use mtp::{DraftStep, MtpCache, MtpHead};
pub use mtp_tree::{Rank, TreeShape};
pub use trace::Trace;
pub use window::{Chunk, Window};

/// Tokens that [`Model::prefill`] runs at a time.
pub const PREFILL_CHUNK: usize = 256;

/// A hybrid language model, ready to run.
///
/// Decode and verify, of a chain or a tree, are the same arithmetic: a token's logits, states, keys and values are the same
/// bits whichever of them it goes through, on any instruction set and number of threads of one machine. Prefill runs the
/// recurrence in its matrix form: deterministic and close, not those bits.
#[derive(Debug)]
pub struct Model {
    /// Tells this model's caches from those of others.
    id: u64,
    config: ModelConfig,
    device: Device,
    compute: Compute,
    rope: Rope,
    embed: Arc<Linear>,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: Arc<Linear>,
    mtp: Option<MtpHead>,
}

impl Model {
    /// Loads a Hugging Face style folder: `config.json` and safetensors files. `progress` is told how many of how
    /// many tensors are loaded.
    ///
    /// The head is tied to the embedding when there is no `lm_head.weight`; there is an MTP head when there are tensors
    /// named `mtp.*`.
    ///
    /// # Errors
    /// What [`ModelConfig::from_dir`] and [`crate::weights::Weights::open`] refuse; missing tensors, tensors of a wrong
    /// shape or dtype, weights that are not finite, and tensors that the configuration does not describe.
    pub fn load(dir: &Path, device: &Device, progress: &mut dyn FnMut(usize, usize)) -> Result<Self> {
        load::model(dir, device, progress)
    }

    /// Sizes and constants.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Where it runs.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The head that drafts the token after the next, if the model has one.
    pub fn mtp(&self) -> Option<&MtpHead> {
        self.mtp.as_ref()
    }

    /// Bytes of all weights of linear layers, as they lie in memory; a tied head counts once.
    pub fn weight_bytes(&self) -> usize {
        let untied = !Arc::ptr_eq(&self.embed, &self.head);
        let head = if untied { self.head.memory() } else { 0 };
        self.embed.memory() + head + self.blocks.iter().map(Block::memory).sum::<usize>()
    }

    /// An empty cache for one sequence.
    ///
    /// # Errors
    /// [`ModelError::Capacity`], [`ModelError::OutOfMemory`], or [`ModelError::Pool`] for `max_window` out of range.
    pub fn new_cache(&self, config: CacheConfig) -> Result<HybridCache> {
        HybridCache::new(self, config)
    }

    /// Runs a prompt, or the next part of one, through the model; it cannot be taken back.
    ///
    /// The recurrence runs in its matrix form, whose chunks begin at multiples of 64 positions: a prompt that is cut into
    /// several calls there gives the same bits as in one. Tokens go through up to multiples of [`PREFILL_CHUNK`];
    /// `each_chunk` sees what every chunk gave (`out` keeps that of
    /// the last one). With [`Logits::Last`] the last chunk alone has logits, those of the last token.
    ///
    /// # Errors
    /// [`ModelError::EmptyPrompt`], [`ModelError::TokenId`], [`ModelError::CacheFull`] before anything is run. An error
    /// of `each_chunk` ends the prefill behind that chunk. After any other error [`HybridCache::reset`] is needed.
    pub fn prefill(
        &self,
        cache: &mut HybridCache,
        tokens: &[u32],
        logits: Logits,
        out: &mut Forward,
        each_chunk: &mut dyn FnMut(Chunk<'_>) -> Result<()>,
    ) -> Result<()> {
        if tokens.is_empty() {
            return Err(ModelError::EmptyPrompt);
        }
        self.check(cache, tokens)?;
        let mut done = 0;
        while done < tokens.len() {
            // Up to the next multiple, whatever the cache holds.
            let len = PREFILL_CHUNK - cache.len() % PREFILL_CHUNK;
            let chunk = &tokens[done..(done + len).min(tokens.len())];
            let is_last = done + chunk.len() == tokens.len();
            let logits = if logits == Logits::Last && !is_last { Logits::None } else { logits };
            let mut window = cache.open(Kind::Prefill { num_tokens: chunk.len() })?;
            window.run(self, chunk, logits, out)?;
            window.commit(chunk.len())?;
            let range = done..done + chunk.len();
            done = range.end;
            each_chunk(Chunk { tokens: range, total: tokens.len(), forward: out })?;
        }
        Ok(())
    }

    /// Runs a window of at most `max_window` tokens, which stays undecided until the window is committed; dropping it
    /// leaves the cache as it was. `out` gets the logits and hidden states of all of them.
    ///
    /// # Errors
    /// [`ModelError::TokenId`], [`ModelError::CacheFull`], [`ModelError::ForeignCache`], or [`ModelError::Pool`] for
    /// a window that is too long; the cache is then as it was.
    pub fn verify<'c>(&self, cache: &'c mut HybridCache, tokens: &[u32], out: &mut Forward) -> Result<Window<'c>> {
        self.check(cache, tokens)?;
        let mut window = cache.open(Kind::Chain { num_tokens: tokens.len() })?;
        window.run(self, tokens, Logits::All, out)?;
        Ok(window)
    }

    /// [`Model::verify`] for a tree: token `i` follows token `parents[i]`, which comes before it, or what is committed
    /// where that is -1. Its position is the cache's length plus the number of tokens before it on its path; it sees what is
    /// committed and its path, so that what `out` gets of it is, bit for bit, what decoding its path gives.
    ///
    /// [`Window::commit_path`] says which path stays. A tree needs as much room in the cache as it has tokens.
    ///
    /// # Errors
    /// As [`Model::verify`], [`ModelError::TreeParents`] for another number of parents than tokens, and
    /// [`ModelError::TreeParent`].
    pub fn verify_tree<'c>(
        &self,
        cache: &'c mut HybridCache,
        tokens: &[u32],
        parents: &[i32],
        out: &mut Forward,
    ) -> Result<Window<'c>> {
        self.check(cache, tokens)?;
        if parents.len() != tokens.len() {
            return Err(ModelError::TreeParents { found: parents.len(), num_tokens: tokens.len() });
        }
        let mut window = cache.open(Kind::Tree { parents })?;
        window.run(self, tokens, Logits::All, out)?;
        Ok(window)
    }

    /// Runs one token and keeps it; `out` gets its logits and hidden state.
    ///
    /// # Errors
    /// As [`Model::verify`].
    pub fn decode(&self, cache: &mut HybridCache, token: u32, out: &mut Forward) -> Result<()> {
        self.verify(cache, &[token], out)?.commit(1)
    }

    fn check(&self, cache: &HybridCache, tokens: &[u32]) -> Result<()> {
        cache.check_model(self.id)?;
        check_tokens(tokens, self.config.vocab_size)?;
        cache.check_room(tokens.len())
    }

    /// All blocks over some tokens, which were checked.
    fn run(
        &self,
        Placed { tokens, start, paths }: Placed<'_>,
        round: &mut Round<'_>,
        kv: &mut [KvCache],
        logits: Logits,
        out: &mut Forward,
    ) -> Result<()> {
        let (n, hidden_size) = (tokens.len(), self.config.hidden_size);
        out.begin(hidden_size, self.config.vocab_size);
        if tokens.is_empty() {
            return Ok(());
        }
        let Forward { hidden, work, trace, .. } = out;
        let size = n * hidden_size;
        let (x, h, delta) = (work.x.resized(size), work.h.resized(size), work.delta.resized(size));
        let rope = work.rope.resized(n * self.rope.dim());
        match paths {
            Some(paths) => self.rope.table_of((0..n).map(|token| start + paths.depth(token)), rope),
            None => self.rope.table(start, rope),
        }
        embed(&self.embed, tokens, x);
        let (device, compute) = (&self.device, &self.compute);
        let mut pass = Pass { device, compute, rope, paths, trace: trace.as_mut(), layer: 0 };
        pass.record("embedding", x);

        let mut kv = kv.iter_mut();
        let mut norm = self.blocks.first().map_or(&self.norm, |block| &block.input_norm);
        norm.forward(&self.compute, x, h);
        for (layer, block) in self.blocks.iter().enumerate() {
            pass.layer = layer;
            match &block.mixer {
                Mixer::Gdn(gdn) => gdn.forward(&mut pass, h, round, &mut work.gdn, delta)?,
                Mixer::Attention(attention) => {
                    let Some(kv) = kv.next() else { return Err(ModelError::ForeignCache) };
                    attention.forward(&mut pass, h, n, kv, &mut work.attention, delta);
                }
            }
            block.post_norm.add_forward(&self.compute, x, delta, h);
            block.mlp.forward(&self.compute, h, &mut work.mlp, delta);
            norm = self.blocks.get(layer + 1).map_or(&self.norm, |block| &block.input_norm);
            norm.add_forward(&self.compute, x, delta, h);
            pass.record("state", x);
        }
        hidden.resized(size).copy_from_slice(h);
        out.end(&self.compute, &self.head, n, logits);
        Ok(())
    }
}

/// Tokens behind `start` positions: one behind the other, or a tree.
#[derive(Clone, Copy)]
struct Placed<'a> {
    tokens: &'a [u32],
    start: usize,
    paths: Option<&'a Paths>,
}

/// A number that no other model has.
pub(crate) fn next_id() -> u64 {
    static NEXT_ID: AtomicU64 = AtomicU64::new(0);
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// Rows of the embedding, `[n, hidden_size]`.
fn embed(table: &Linear, tokens: &[u32], x: &mut [f32]) {
    for (&token, row) in tokens.iter().zip(x.chunks_exact_mut(table.in_features())) {
        table.row(token as usize, row);
    }
}

pub(crate) fn check_tokens(tokens: &[u32], vocab_size: usize) -> Result<()> {
    match tokens.iter().position(|&id| id as usize >= vocab_size) {
        None => Ok(()),
        Some(index) => Err(ModelError::TokenId { index, id: tokens[index], vocab_size }),
    }
}
