//! What one sequence leaves behind on the device.

use super::CHUNK;
use super::args::Kv;
use super::block::{GdnState, Mixer};
use super::device::{Gpu, Memory};
use super::model::GpuModel;
use super::workspace::{Header, HeaderWords, Workspace};
use crate::config::ModelConfig;
use crate::dense::Rope;
use crate::error::{ModelError, Result};
use crate::generate::{SequenceCache, Undecided};
use crate::model::{CacheConfig, check_capacity};

/// Keys and values of the full-attention layers, states and logs of the Gated DeltaNet layers of one sequence, and the
/// memory that its passes work in.
#[derive(Debug)]
pub struct GpuCache<G: Gpu> {
    /// Of windows of as many tokens, once they have come. Dropped before the memory that they use.
    pub(super) recordings: Vec<Option<G::Recording>>,
    pub(super) model_id: u64,
    pub(super) gpu: G,
    pub(super) layers: Vec<Layer<G>>,
    /// Cosines, then sines, of all positions.
    pub(super) rope: G::Buffer<f32>,
    pub(super) header: Header<G>,
    pub(super) work: Workspace<G>,
    words: HeaderWords,
    capacity: usize,
    max_window: usize,
    /// A call has failed half way.
    torn: bool,
}

#[derive(Debug)]
pub(super) enum Layer<G: Gpu> {
    Gdn(GdnState<G>),
    Attention(Kv<G>),
}

impl<G: Gpu> GpuCache<G> {
    pub(super) fn new(model: &GpuModel<G>, cache: CacheConfig) -> Result<Self> {
        const MOST: usize = 1 << 16;
        let CacheConfig { capacity, max_window } = cache;
        let config = &model.config;
        check_capacity(capacity, config.max_position_embeddings)?;
        if !(1..=MOST).contains(&max_window) {
            return Err(ModelError::Options { option: "max_window", found: max_window, min: 1, max: MOST });
        }
        let gpu = &model.gpu;
        let zeroed = |len: usize| gpu.zeroed(len);
        let mut layers = Vec::with_capacity(model.blocks.len());
        for block in &model.blocks {
            layers.push(match &block.mixer {
                Mixer::Gdn(gdn) => {
                    let dims = &gdn.dims;
                    let [.., log] = GdnState::<G>::log_parts(dims, max_window);
                    Layer::Gdn(GdnState {
                        state: zeroed(dims.state_len())?,
                        conv: zeroed((gdn.conv_width - 1) * dims.conv_dim())?,
                        conv_log: zeroed(max_window * dims.conv_dim())?,
                        log: zeroed(log)?,
                    })
                }
                Mixer::Attention(attention) => Layer::Attention(Kv {
                    keys: zeroed(capacity * attention.sizes.keys())?,
                    values: zeroed(capacity * attention.sizes.keys())?,
                }),
            });
        }
        let max_tokens = CHUNK.max(max_window);
        Ok(Self {
            model_id: model.id,
            gpu: gpu.clone(),
            layers,
            rope: rope(gpu, config, capacity)?,
            header: Header::new(gpu, max_tokens)?,
            work: Workspace::new(gpu, config, (max_tokens, max_window), capacity)?,
            recordings: (0..=max_window).map(|_| None).collect(),
            words: HeaderWords::default(),
            capacity,
            max_window,
            torn: false,
        })
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.words.len
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.words.len == 0
    }

    /// Positions there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Longest window that can be taken back.
    pub fn max_window(&self) -> usize {
        self.max_window
    }

    /// Bytes of keys and values at capacity.
    pub fn kv_memory(&self) -> usize {
        let kv = |layer: &Layer<G>| match layer {
            Layer::Attention(kv) => 4 * (kv.keys.len() + kv.values.len()),
            Layer::Gdn(_) => 0,
        };
        self.layers.iter().map(kv).sum()
    }

    /// Bytes of the recurrent and convolution states and their logs.
    pub fn state_memory(&self) -> usize {
        let state = |layer: &Layer<G>| match layer {
            Layer::Attention(_) => 0,
            Layer::Gdn(s) => 4 * (s.state.len() + s.conv.len() + s.conv_log.len() + s.log.len()),
        };
        self.layers.iter().map(state).sum()
    }

    /// Back to an empty sequence, whatever went wrong before.
    ///
    /// # Errors
    /// That of the device if it fails.
    pub fn reset(&mut self) -> Result<()> {
        self.torn = true;
        for layer in &mut self.layers {
            if let Layer::Gdn(layer) = layer {
                self.gpu.clear(&mut layer.state)?;
                self.gpu.clear(&mut layer.conv)?;
            }
        }
        self.words = HeaderWords::default();
        self.torn = false;
        Ok(())
    }

    pub(super) fn words(&self) -> HeaderWords {
        self.words
    }

    /// From here on the cache counts as torn, until the call is [done](Self::end).
    pub(super) fn begin(&mut self) -> Result<()> {
        if self.torn {
            return Err(ModelError::CacheTorn);
        }
        self.torn = true;
        Ok(())
    }

    /// Ends a call whose kernels have settled what was pending; `num_kept` tokens stay, of which `num_pending` lie in the
    /// window's log.
    pub(super) fn end(&mut self, num_kept: usize, num_pending: usize) {
        self.words.len += num_kept;
        self.words.num_pending = num_pending;
        self.torn = false;
    }
}

/// Cosines, then sines, of all positions, `[capacity, rotary_dim]`.
pub(super) fn rope<G: Gpu>(gpu: &G, config: &ModelConfig, capacity: usize) -> Result<G::Buffer<f32>> {
    let rope = Rope::new(config.rotary_dim, config.rope_theta);
    let mut table = vec![0.0; capacity * rope.dim()];
    rope.table(0, &mut table);
    gpu.copy_of(&table)
}

impl<G: Gpu> SequenceCache for GpuCache<G> {
    fn len(&self) -> usize {
        self.len()
    }
    fn capacity(&self) -> usize {
        self.capacity
    }
    fn max_window(&self) -> usize {
        self.max_window
    }
    fn reset(&mut self) -> Result<()> {
        self.reset()
    }
}

/// An undecided window: [`GpuWindow::commit`] says how many of its tokens stay; dropping it keeps none.
///
/// What stays is settled by the kernels of the next call, which replay it on their way.
#[derive(Debug)]
#[must_use = "a window that is dropped is rolled back"]
pub struct GpuWindow<'c, G: Gpu> {
    cache: &'c mut GpuCache<G>,
    num_tokens: usize,
}

impl<'c, G: Gpu> GpuWindow<'c, G> {
    /// A window whose kernels have run.
    pub(super) fn new(cache: &'c mut GpuCache<G>, num_tokens: usize) -> Self {
        if num_tokens > 0 {
            // What was pending is settled now, and the window's log lies where the next call looks for it.
            cache.end(0, 0);
            cache.words.pending_slot = 1 - cache.words.pending_slot;
        }
        Self { cache, num_tokens }
    }

    /// Tokens of the window.
    pub fn num_tokens(&self) -> usize {
        self.num_tokens
    }

    /// Keeps the first `num_kept` tokens, 0..=`num_tokens()`; 0 leaves the cache as it was.
    ///
    /// # Errors
    /// [`ModelError::Options`] if there are fewer tokens; the window is then rolled back.
    pub fn commit(self, num_kept: usize) -> Result<()> {
        if num_kept > self.num_tokens {
            let max = self.num_tokens;
            return Err(ModelError::Options { option: "num_kept", found: num_kept, min: 0, max });
        }
        if self.num_tokens > 0 {
            self.cache.end(num_kept, num_kept);
        }
        Ok(())
    }

    /// Keeps nothing; the same as dropping the window.
    pub fn rollback(self) {}
}

impl<G: Gpu> Undecided for GpuWindow<'_, G> {
    fn commit_path(self, path: &[usize]) -> Result<()> {
        // A chain has one path to each token.
        if let Some((index, &found)) = path.iter().enumerate().find(|&(index, &token)| token != index) {
            return Err(ModelError::TreePath { index, found, expected: "the token behind the one before it" });
        }
        self.commit(path.len())
    }
}
