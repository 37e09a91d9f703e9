//! The whole model on the device.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use undraft::Device;

use super::args::{ArgMax, Ids, Place, Rows};
use super::block::{Block, Mixer, Pass};
use super::cache::{GpuCache, GpuWindow, Layer};
use super::device::{Gpu, Memory};
use super::mtp::GpuMtpHead;
use super::outputs::{GpuOutputs, HiddenRows};
use super::weights::{Matrix, Norm};
use super::{CHUNK, load};
use crate::config::ModelConfig;
use crate::error::{ModelError, Result};
use crate::generate::{EachChunk, Engine};
use crate::model::{CacheConfig, Logits, check_room, check_tokens};

/// A hybrid language model on a GPU, ready to run.
#[derive(Debug)]
pub struct GpuModel<G: Gpu> {
    pub(super) id: u64,
    pub(super) config: ModelConfig,
    pub(super) device: Device,
    pub(super) gpu: G,
    pub(super) embed: Arc<Matrix<G>>,
    pub(super) blocks: Vec<Block<G>>,
    pub(super) norm: Norm<G>,
    pub(super) head: Arc<Matrix<G>>,
    pub(super) mtp: Option<GpuMtpHead<G>>,
}

impl<G: Gpu> GpuModel<G> {
    /// Loads a folder as [`crate::Model::load`] does, and puts its weights on the device.
    ///
    /// # Errors
    /// Those of [`crate::Model::load`]; [`ModelError::OtherDevice`] for a device of another kind,
    /// [`ModelError::NotOnDevice`] for sizes that the kernels do not take, that of the device if it fails or has not enough
    /// memory.
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
    pub fn mtp(&self) -> Option<&GpuMtpHead<G>> {
        self.mtp.as_ref()
    }

    /// Bytes of all weights of linear layers; a tied head counts once, the MTP head not.
    pub fn weight_bytes(&self) -> usize {
        let untied = !Arc::ptr_eq(&self.embed, &self.head);
        let head = if untied { self.head.memory() } else { 0 };
        self.embed.memory() + head + self.blocks.iter().map(Block::memory).sum::<usize>()
    }

    /// An empty cache for one sequence.
    ///
    /// # Errors
    /// [`ModelError::Capacity`], [`ModelError::Options`] for `max_window`, or that of the device without memory for it.
    pub fn new_cache(&self, config: CacheConfig) -> Result<GpuCache<G>> {
        GpuCache::new(self, config)
    }

    /// Runs a window of at most `max_window` tokens, which stays undecided until it is committed; dropping it leaves the
    /// cache as it was.
    ///
    /// # Errors
    /// [`ModelError::TokenId`], [`ModelError::CacheFull`], [`ModelError::ForeignCache`], [`ModelError::Options`] for a
    /// window that is too long; the cache is then as it was. That of the device if it fails; the cache has to be reset
    /// then.
    pub fn verify<'c>(
        &self,
        cache: &'c mut GpuCache<G>,
        tokens: &[u32],
        out: &mut GpuOutputs<G>,
    ) -> Result<GpuWindow<'c, G>> {
        self.check(cache, tokens)?;
        let (n, max) = (tokens.len(), cache.max_window());
        if n > max {
            return Err(ModelError::Options { option: "window", found: n, min: 0, max });
        }
        out.begin();
        if n == 0 {
            return Ok(GpuWindow::new(cache, 0));
        }
        cache.begin()?;
        let words = cache.words();
        cache.header.write(&self.gpu, words, tokens)?;
        if cache.recordings[n].is_none() {
            let recording = self.gpu.record(|| {
                self.trunk(cache, n, true)?;
                self.logits(cache, 0, n)
            })?;
            cache.recordings[n] = Some(recording);
        }
        if let Some(recording) = &cache.recordings[n] {
            // SAFETY: it was recorded for this cache, which keeps all memory that it uses but the weights; those are this
            // model's, of which the cache is. The header holds positions, slots and tokens in range.
            unsafe { self.gpu.replay(recording)? };
        }
        out.add(&self.gpu, &cache.work, n)?;
        out.end(n, &cache.work.hidden);
        Ok(GpuWindow::new(cache, n))
    }

    /// Recurrent state `[HV, V, K]` and last inputs of the convolution `[W - 1, C]`, oldest first, of a Gated DeltaNet layer
    /// (counted among those).
    ///
    /// # Errors
    /// [`ModelError::ForeignCache`], [`ModelError::CacheTorn`], [`ModelError::Options`] if there is no such layer, or
    /// that of the device.
    pub fn states(&self, cache: &mut GpuCache<G>, gdn_layer: usize) -> Result<(Vec<f32>, Vec<f32>)> {
        self.check(cache, &[])?;
        self.settle(cache)?;
        let layers = cache.layers.iter().filter_map(|layer| match layer {
            Layer::Gdn(layer) => Some(layer),
            Layer::Attention(_) => None,
        });
        let layer = nth_layer(layers, gdn_layer)?;
        Ok((self.read(&layer.state, layer.state.len())?, self.read(&layer.conv, layer.conv.len())?))
    }

    /// Keys and values of a full-attention layer (counted among those), `[len, num_kv_heads, head_dim]` each.
    ///
    /// # Errors
    /// [`ModelError::ForeignCache`], [`ModelError::Options`] if there is no such layer, or that of the device.
    pub fn keys_and_values(&self, cache: &GpuCache<G>, attention_layer: usize) -> Result<(Vec<f32>, Vec<f32>)> {
        self.check(cache, &[])?;
        let layers = cache.layers.iter().filter_map(|layer| match layer {
            Layer::Gdn(_) => None,
            Layer::Attention(kv) => Some(kv),
        });
        let kv = nth_layer(layers, attention_layer)?;
        let len = kv.keys.len() / cache.capacity() * cache.len();
        Ok((self.read(&kv.keys, len)?, self.read(&kv.values, len)?))
    }

    /// Replays what is pending into the states.
    fn settle(&self, cache: &mut GpuCache<G>) -> Result<()> {
        cache.begin()?;
        let words = cache.words();
        cache.header.write(&self.gpu, words, &[])?;
        let pass = self.pass(cache, 0, false);
        for (block, layer) in self.blocks.iter().zip(&cache.layers) {
            if let (Mixer::Gdn(gdn), Layer::Gdn(layer)) = (&block.mixer, layer) {
                gdn.recur(pass, layer)?;
            }
        }
        cache.end(0, 0);
        Ok(())
    }

    fn read(&self, buffer: &G::Buffer<f32>, len: usize) -> Result<Vec<f32>> {
        let mut values = vec![0.0; len];
        self.gpu.read(buffer, &mut values)?;
        Ok(values)
    }

    fn check(&self, cache: &GpuCache<G>, tokens: &[u32]) -> Result<()> {
        if cache.model_id != self.id {
            return Err(ModelError::ForeignCache);
        }
        check_tokens(tokens, self.config.vocab_size)?;
        check_room(cache.len(), tokens.len(), cache.capacity())
    }

    /// Part of a prompt, whose tokens all stay, and the logits of its last `num_logits` tokens.
    fn chunk(&self, cache: &mut GpuCache<G>, tokens: &[u32], num_logits: usize, out: &mut GpuOutputs<G>) -> Result<()> {
        let n = tokens.len();
        out.begin();
        cache.begin()?;
        let words = cache.words();
        cache.header.write(&self.gpu, words, tokens)?;
        self.trunk(cache, n, false)?;
        let mut row = n - num_logits;
        while row < n {
            let rows = (n - row).min(cache.work.max_logits);
            self.logits(cache, row, rows)?;
            out.add(&self.gpu, &cache.work, rows)?;
            row += rows;
        }
        out.end(n, &cache.work.hidden);
        cache.end(n, 0);
        Ok(())
    }

    fn pass<'a>(&'a self, cache: &'a GpuCache<G>, n: usize, undecided: bool) -> Pass<'a, G> {
        let work = &cache.work;
        assert!(n <= work.max_tokens && n <= cache.header.max_tokens(), "{n} tokens in a pass");
        let place = Place { header: &cache.header, offset: 0, rope: &cache.rope, capacity: cache.capacity() };
        Pass { gpu: &self.gpu, work, place, n, num_out: n, undecided, max_window: cache.max_window() }
    }

    /// All blocks over the header's `n` tokens; their states go to `work.hidden`.
    fn trunk(&self, cache: &GpuCache<G>, n: usize, undecided: bool) -> Result<()> {
        let (gpu, work) = (&self.gpu, &cache.work);
        let pass = self.pass(cache, n, undecided);
        let hidden_size = self.config.hidden_size;
        let x = Rows::new(&work.x, hidden_size);
        let h = Rows::new(&work.h, hidden_size);
        let delta = Rows::new(&work.delta, hidden_size);
        gpu.embed(&self.embed, cache.header.tokens(), x, n)?;
        let mut before = None;
        for (block, layer) in self.blocks.iter().zip(&cache.layers) {
            gpu.rms_norm(&block.input_norm, x, before, h, n)?;
            match (&block.mixer, layer) {
                (Mixer::Gdn(gdn), Layer::Gdn(layer)) => gdn.forward(pass, layer)?,
                (Mixer::Attention(attention), Layer::Attention(kv)) => attention.forward(pass, kv)?,
                // A cache has the layers of its model.
                _ => {}
            }
            gpu.rms_norm(&block.post_norm, x, Some(delta), h, n)?;
            block.mlp.forward(pass, n)?;
            before = Some(delta);
        }
        gpu.rms_norm(&self.norm, x, before, Rows::new(&*work.hidden, hidden_size), n)
    }

    /// Logits of `n` tokens of the last pass, from token `first` on, and the largest of each.
    fn logits(&self, cache: &GpuCache<G>, first: usize, n: usize) -> Result<()> {
        let (gpu, work) = (&self.gpu, &cache.work);
        let (hidden_size, vocab_size) = (self.config.hidden_size, self.config.vocab_size);
        assert!(n <= work.max_logits, "logits of {n} tokens");
        let hidden = Rows::new(&*work.hidden, hidden_size).rows(first);
        gpu.linear(&self.head, hidden, Rows::new(&work.logits, vocab_size), n)?;
        let out = Ids::new(&work.largest, 0);
        gpu.argmax(ArgMax { logits: &work.logits, len: vocab_size, scratch: &work.argmax_scratch, out, n })
    }
}

fn nth_layer<'a, L>(mut layers: impl Iterator<Item = &'a L> + Clone, index: usize) -> Result<&'a L> {
    let num_layers = layers.clone().count();
    let max = num_layers.saturating_sub(1);
    layers.nth(index).ok_or(ModelError::Options { option: "layer", found: index, min: 0, max })
}

impl<G: Gpu> Engine for GpuModel<G> {
    type Cache = GpuCache<G>;
    type Hidden = HiddenRows<G>;
    type Outputs = GpuOutputs<G>;
    type Window<'c> = GpuWindow<'c, G>;

    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn new_outputs(&self, needs_logits: bool) -> GpuOutputs<G> {
        GpuOutputs::new(needs_logits, self.config.vocab_size)
    }

    fn prefill(
        &self,
        cache: &mut GpuCache<G>,
        tokens: &[u32],
        logits: Logits,
        out: &mut GpuOutputs<G>,
        each_chunk: &mut EachChunk<'_, GpuOutputs<G>>,
    ) -> Result<()> {
        if tokens.is_empty() {
            return Err(ModelError::EmptyPrompt);
        }
        self.check(cache, tokens)?;
        // Where a prompt is cut changes no bit.
        for (index, chunk) in tokens.chunks(CHUNK).enumerate() {
            let range: Range<usize> = index * CHUNK..index * CHUNK + chunk.len();
            let num_logits = match logits {
                Logits::All => chunk.len(),
                Logits::Last if range.end == tokens.len() => 1,
                _ => 0,
            };
            self.chunk(cache, chunk, num_logits, out)?;
            each_chunk(range, out)?;
        }
        Ok(())
    }

    fn verify<'c>(
        &self,
        cache: &'c mut GpuCache<G>,
        tokens: &[u32],
        parents: Option<&[i32]>,
        out: &mut GpuOutputs<G>,
    ) -> Result<GpuWindow<'c, G>> {
        if parents.is_some() {
            let what = "the verification of draft trees".to_owned();
            return Err(ModelError::NotOnDevice { device: G::NAME, what, hint: "draft chains, or run on the CPU" });
        }
        GpuModel::verify(self, cache, tokens, out)
    }
}
