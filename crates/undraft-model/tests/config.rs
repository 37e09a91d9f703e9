//! Configurations of the model folders in the repository, and of forms that they do not have.

mod common;

use std::path::Path;

use common::{model_dirs, set};
use serde_json::{Value, json};
use undraft_model::ModelConfig;
use undraft_model::config::{GenerationConfig, LayerType, ModelType, MoeConfig};

use LayerType::{FullAttention, LinearAttention};

fn parse(config: &Value) -> undraft_model::Result<ModelConfig> {
    ModelConfig::from_json(&config.to_string(), Path::new("config.json"))
}

fn raw(dir: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(dir.join("config.json")).unwrap()).unwrap()
}

#[test]
fn the_three_layouts_are_read() {
    let [tiny, odd, next] = model_dirs().map(|dir| ModelConfig::from_dir(&dir).unwrap());

    let expected = ModelConfig {
        model_type: ModelType::Qwen3_5,
        vocab_size: 4096,
        hidden_size: 256,
        intermediate_size: 1024,
        num_layers: 8,
        layer_types: [[LinearAttention, LinearAttention, LinearAttention, FullAttention]; 2].concat(),
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 128,
        rotary_dim: 32,
        rope_theta: 1e4,
        linear_num_key_heads: 2,
        linear_num_value_heads: 4,
        linear_key_head_dim: 128,
        linear_value_head_dim: 128,
        linear_conv_kernel_dim: 4,
        rms_norm_eps: 1e-6,
        max_position_embeddings: 4096,
        moe: None,
    };
    assert_eq!(tiny, expected);

    let irregular = [FullAttention, LinearAttention, LinearAttention, FullAttention, LinearAttention];
    assert_eq!(odd.layer_types, irregular);
    assert_eq!((odd.linear_key_head_dim, odd.linear_value_head_dim, odd.rotary_dim), (64, 96, 16));

    assert_eq!((next.model_type, next.rope_theta, next.rotary_dim), (ModelType::Qwen3Next, 1e7, 16));
    assert_eq!(next.layer_types, [LinearAttention, LinearAttention, LinearAttention, FullAttention]);
    let experts = MoeConfig {
        num_experts: 8,
        num_experts_per_tok: 3,
        moe_intermediate_size: 32,
        shared_expert_intermediate_size: 48,
        norm_topk_prob: true,
        decoder_sparse_step: 1,
        mlp_only_layers: vec![1],
    };
    assert_eq!(next.moe, Some(experts));
    assert_eq!([0, 1, 2, 3].map(|layer| next.is_moe_layer(layer)), [true, false, true, true]);
    assert!((0..8).all(|layer| !tiny.is_moe_layer(layer)));
}

#[test]
fn end_tokens_of_the_folders() {
    let [tiny, odd, next] = model_dirs().map(|dir| GenerationConfig::from_dir(&dir).unwrap());
    assert_eq!((tiny.eos_token_ids, tiny.do_sample), (vec![4088, 4086], Some(false)));
    assert_eq!(odd.eos_token_ids, [1]);
    assert_eq!(next.eos_token_ids, [1]);
}

#[test]
fn nested_and_flat_are_the_same() {
    for dir in model_dirs() {
        let config = raw(&dir);
        let (flat, nested) = match config.get("text_config") {
            Some(inner) => (inner.clone(), config),
            None => (config.clone(), json!({"model_type": config["model_type"], "text_config": config})),
        };
        assert_eq!(parse(&flat).unwrap(), parse(&nested).unwrap(), "{}", dir.display());
    }
}

#[test]
fn defaults_of_absent_keys() {
    let [_, _, next] = model_dirs();
    let mut config = raw(&next);
    let read = parse(&config).unwrap();
    for key in ["full_attention_interval", "partial_rotary_factor", "norm_topk_prob", "decoder_sparse_step"] {
        set(&mut config, key, None);
    }
    set(&mut config, "some_new_key", Some(json!([1])));
    set(&mut config, "rope_scaling", Some(json!({"rope_type": "default"})));
    assert_eq!(parse(&config).unwrap(), read);

    set(&mut config, "mlp_only_layers", Some(Value::Null));
    set(&mut config, "decoder_sparse_step", Some(json!(2)));
    let sparse = parse(&config).unwrap();
    assert_eq!([0, 1, 2, 3].map(|layer| sparse.is_moe_layer(layer)), [false, true, false, true]);

    set(&mut config, "num_experts", Some(json!(0)));
    assert_eq!(parse(&config).unwrap().moe, None);
}
