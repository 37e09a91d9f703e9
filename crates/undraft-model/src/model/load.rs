//! From a model folder to a model.

use std::path::Path;
use std::sync::Arc;

use undraft::{Device, GdnLayer, GdnLayerParams};

use super::block::{Block, FeedForward, Mixer};
use super::gated_attention::GatedAttention;
use super::gdn::Gdn;
use super::mtp::MtpHead;
use super::{Model, next_id};
use crate::config::ModelConfig;
use crate::dense::{Compute, Linear, Mlp, Moe, RmsNorm, Rope};
use crate::error::{ModelError, Result};
use crate::load::{
    self, AttentionParts, BlockParts, FeedForwardParts, GdnParts, Matrix, MixerParts, MlpParts, MoeParts,
};

pub(super) fn model(dir: &Path, device: &Device, progress: &mut dyn FnMut(usize, usize)) -> Result<Model> {
    let Some(backend) = device.cpu_backend() else {
        return Err(ModelError::OtherDevice { found: device.name(), expected: "the CPU" });
    };
    let (id, compute) = (next_id(), Compute::new(backend));
    let (config, model) = load::folder(dir, progress, |loader| {
        let config = loader.config;
        let embed = Arc::new(linear(loader.embedding()?));
        let mut num_gdn = 0;
        let mut blocks = Vec::with_capacity(config.num_layers);
        for layer in 0..config.num_layers {
            blocks.push(block(config, loader.block(layer)?, |mixer| {
                Ok(match mixer {
                    MixerParts::Gdn(parts) => {
                        num_gdn += 1;
                        Mixer::Gdn(Box::new(gdn(config, *parts, num_gdn - 1)?))
                    }
                    MixerParts::Attention(parts) => Mixer::Attention(Box::new(attention(config, *parts))),
                })
            })?);
        }
        let norm = norm(config, &loader.norm()?);
        let head = loader.head()?.map_or_else(|| embed.clone(), |head| Arc::new(linear(head)));
        let rope = Rope::new(config.rotary_dim, config.rope_theta);
        let mtp = match loader.mtp()? {
            Some(parts) => Some(MtpHead {
                model_id: id,
                norm_embedding: self::norm(config, &parts.norm_embedding),
                norm_hidden: self::norm(config, &parts.norm_hidden),
                fc: linear(parts.fc),
                block: block(config, parts.block, |parts| Ok(attention(config, parts)))?,
                norm: self::norm(config, &parts.norm),
                embed: embed.clone(),
                head: head.clone(),
                rope: rope.clone(),
                device: device.clone(),
                compute: compute.clone(),
                max_positions: config.max_position_embeddings,
            }),
            None => None,
        };
        Ok((rope, embed, blocks, norm, head, mtp))
    })?;
    let (rope, embed, blocks, norm, head, mtp) = model;
    Ok(Model { id, device: device.clone(), compute, rope, embed, blocks, norm, head, mtp, config })
}

fn linear(matrix: Matrix) -> Linear {
    Linear::new(&matrix.data, matrix.out_features, matrix.in_features)
}

fn norm(config: &ModelConfig, weight: &[f32]) -> RmsNorm {
    RmsNorm::new(weight, config.rms_norm_eps as f32)
}

fn block<P, M>(config: &ModelConfig, parts: BlockParts<P>, mixer: impl FnOnce(P) -> Result<M>) -> Result<Block<M>> {
    Ok(Block {
        input_norm: norm(config, &parts.input_norm),
        mixer: mixer(parts.mixer)?,
        post_norm: norm(config, &parts.post_norm),
        mlp: match parts.mlp {
            FeedForwardParts::Dense(parts) => FeedForward::Dense(Box::new(mlp(parts))),
            FeedForwardParts::Experts(parts) => FeedForward::Experts(Box::new(moe(config, *parts))),
        },
    })
}

fn gdn(config: &ModelConfig, parts: GdnParts, index: usize) -> Result<Gdn> {
    let width = config.linear_conv_kernel_dim;
    let layer = GdnLayer::new(GdnLayerParams {
        norm_weight: Some(&parts.norm_weight),
        norm_eps: config.rms_norm_eps as f32,
        ..GdnLayerParams::new(parts.dims, width, &parts.conv_weight, &parts.a_log, &parts.dt_bias)
    })?;
    Ok(Gdn {
        index,
        layer,
        in_proj_qkv: linear(parts.in_proj_qkv),
        in_proj_z: linear(parts.in_proj_z),
        in_proj_b: linear(parts.in_proj_b),
        in_proj_a: linear(parts.in_proj_a),
        out_proj: linear(parts.out_proj),
    })
}

fn attention(config: &ModelConfig, parts: AttentionParts) -> GatedAttention {
    GatedAttention {
        q_proj: linear(parts.q_proj),
        k_proj: linear(parts.k_proj),
        v_proj: linear(parts.v_proj),
        o_proj: linear(parts.o_proj),
        q_norm: norm(config, &parts.q_norm),
        k_norm: norm(config, &parts.k_norm),
        num_heads: config.num_attention_heads,
        num_kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
    }
}

fn mlp(parts: MlpParts) -> Mlp {
    Mlp { gate: linear(parts.gate), up: linear(parts.up), down: linear(parts.down) }
}

fn moe(config: &ModelConfig, parts: MoeParts) -> Moe {
    let (num_experts_per_tok, norm_topk_prob) =
        config.moe.as_ref().map_or((0, false), |moe| (moe.num_experts_per_tok, moe.norm_topk_prob));
    Moe {
        router: linear(parts.router),
        experts: parts.experts.into_iter().map(mlp).collect(),
        shared_expert: mlp(parts.shared_expert),
        shared_expert_gate: linear(parts.shared_expert_gate),
        num_experts_per_tok,
        norm_topk_prob,
    }
}
