//! What one sequence leaves behind in a model.

use undraft::{LayerDims, PoolConfig, Slot, StatePool};

use super::Model;
use super::block::Mixer;
use super::window::Window;
use crate::dense::{KvCache, Paths};
use crate::error::{ModelError, Result};

/// Sizes of a [`HybridCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Positions there is room for, at most the model's `max_position_embeddings`.
    pub capacity: usize,
    /// Longest window that can be taken back, 1..=65536.
    pub max_window: usize,
}

/// Keys and values of the full-attention layers, states of the Gated DeltaNet layers, of one sequence.
#[derive(Debug)]
pub struct HybridCache {
    model_id: u64,
    pool: StatePool,
    slot: Slot,
    kv: Vec<KvCache>,
    len: usize,
    capacity: usize,
    /// Of the tree that is being verified.
    paths: Paths,
}

impl HybridCache {
    pub(super) fn new(model: &Model, cache: CacheConfig) -> Result<Self> {
        let config = model.config();
        check_capacity(cache.capacity, config.max_position_embeddings)?;
        let (mut layers, mut kv) = (Vec::new(), Vec::new());
        for block in &model.blocks {
            match &block.mixer {
                Mixer::Gdn(gdn) => {
                    layers.push(LayerDims { gdn: *gdn.layer.dims(), conv_width: config.linear_conv_kernel_dim })
                }
                Mixer::Attention(_) => {
                    kv.push(KvCache::new(config.num_key_value_heads, config.head_dim, cache.capacity)?);
                }
            }
        }
        let pool = PoolConfig::new(layers, 1, cache.max_window);
        let mut pool = StatePool::new(model.device(), pool)?;
        let slot = pool.alloc()?;
        Ok(Self { model_id: model.id, pool, slot, kv, len: 0, capacity: cache.capacity, paths: Paths::default() })
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Positions there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Longest window that can be taken back.
    pub fn max_window(&self) -> usize {
        self.pool.max_window()
    }

    /// Bytes: keys and values at capacity, states and logs.
    pub fn memory(&self) -> usize {
        self.kv_memory() + self.state_memory()
    }

    /// Bytes of keys and values at capacity.
    pub fn kv_memory(&self) -> usize {
        self.kv.iter().map(KvCache::memory).sum()
    }

    /// Bytes of the recurrent and convolution states and their logs.
    pub fn state_memory(&self) -> usize {
        self.pool.memory_per_slot().total()
    }

    /// Back to an empty sequence, whatever went wrong before.
    ///
    /// # Errors
    /// None that a caller can cause.
    pub fn reset(&mut self) -> Result<()> {
        self.pool.reset(self.slot)?;
        self.kv.iter_mut().for_each(|kv| kv.truncate(0));
        self.len = 0;
        Ok(())
    }

    /// State of a Gated DeltaNet layer (counted among those), `[HV, V, K]`.
    ///
    /// # Errors
    /// [`ModelError::Pool`] if there is no such layer, or a prefill failed half way.
    pub fn recurrent_state(&mut self, gdn_layer: usize) -> Result<Vec<f32>> {
        Ok(self.pool.recurrent_state(gdn_layer, self.slot)?.to_f32())
    }

    /// Last inputs of the convolution of a Gated DeltaNet layer (counted among those), `[W - 1, C]`, oldest first.
    ///
    /// # Errors
    /// As [`HybridCache::recurrent_state`].
    pub fn conv_state(&mut self, gdn_layer: usize) -> Result<&[f32]> {
        Ok(self.pool.conv_state(gdn_layer, self.slot)?)
    }

    /// Keys and values of the full-attention layers, in order.
    pub fn kv(&self) -> &[KvCache] {
        &self.kv
    }

    pub(super) fn check_model(&self, model_id: u64) -> Result<()> {
        if self.model_id == model_id { Ok(()) } else { Err(ModelError::ForeignCache) }
    }

    pub(super) fn check_room(&self, more: usize) -> Result<()> {
        check_room(self.len, more, self.capacity)
    }

    /// Opens a window.
    pub(super) fn open(&mut self, kind: Kind<'_>) -> Result<Window<'_>> {
        let Self { pool, slot, kv, len, paths, .. } = self;
        let slots = [*slot];
        let (round, paths) = match kind {
            Kind::Prefill { num_tokens } => (pool.begin_prefill(&slots, &[num_tokens])?, None),
            Kind::Chain { num_tokens } => (pool.begin(&slots, &[num_tokens])?, None),
            Kind::Tree { parents } => {
                set_paths(paths, parents)?;
                (pool.begin_tree(&slots, &[parents])?, Some(&*paths))
            }
        };
        Ok(Window::new(round, kv, len, paths))
    }
}

/// What a window is opened for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind<'a> {
    /// Tokens that all stay and cannot be taken back.
    Prefill { num_tokens: usize },
    /// Tokens one behind the other.
    Chain { num_tokens: usize },
    /// Tokens behind their parents, -1 for what is committed.
    Tree { parents: &'a [i32] },
}

fn set_paths(paths: &mut Paths, parents: &[i32]) -> Result<()> {
    paths.clear();
    for (index, &parent) in parents.iter().enumerate() {
        let refused = ModelError::TreeParent { index, found: i64::from(parent) };
        paths.push(match parent {
            -1 => None,
            _ => Some(usize::try_from(parent).ok().filter(|&parent| parent < index).ok_or(refused)?),
        });
    }
    Ok(())
}

pub(crate) fn check_capacity(found: usize, max: usize) -> Result<()> {
    if (1..=max).contains(&found) { Ok(()) } else { Err(ModelError::Capacity { found, max }) }
}

pub(crate) fn check_room(len: usize, more: usize, capacity: usize) -> Result<()> {
    if more <= capacity - len { Ok(()) } else { Err(ModelError::CacheFull { len, more, capacity }) }
}
