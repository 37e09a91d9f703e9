//! What a model folder says about its model: `config.json` and `generation_config.json`.

mod generation;

use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::{Value, json};

pub use generation::GenerationConfig;

use crate::error::{ModelError, Result};
use crate::files::{self, MAX_CONFIG_BYTES, Object, describe};

/// Family of a model, from `model_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelType {
    /// `qwen3_5` (configuration under `text_config`) and `qwen3_5_text` (flat).
    Qwen3_5,
    /// `qwen3_next`.
    Qwen3Next,
}

impl ModelType {
    const NAMES: [(&'static str, ModelType); 3] =
        [("qwen3_5", Self::Qwen3_5), ("qwen3_5_text", Self::Qwen3_5), ("qwen3_next", Self::Qwen3Next)];
}

/// Mixer of a layer, from `layer_types`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerType {
    /// `linear_attention`: Gated DeltaNet.
    LinearAttention,
    /// `full_attention`: gated softmax attention.
    FullAttention,
}

/// Mixture of experts in the place of the MLP.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeConfig {
    /// Routed experts of a layer.
    pub num_experts: usize,
    /// Routed experts that a token goes through, at most `num_experts`.
    pub num_experts_per_tok: usize,
    /// Inner size of a routed expert.
    pub moe_intermediate_size: usize,
    /// Inner size of the shared expert.
    pub shared_expert_intermediate_size: usize,
    /// Whether the chosen experts' probabilities are divided by their sum; true when absent.
    pub norm_topk_prob: bool,
    /// Layer `i` has experts when `i + 1` is a multiple of this; 1 when absent.
    pub decoder_sparse_step: usize,
    /// Layers that keep the dense MLP all the same; none when absent.
    pub mlp_only_layers: Vec<usize>,
}

/// Sizes and constants of a language model, every one checked.
///
/// Whether the output head is tied to the embedding, and whether there is an MTP head, is told by the tensors that
/// are there (see [`crate::weights::Weights`]), not by the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Family; it decides how the projections of a Gated DeltaNet layer are stored.
    pub model_type: ModelType,
    /// Rows of the embedding; may exceed the tokenizer's ids.
    pub vocab_size: usize,
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of a dense MLP.
    pub intermediate_size: usize,
    /// `num_hidden_layers`.
    pub num_layers: usize,
    /// Mixer of each layer; `num_layers` long.
    pub layer_types: Vec<LayerType>,
    /// Query heads of full attention, a multiple of `num_key_value_heads`.
    pub num_attention_heads: usize,
    /// Key and value heads of full attention.
    pub num_key_value_heads: usize,
    /// Size of a head of full attention.
    pub head_dim: usize,
    /// Leading values of a head that are rotated, `head_dim * partial_rotary_factor` rounded down: even, 2..=`head_dim`.
    pub rotary_dim: usize,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Key heads of Gated DeltaNet.
    pub linear_num_key_heads: usize,
    /// Value heads of Gated DeltaNet, a multiple of `linear_num_key_heads`.
    pub linear_num_value_heads: usize,
    /// Size of a key head of Gated DeltaNet, 1..=256.
    pub linear_key_head_dim: usize,
    /// Size of a value head of Gated DeltaNet, 1..=256.
    pub linear_value_head_dim: usize,
    /// Taps of the causal convolution, 2..=8.
    pub linear_conv_kernel_dim: usize,
    /// Epsilon of every RMSNorm.
    pub rms_norm_eps: f64,
    /// Longest sequence, prompt and generated tokens together.
    pub max_position_embeddings: usize,
    /// Experts, if the model has any.
    pub moe: Option<MoeConfig>,
}

const MAX_VOCAB: usize = 1 << 24;
const SIZE: RangeInclusive<usize> = 1..=1 << 20;
const HEADS: RangeInclusive<usize> = 1..=4096;
const LAYERS: RangeInclusive<usize> = 1..=4096;
const GDN_HEAD_DIM: RangeInclusive<usize> = 1..=256;
const CONV_KERNEL: RangeInclusive<usize> = 2..=8;
const EXPERTS: RangeInclusive<usize> = 0..=1 << 16;
const MAX_POSITIONS: usize = 1 << 30;

/// Most elements of one tensor: far above any published one, and 4 bytes for each still fit an address.
const MAX_ELEMENTS: usize = if usize::BITS >= 64 { 1 << 40 } else { 1 << 28 };

impl ModelConfig {
    /// Reads `config.json` of a model folder.
    ///
    /// # Errors
    /// If the file cannot be read, is not UTF-8 or JSON, or for what [`ModelConfig::from_json`] refuses.
    pub fn from_dir(dir: &Path) -> Result<Self> {
        let file = dir.join("config.json");
        Self::from_json(&files::read_text(&file, MAX_CONFIG_BYTES)?, &file)
    }

    /// Reads the text of a `config.json`; `file` only names it in errors.
    ///
    /// The language model's keys may stand at the top or under `text_config`, for every family. Keys that this crate
    /// does not know are ignored.
    ///
    /// # Errors
    /// [`ModelError::InvalidJson`], [`ModelError::MissingKey`], [`ModelError::InvalidKey`] (wrong type, out of range,
    /// unsupported), [`ModelError::NotMultiple`] and [`ModelError::TensorTooLarge`].
    pub fn from_json(text: &str, file: &Path) -> Result<Self> {
        let map = files::parse_json(file, text)?;
        let top = Object::top(file, &map);
        let model_type = model_type(&top)?.ok_or_else(|| top.missing("model_type", supported_types()))?;
        match top.object("text_config", "text_config.")? {
            None => Self::from_object(&top, model_type),
            Some(inner) => Self::from_object(&inner, self::model_type(&inner)?.unwrap_or(model_type)),
        }
    }

    fn from_object(object: &Object<'_>, model_type: ModelType) -> Result<Self> {
        refuse_unsupported(object)?;
        let num_layers = object.integer("num_hidden_layers", LAYERS)?;
        let head_dim = object.integer("head_dim", 2..=4096)?;
        let (rope_theta, rotary_dim) = rotary(object, head_dim)?;
        let config = Self {
            model_type,
            vocab_size: object.integer("vocab_size", 1..=MAX_VOCAB)?,
            hidden_size: object.integer("hidden_size", SIZE)?,
            intermediate_size: object.integer("intermediate_size", SIZE)?,
            num_layers,
            layer_types: layer_types(object, num_layers)?,
            num_attention_heads: object.integer("num_attention_heads", HEADS)?,
            num_key_value_heads: object.integer("num_key_value_heads", HEADS)?,
            head_dim,
            rotary_dim,
            rope_theta,
            linear_num_key_heads: object.integer("linear_num_key_heads", HEADS)?,
            linear_num_value_heads: object.integer("linear_num_value_heads", HEADS)?,
            linear_key_head_dim: object.integer("linear_key_head_dim", GDN_HEAD_DIM)?,
            linear_value_head_dim: object.integer("linear_value_head_dim", GDN_HEAD_DIM)?,
            linear_conv_kernel_dim: object.integer("linear_conv_kernel_dim", CONV_KERNEL)?,
            rms_norm_eps: object.number("rms_norm_eps", 1e-30..=1.0)?,
            max_position_embeddings: object.integer("max_position_embeddings", 1..=MAX_POSITIONS)?,
            moe: moe(object, model_type, num_layers)?,
        };
        config.check(object)?;
        Ok(config)
    }

    /// Whether layer `layer` has experts in the place of the dense MLP.
    pub fn is_moe_layer(&self, layer: usize) -> bool {
        self.moe.as_ref().is_some_and(|moe| {
            (layer + 1).is_multiple_of(moe.decoder_sparse_step) && !moe.mlp_only_layers.contains(&layer)
        })
    }

    /// What no key shows alone: heads that divide, and tensors of a size that can exist.
    fn check(&self, object: &Object<'_>) -> Result<()> {
        let groups = [
            ("num_attention_heads", self.num_attention_heads, "num_key_value_heads", self.num_key_value_heads),
            ("linear_num_value_heads", self.linear_num_value_heads, "linear_num_key_heads", self.linear_num_key_heads),
        ];
        for (key, found, of_key, of) in groups {
            if !found.is_multiple_of(of) {
                return Err(ModelError::NotMultiple {
                    file: object.file().to_path_buf(),
                    key: object.key(key),
                    found,
                    of_key: object.key(of_key),
                    of,
                });
            }
        }
        let hidden = ("hidden_size", self.hidden_size);
        let head_dim = ("head_dim", self.head_dim);
        check_product(object, &[("vocab_size", self.vocab_size), hidden])?;
        check_product(object, &[("intermediate_size", self.intermediate_size), hidden])?;
        check_product(object, &[("num_attention_heads", self.num_attention_heads), head_dim, hidden])?;
        for (heads, dim) in [
            (("linear_num_key_heads", self.linear_num_key_heads), ("linear_key_head_dim", self.linear_key_head_dim)),
            (
                ("linear_num_value_heads", self.linear_num_value_heads),
                ("linear_value_head_dim", self.linear_value_head_dim),
            ),
        ] {
            check_product(object, &[heads, dim, hidden])?;
        }
        if let Some(moe) = &self.moe {
            let inner = ("moe_intermediate_size", moe.moe_intermediate_size);
            check_product(object, &[("num_experts", moe.num_experts), inner, hidden])?;
        }
        Ok(())
    }
}

fn supported_types() -> String {
    ModelType::NAMES.map(|(name, _)| format!("\"{name}\"")).join(" or ")
}

fn model_type(object: &Object<'_>) -> Result<Option<ModelType>> {
    let Some(name) = object.optional_string("model_type")? else { return Ok(None) };
    match ModelType::NAMES.iter().find(|(known, _)| *known == name) {
        Some(&(_, model_type)) => Ok(Some(model_type)),
        None => Err(object.invalid("model_type", describe(&json!(name)), supported_types())),
    }
}

/// Settings that change the arithmetic and that this runner does not have.
fn refuse_unsupported(object: &Object<'_>) -> Result<()> {
    object.only("hidden_act", &[json!("silu")], "\"silu\"")?;
    object.only("attention_bias", &[json!(false)], "false")?;
    object.only("attn_output_gate", &[json!(true)], "true")?;
    object.only("output_gate_type", &[json!("swish"), json!("silu")], "\"swish\"")?;
    object.only("mtp_use_dedicated_embeddings", &[json!(false)], "false")?;
    object.only("quantization_config", &[], "no such key: weights in bf16, f16 or f32")
}

/// `layer_types`, or every `full_attention_interval`-th layer (4th when absent) full attention.
fn layer_types(object: &Object<'_>, num_layers: usize) -> Result<Vec<LayerType>> {
    let interval = object.optional_integer("full_attention_interval", LAYERS)?.unwrap_or(4);
    let Some(names) = object.optional_list("layer_types")? else {
        let full = |i: usize| (i + 1).is_multiple_of(interval);
        let kind = |i| if full(i) { LayerType::FullAttention } else { LayerType::LinearAttention };
        return Ok((0..num_layers).map(kind).collect());
    };
    if names.len() != num_layers {
        let expected = format!("a list of `num_hidden_layers` = {num_layers}");
        return Err(object.invalid("layer_types", format!("a list of {}", names.len()), expected));
    }
    let kind = |(i, name): (usize, &Value)| match name.as_str() {
        Some("linear_attention") => Ok(LayerType::LinearAttention),
        Some("full_attention") => Ok(LayerType::FullAttention),
        _ => {
            let expected = "\"linear_attention\" or \"full_attention\"";
            Err(object.invalid(&format!("layer_types[{i}]"), describe(name), expected))
        }
    };
    names.iter().enumerate().map(kind).collect()
}

/// `(rope_theta, rotary_dim)`, from `rope_parameters` (Qwen3.5) or from the keys around it (Qwen3-Next).
fn rotary(object: &Object<'_>, head_dim: usize) -> Result<(f64, usize)> {
    const THETA: RangeInclusive<f64> = 1.0..=1e15;
    const ROTARY_FACTOR: &str = "partial_rotary_factor";
    let prefixes = ["rope_parameters", "rope_scaling"].map(|key| object.key(key) + ".");
    let parameters = object.object("rope_parameters", &prefixes[0])?;
    let scaling = object.object("rope_scaling", &prefixes[1])?;
    for settings in parameters.iter().chain(&scaling) {
        for key in ["rope_type", "type"] {
            settings.only(key, &[json!("default")], "\"default\"")?;
        }
    }
    // Each from `rope_parameters` if it is there, else from the keys around it.
    let place = |key| parameters.filter(|parameters| parameters.get(key).is_some()).unwrap_or(*object);
    let theta = place("rope_theta").number("rope_theta", THETA)?;
    let place = place(ROTARY_FACTOR);
    let factor = place.optional_number(ROTARY_FACTOR, 0.0..=1.0)?.unwrap_or(0.25);
    let rotary_dim = (head_dim as f64 * factor) as usize;
    if rotary_dim < 2 || !rotary_dim.is_multiple_of(2) {
        let found = format!("{factor:?}, which rotates {rotary_dim} of `head_dim` = {head_dim} values");
        return Err(place.invalid(ROTARY_FACTOR, found, format!("an even number of values in 2..={head_dim}")));
    }
    Ok((theta, rotary_dim))
}

/// Experts; `num_experts` is 0 or absent (in Qwen3.5 alone) when all layers are dense.
fn moe(object: &Object<'_>, model_type: ModelType, num_layers: usize) -> Result<Option<MoeConfig>> {
    let num_experts = match model_type {
        ModelType::Qwen3_5 => object.optional_integer("num_experts", EXPERTS)?.unwrap_or(0),
        ModelType::Qwen3Next => object.integer("num_experts", EXPERTS)?,
    };
    if num_experts == 0 {
        return Ok(None);
    }
    Ok(Some(MoeConfig {
        num_experts,
        num_experts_per_tok: object.integer("num_experts_per_tok", 1..=num_experts)?,
        moe_intermediate_size: object.integer("moe_intermediate_size", SIZE)?,
        shared_expert_intermediate_size: object.integer("shared_expert_intermediate_size", SIZE)?,
        norm_topk_prob: object.optional_bool("norm_topk_prob")?.unwrap_or(true),
        decoder_sparse_step: object.optional_integer("decoder_sparse_step", LAYERS)?.unwrap_or(1),
        mlp_only_layers: object.optional_integers("mlp_only_layers", 0..=num_layers - 1)?.unwrap_or_default(),
    }))
}

fn check_product(object: &Object<'_>, factors: &[(&str, usize)]) -> Result<()> {
    let product = factors.iter().try_fold(1usize, |product, &(_, factor)| product.checked_mul(factor));
    if product.is_some_and(|product| product <= MAX_ELEMENTS) {
        return Ok(());
    }
    let keys = factors.iter().map(|(key, value)| format!("`{}` = {value}", object.key(key)));
    Err(ModelError::TensorTooLarge {
        file: object.file().to_path_buf(),
        keys: keys.collect::<Vec<_>>().join(" x "),
        limit: MAX_ELEMENTS,
    })
}
