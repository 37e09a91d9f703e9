//! From a model folder to a model on the device.

use std::path::Path;
use std::sync::Arc;

use undraft::{ConvDims, Device, conv_weight_to_tap_major};

use super::args::AttentionSizes;
use super::block::{Attention, Block, FeedForward, Gdn, Mixer, Mlp, Moe};
use super::device::Gpu;
use super::model::GpuModel;
use super::mtp::GpuMtpHead;
use super::weights::{Matrix, Norm};
use crate::config::ModelConfig;
use crate::error::{ModelError, Result};
use crate::load::{self, AttentionParts, BlockParts, FeedForwardParts, GdnParts, MixerParts, MlpParts, MoeParts};
use crate::model::next_id;

pub(super) fn model<G: Gpu>(
    dir: &Path,
    device: &Device,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<GpuModel<G>> {
    let Some(gpu) = G::of(device) else {
        return Err(ModelError::OtherDevice { found: device.name(), expected: G::EXPECTED });
    };
    let id = next_id();
    let (config, parts) = load::folder(dir, progress, |loader| {
        let config = loader.config;
        let upload = Upload { gpu: &gpu, config };
        let embed = Arc::new(Matrix::upload(&gpu, &loader.embedding()?)?);
        let blocks = (0..config.num_layers)
            .map(|layer| upload.block(loader.block(layer)?, |parts| upload.mixer(parts)))
            .collect::<Result<Vec<_>>>()?;
        let norm = upload.norm(&loader.norm()?)?;
        let head = match loader.head()? {
            Some(head) => Arc::new(Matrix::upload(&gpu, &head)?),
            None => embed.clone(),
        };
        let mtp = match loader.mtp()? {
            Some(parts) => Some(GpuMtpHead {
                gpu: gpu.clone(),
                config: config.clone(),
                norm_embedding: upload.norm(&parts.norm_embedding)?,
                norm_hidden: upload.norm(&parts.norm_hidden)?,
                fc: Matrix::upload(&gpu, &parts.fc)?,
                block: upload.block(parts.block, |parts| upload.attention(&parts))?,
                norm: upload.norm(&parts.norm)?,
                embed: embed.clone(),
                head: head.clone(),
            }),
            None => None,
        };
        Ok((embed, blocks, norm, head, mtp))
    })?;
    // Host memory has been read by now; this waits for what the device was to do with it.
    gpu.synchronize()?;
    let (embed, blocks, norm, head, mtp) = parts;
    Ok(GpuModel { id, config, device: device.clone(), gpu, embed, blocks, norm, head, mtp })
}

/// Puts parts of a model on the device.
struct Upload<'a, G> {
    gpu: &'a G,
    config: &'a ModelConfig,
}

impl<G: Gpu> Upload<'_, G> {
    fn norm(&self, weight: &[f32]) -> Result<Norm<G>> {
        Norm::upload(self.gpu, weight, self.config.rms_norm_eps)
    }

    fn block<P, M>(&self, parts: BlockParts<P>, mixer: impl FnOnce(P) -> Result<M>) -> Result<Block<G, M>> {
        Ok(Block {
            input_norm: self.norm(&parts.input_norm)?,
            mixer: mixer(parts.mixer)?,
            post_norm: self.norm(&parts.post_norm)?,
            mlp: match parts.mlp {
                FeedForwardParts::Dense(parts) => FeedForward::Dense(self.mlps(&[parts])?),
                FeedForwardParts::Experts(parts) => FeedForward::Experts(Box::new(self.moe(&parts)?)),
            },
        })
    }

    fn mixer(&self, parts: MixerParts) -> Result<Mixer<G>> {
        Ok(match parts {
            MixerParts::Gdn(parts) => Mixer::Gdn(Box::new(self.gdn(&parts)?)),
            MixerParts::Attention(parts) => Mixer::Attention(Box::new(self.attention(&parts)?)),
        })
    }

    fn gdn(&self, parts: &GdnParts) -> Result<Gdn<G>> {
        let width = self.config.linear_conv_kernel_dim;
        let conv = ConvDims::new(parts.dims.conv_dim(), width).map_err(undraft::Error::from)?;
        let mut conv_weight = vec![0.0; parts.conv_weight.len()];
        conv_weight_to_tap_major(&conv, &parts.conv_weight, &mut conv_weight).map_err(undraft::Error::from)?;
        let in_proj = [&parts.in_proj_qkv, &parts.in_proj_z, &parts.in_proj_b, &parts.in_proj_a];
        Ok(Gdn {
            dims: parts.dims,
            conv_width: width,
            in_proj: Matrix::joined(self.gpu, &in_proj)?,
            out_proj: Matrix::upload(self.gpu, &parts.out_proj)?,
            conv_weight: self.gpu.copy_of(&conv_weight)?,
            gates: self.gpu.copy_of(&[&parts.a_log[..], &parts.dt_bias].concat())?,
            norm_weight: self.gpu.copy_of(&parts.norm_weight)?,
            norm_eps: self.config.rms_norm_eps as f32,
        })
    }

    fn attention(&self, parts: &AttentionParts) -> Result<Attention<G>> {
        Ok(Attention {
            sizes: AttentionSizes {
                num_heads: self.config.num_attention_heads,
                num_kv_heads: self.config.num_key_value_heads,
                head_dim: self.config.head_dim,
                rotary_dim: self.config.rotary_dim,
            },
            qkv_proj: Matrix::joined(self.gpu, &[&parts.q_proj, &parts.k_proj, &parts.v_proj])?,
            o_proj: Matrix::upload(self.gpu, &parts.o_proj)?,
            q_norm: self.norm(&parts.q_norm)?,
            k_norm: self.norm(&parts.k_norm)?,
        })
    }

    /// One MLP, or those of experts of the same sizes.
    fn mlps(&self, parts: &[MlpParts]) -> Result<Mlp<G>> {
        let gate_up: Vec<&load::Matrix> = parts.iter().flat_map(|part| [&part.gate, &part.up]).collect();
        let down: Vec<&load::Matrix> = parts.iter().map(|part| &part.down).collect();
        Ok(Mlp {
            gate_up: Matrix::stacked(self.gpu, &gate_up, parts.len())?,
            down: Matrix::stacked(self.gpu, &down, parts.len())?,
        })
    }

    fn moe(&self, parts: &MoeParts) -> Result<Moe<G>> {
        let (top_k, norm_topk_prob) =
            self.config.moe.as_ref().map_or((0, false), |moe| (moe.num_experts_per_tok, moe.norm_topk_prob));
        if top_k > G::MAX_TOP_K {
            return Err(ModelError::NotOnDevice {
                device: G::NAME,
                what: format!("a model with `num_experts_per_tok` = {top_k}, above {},", G::MAX_TOP_K),
                hint: "run the model on the CPU",
            });
        }
        Ok(Moe {
            router: Matrix::joined(self.gpu, &[&parts.router, &parts.shared_expert_gate])?,
            experts: self.mlps(&parts.experts)?,
            shared: self.mlps(std::slice::from_ref(&parts.shared_expert))?,
            top_k,
            norm_topk_prob,
        })
    }
}
