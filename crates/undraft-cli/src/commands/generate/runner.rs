//! Models that the program runs, by device.

use std::path::Path;

use undraft::Device;
use undraft_model::drafters::{Drafter, MtpDrafter, MtpTreeDrafter};
use undraft_model::generate::Engine;
use undraft_model::gpu::{Gpu, GpuCache, GpuModel, GpuMtpDrafter};
use undraft_model::model::{CacheConfig, HybridCache, TreeShape};
use undraft_model::{Model, ModelError};

/// A drafter, and the bytes that it takes beside the cache.
pub type Measured<'m, H> = (Box<dyn Drafter<H> + 'm>, usize);

/// An engine with what is around it: loading, caches, drafters, memory.
pub trait Runner: Engine + Sized {
    fn load(dir: &Path, device: &Device, progress: &mut dyn FnMut(usize, usize)) -> Result<Self, ModelError>;
    fn new_cache(&self, config: CacheConfig) -> Result<Self::Cache, ModelError>;
    fn weight_bytes(&self) -> usize;
    /// Bytes of keys and values, and of states with their logs.
    fn cache_bytes(cache: &Self::Cache) -> (usize, usize);
    fn has_mtp(&self) -> bool;
    /// A drafter of chains; none without the head.
    fn mtp(&self, capacity: usize) -> Result<Option<Measured<'_, Self::Hidden>>, ModelError>;
    /// A drafter of trees; none without the head.
    fn mtp_tree(&self, capacity: usize, shape: TreeShape) -> Result<Option<Measured<'_, Self::Hidden>>, ModelError>;
}

impl Runner for Model {
    fn load(dir: &Path, device: &Device, progress: &mut dyn FnMut(usize, usize)) -> Result<Self, ModelError> {
        Model::load(dir, device, progress)
    }
    fn new_cache(&self, config: CacheConfig) -> Result<HybridCache, ModelError> {
        Model::new_cache(self, config)
    }
    fn weight_bytes(&self) -> usize {
        Model::weight_bytes(self)
    }
    fn cache_bytes(cache: &HybridCache) -> (usize, usize) {
        (cache.kv_memory(), cache.state_memory())
    }
    fn has_mtp(&self) -> bool {
        Model::mtp(self).is_some()
    }
    fn mtp(&self, capacity: usize) -> Result<Option<Measured<'_, [f32]>>, ModelError> {
        let Some(head) = Model::mtp(self) else { return Ok(None) };
        let drafter = MtpDrafter::new(head, capacity)?;
        let bytes = drafter.memory();
        Ok(Some((Box::new(drafter), bytes)))
    }
    fn mtp_tree(&self, capacity: usize, shape: TreeShape) -> Result<Option<Measured<'_, [f32]>>, ModelError> {
        let Some(head) = Model::mtp(self) else { return Ok(None) };
        let drafter = MtpTreeDrafter::new(head, capacity, shape)?;
        let bytes = drafter.memory();
        Ok(Some((Box::new(drafter), bytes)))
    }
}

impl<G: Gpu> Runner for GpuModel<G> {
    fn load(dir: &Path, device: &Device, progress: &mut dyn FnMut(usize, usize)) -> Result<Self, ModelError> {
        GpuModel::load(dir, device, progress)
    }
    fn new_cache(&self, config: CacheConfig) -> Result<GpuCache<G>, ModelError> {
        GpuModel::new_cache(self, config)
    }
    fn weight_bytes(&self) -> usize {
        GpuModel::weight_bytes(self)
    }
    fn cache_bytes(cache: &GpuCache<G>) -> (usize, usize) {
        (cache.kv_memory(), cache.state_memory())
    }
    fn has_mtp(&self) -> bool {
        GpuModel::mtp(self).is_some()
    }
    fn mtp(&self, capacity: usize) -> Result<Option<Measured<'_, Self::Hidden>>, ModelError> {
        let Some(head) = GpuModel::mtp(self) else { return Ok(None) };
        let drafter = GpuMtpDrafter::new(head, capacity)?;
        let bytes = drafter.memory();
        Ok(Some((Box::new(drafter), bytes)))
    }
    fn mtp_tree(&self, _: usize, _: TreeShape) -> Result<Option<Measured<'_, Self::Hidden>>, ModelError> {
        let what = "`--draft mtp-tree`".to_owned();
        Err(ModelError::NotOnDevice { device: G::NAME, what, hint: "use `--draft mtp`, or `--device cpu`" })
    }
}
