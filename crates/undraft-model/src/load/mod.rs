//! Reads a model folder part by part, for whoever lays the parts out.

mod layers;
mod parts;
mod rows;

use std::path::Path;

pub(crate) use parts::{
    AttentionParts, BlockParts, FeedForwardParts, GdnParts, Matrix, MixerParts, MlpParts, MoeParts, MtpParts,
};

use crate::config::{LayerType, ModelConfig};
use crate::error::Result;
use crate::weights::{WeightData, Weights};

/// Reads tensors and counts them.
pub(crate) struct Loader<'a> {
    pub(crate) config: &'a ModelConfig,
    weights: &'a Weights,
    prefix: &'static str,
    num_loaded: usize,
    num_tensors: usize,
    progress: &'a mut dyn FnMut(usize, usize),
}

/// Opens a folder and lets `build` read it, each part once; what is not read is an error. `progress` is told how many of
/// how many tensors are loaded.
pub(crate) fn folder<T>(
    dir: &Path,
    progress: &mut dyn FnMut(usize, usize),
    build: impl FnOnce(&mut Loader<'_>) -> Result<T>,
) -> Result<(ModelConfig, T)> {
    let config = ModelConfig::from_dir(dir)?;
    let weights = Weights::open(dir)?;
    let prefix = weights.prefix();
    let num_tensors = weights.names().count();
    progress(0, num_tensors);
    let mut loader =
        Loader { config: &config, weights: &weights, prefix, num_loaded: 0, num_tensors, progress: &mut *progress };
    let built = build(&mut loader)?;
    weights.expect_all_used()?;
    progress(num_tensors, num_tensors);
    Ok((config, built))
}

impl Loader<'_> {
    /// `[vocab_size, H]`.
    pub(crate) fn embedding(&mut self) -> Result<Matrix> {
        let (vocab_size, hidden_size) = (self.config.vocab_size, self.config.hidden_size);
        self.matrix(&format!("{}embed_tokens.weight", self.prefix), vocab_size, hidden_size)
    }

    /// A block of the trunk.
    pub(crate) fn block(&mut self, layer: usize) -> Result<BlockParts> {
        let name = format!("{}layers.{layer}.", self.prefix);
        let mixer = match self.config.layer_types[layer] {
            LayerType::LinearAttention => MixerParts::Gdn(Box::new(self.gdn(&format!("{name}linear_attn."))?)),
            LayerType::FullAttention => MixerParts::Attention(Box::new(self.attention(&format!("{name}self_attn."))?)),
        };
        self.block_of(&name, mixer, self.config.is_moe_layer(layer))
    }

    /// The weight of the trunk's last norm, `[H]`, zero-centred.
    pub(crate) fn norm(&mut self) -> Result<Vec<f32>> {
        self.values(&format!("{}norm.weight", self.prefix), &[self.config.hidden_size])
    }

    /// `[vocab_size, H]`; none where the head is tied to the embedding.
    pub(crate) fn head(&mut self) -> Result<Option<Matrix>> {
        let (vocab_size, hidden_size) = (self.config.vocab_size, self.config.hidden_size);
        let untied = self.weights.contains("lm_head.weight");
        untied.then(|| self.matrix("lm_head.weight", vocab_size, hidden_size)).transpose()
    }

    /// The MTP head, if there is one.
    pub(crate) fn mtp(&mut self) -> Result<Option<MtpParts>> {
        if !self.weights.contains_prefix("mtp.") {
            return Ok(None);
        }
        let hidden_size = self.config.hidden_size;
        Ok(Some(MtpParts {
            norm_embedding: self.values("mtp.pre_fc_norm_embedding.weight", &[hidden_size])?,
            norm_hidden: self.values("mtp.pre_fc_norm_hidden.weight", &[hidden_size])?,
            fc: self.matrix("mtp.fc.weight", hidden_size, 2 * hidden_size)?,
            block: {
                let attention = self.attention("mtp.layers.0.self_attn.")?;
                self.block_of("mtp.layers.0.", attention, self.config.moe.is_some())?
            },
            norm: self.values("mtp.norm.weight", &[hidden_size])?,
        }))
    }

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

    fn matrix(&mut self, name: &str, out_features: usize, in_features: usize) -> Result<Matrix> {
        let data = self.storage(name, &[out_features, in_features])?;
        Ok(Matrix { data, out_features, in_features })
    }

    fn block_of<M>(&mut self, name: &str, mixer: M, has_experts: bool) -> Result<BlockParts<M>> {
        let (hidden_size, intermediate_size) = (self.config.hidden_size, self.config.intermediate_size);
        let mlp = format!("{name}mlp.");
        Ok(BlockParts {
            input_norm: self.values(&format!("{name}input_layernorm.weight"), &[hidden_size])?,
            mixer,
            post_norm: self.values(&format!("{name}post_attention_layernorm.weight"), &[hidden_size])?,
            mlp: match &self.config.moe {
                Some(moe) if has_experts => FeedForwardParts::Experts(Box::new(self.moe(&mlp, moe)?)),
                _ => FeedForwardParts::Dense(self.mlp(&mlp, intermediate_size)?),
            },
        })
    }
}
