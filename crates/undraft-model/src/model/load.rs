//! From a model folder to a model.

mod layers;
mod rows;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use undraft::Device;

use super::Model;
use super::block::{Block, FeedForward, Mixer};
use super::mtp::MtpHead;
use crate::config::{LayerType, ModelConfig};
use crate::dense::{Compute, Linear, RmsNorm, Rope};
use crate::error::Result;
use crate::weights::{WeightData, Weights};

/// Reads tensors and counts them.
struct Loader<'a> {
    config: &'a ModelConfig,
    weights: &'a Weights,
    num_loaded: usize,
    num_tensors: usize,
    progress: &'a mut dyn FnMut(usize, usize),
}

pub(super) fn model(dir: &Path, device: &Device, progress: &mut dyn FnMut(usize, usize)) -> Result<Model> {
    static NEXT_ID: AtomicU64 = AtomicU64::new(0);
    let config = ModelConfig::from_dir(dir)?;
    let weights = Weights::open(dir)?;
    let prefix = weights.prefix();
    let num_tensors = weights.names().count();
    progress(0, num_tensors);
    let mut loader = Loader { config: &config, weights: &weights, num_loaded: 0, num_tensors, progress };

    let (vocab_size, hidden_size) = (config.vocab_size, config.hidden_size);
    let embed = Arc::new(loader.linear(&format!("{prefix}embed_tokens.weight"), vocab_size, hidden_size)?);
    let mut num_gdn = 0;
    let mut blocks = Vec::with_capacity(config.num_layers);
    for (layer, kind) in config.layer_types.iter().enumerate() {
        let name = format!("{prefix}layers.{layer}.");
        let mixer = match kind {
            LayerType::LinearAttention => {
                num_gdn += 1;
                Mixer::Gdn(Box::new(loader.gdn(&format!("{name}linear_attn."), num_gdn - 1)?))
            }
            LayerType::FullAttention => Mixer::Attention(Box::new(loader.attention(&format!("{name}self_attn."))?)),
        };
        blocks.push(loader.block(&name, mixer, config.is_moe_layer(layer))?);
    }
    let norm = loader.norm(&format!("{prefix}norm.weight"), hidden_size)?;
    let head = match weights.contains("lm_head.weight") {
        true => Arc::new(loader.linear("lm_head.weight", vocab_size, hidden_size)?),
        false => embed.clone(),
    };
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let compute = Compute::new(device.cpu_backend());
    let rope = Rope::new(config.rotary_dim, config.rope_theta);
    let mtp = match weights.contains_prefix("mtp.") {
        true => Some(MtpHead {
            model_id: id,
            norm_embedding: loader.norm("mtp.pre_fc_norm_embedding.weight", hidden_size)?,
            norm_hidden: loader.norm("mtp.pre_fc_norm_hidden.weight", hidden_size)?,
            fc: loader.linear("mtp.fc.weight", hidden_size, 2 * hidden_size)?,
            block: {
                let attention = loader.attention("mtp.layers.0.self_attn.")?;
                loader.block("mtp.layers.0.", attention, config.moe.is_some())?
            },
            norm: loader.norm("mtp.norm.weight", hidden_size)?,
            embed: embed.clone(),
            head: head.clone(),
            rope: rope.clone(),
            device: device.clone(),
            compute: compute.clone(),
            max_positions: config.max_position_embeddings,
        }),
        false => None,
    };
    weights.expect_all_used()?;
    (loader.progress)(num_tensors, num_tensors);
    Ok(Model { id, device: device.clone(), compute, rope, embed, blocks, norm, head, mtp, config })
}

impl Loader<'_> {
    /// A tensor in the type that the file has.
    fn storage(&mut self, name: &str, shape: &[usize]) -> Result<WeightData> {
        let data = self.weights.get(name)?.expect_shape(shape)?.to_storage()?;
        self.count();
        Ok(data)
    }

    /// A tensor, widened.
    fn values(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let values = self.weights.get(name)?.expect_shape(shape)?.to_f32_vec()?;
        self.count();
        Ok(values)
    }

    fn count(&mut self) {
        self.num_loaded += 1;
        (self.progress)(self.num_loaded, self.num_tensors);
    }

    fn linear(&mut self, name: &str, out_features: usize, in_features: usize) -> Result<Linear> {
        Ok(Linear::new(&self.storage(name, &[out_features, in_features])?, out_features, in_features))
    }

    fn norm(&mut self, name: &str, len: usize) -> Result<RmsNorm> {
        Ok(RmsNorm::new(&self.values(name, &[len])?, self.config.rms_norm_eps as f32))
    }

    fn block<M>(&mut self, name: &str, mixer: M, has_experts: bool) -> Result<Block<M>> {
        let (hidden_size, intermediate_size) = (self.config.hidden_size, self.config.intermediate_size);
        let mlp = format!("{name}mlp.");
        Ok(Block {
            input_norm: self.norm(&format!("{name}input_layernorm.weight"), hidden_size)?,
            mixer,
            post_norm: self.norm(&format!("{name}post_attention_layernorm.weight"), hidden_size)?,
            mlp: match &self.config.moe {
                Some(moe) if has_experts => FeedForward::Experts(Box::new(self.moe(&mlp, moe)?)),
                _ => FeedForward::Dense(Box::new(self.mlp(&mlp, intermediate_size)?)),
            },
        })
    }
}
