//! From a model folder to a model on the device.

use std::path::Path;
use std::sync::Arc;

use undraft::cuda::dense::MAX_TOP_K;
use undraft::cuda::driver::Stream;
use undraft::{ConvDims, Device, conv_weight_to_tap_major};

use super::DEVICE;
use super::block::{Attention, Block, FeedForward, Gdn, Mixer, Mlp, Moe};
use super::model::CudaModel;
use super::mtp::CudaMtpHead;
use super::ops::{AttentionSizes, Gpu};
use super::weights::{Matrix, Norm, vector};
use crate::config::ModelConfig;
use crate::error::{ModelError, Result};
use crate::load::{self, AttentionParts, BlockParts, FeedForwardParts, GdnParts, MixerParts, MlpParts, MoeParts};
use crate::model::next_id;

pub(super) fn model(dir: &Path, device: &Device, progress: &mut dyn FnMut(usize, usize)) -> Result<CudaModel> {
    let Some(backend) = device.cuda_backend() else {
        return Err(ModelError::OtherDevice { found: device.name(), expected: "a CUDA device" });
    };
    let (id, gpu) = (next_id(), Gpu::new(backend));
    let stream = gpu.stream();
    let (config, parts) = load::folder(dir, progress, |loader| {
        let config = loader.config;
        let upload = Upload { stream, config };
        let embed = Arc::new(Matrix::upload(stream, &loader.embedding()?)?);
        let blocks = (0..config.num_layers)
            .map(|layer| upload.block(loader.block(layer)?, |parts| upload.mixer(parts)))
            .collect::<Result<Vec<_>>>()?;
        let norm = upload.norm(&loader.norm()?)?;
        let head = match loader.head()? {
            Some(head) => Arc::new(Matrix::upload(stream, &head)?),
            None => embed.clone(),
        };
        let mtp = match loader.mtp()? {
            Some(parts) => Some(CudaMtpHead {
                gpu: gpu.clone(),
                config: config.clone(),
                norm_embedding: upload.norm(&parts.norm_embedding)?,
                norm_hidden: upload.norm(&parts.norm_hidden)?,
                fc: Matrix::upload(stream, &parts.fc)?,
                block: upload.block(parts.block, |parts| upload.attention(&parts))?,
                norm: upload.norm(&parts.norm)?,
                embed: embed.clone(),
                head: head.clone(),
            }),
            None => None,
        };
        Ok((embed, blocks, norm, head, mtp))
    })?;
    // Pageable memory has been read by now; this waits for what the device was to do with it.
    stream.synchronize()?;
    let (embed, blocks, norm, head, mtp) = parts;
    Ok(CudaModel { id, config, device: device.clone(), gpu: gpu.clone(), embed, blocks, norm, head, mtp })
}

/// Puts parts of a model on the device.
struct Upload<'a> {
    stream: &'a Stream,
    config: &'a ModelConfig,
}

impl Upload<'_> {
    fn norm(&self, weight: &[f32]) -> Result<Norm> {
        Norm::upload(self.stream, weight, self.config.rms_norm_eps)
    }

    fn block<P, M>(&self, parts: BlockParts<P>, mixer: impl FnOnce(P) -> Result<M>) -> Result<Block<M>> {
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

    fn mixer(&self, parts: MixerParts) -> Result<Mixer> {
        Ok(match parts {
            MixerParts::Gdn(parts) => Mixer::Gdn(Box::new(self.gdn(&parts)?)),
            MixerParts::Attention(parts) => Mixer::Attention(Box::new(self.attention(&parts)?)),
        })
    }

    fn gdn(&self, parts: &GdnParts) -> Result<Gdn> {
        let width = self.config.linear_conv_kernel_dim;
        let conv = ConvDims::new(parts.dims.conv_dim(), width).map_err(undraft::Error::from)?;
        let mut conv_weight = vec![0.0; parts.conv_weight.len()];
        conv_weight_to_tap_major(&conv, &parts.conv_weight, &mut conv_weight).map_err(undraft::Error::from)?;
        let in_proj = [&parts.in_proj_qkv, &parts.in_proj_z, &parts.in_proj_b, &parts.in_proj_a];
        Ok(Gdn {
            dims: parts.dims,
            conv_width: width,
            in_proj: Matrix::joined(self.stream, &in_proj)?,
            out_proj: Matrix::upload(self.stream, &parts.out_proj)?,
            conv_weight: vector(self.stream, &conv_weight)?,
            a_log: vector(self.stream, &parts.a_log)?,
            dt_bias: vector(self.stream, &parts.dt_bias)?,
            norm_weight: vector(self.stream, &parts.norm_weight)?,
            norm_eps: self.config.rms_norm_eps as f32,
        })
    }

    fn attention(&self, parts: &AttentionParts) -> Result<Attention> {
        Ok(Attention {
            sizes: AttentionSizes {
                num_heads: self.config.num_attention_heads,
                num_kv_heads: self.config.num_key_value_heads,
                head_dim: self.config.head_dim,
                rotary_dim: self.config.rotary_dim,
            },
            qkv_proj: Matrix::joined(self.stream, &[&parts.q_proj, &parts.k_proj, &parts.v_proj])?,
            o_proj: Matrix::upload(self.stream, &parts.o_proj)?,
            q_norm: self.norm(&parts.q_norm)?,
            k_norm: self.norm(&parts.k_norm)?,
        })
    }

    /// One MLP, or those of experts of the same sizes.
    fn mlps(&self, parts: &[MlpParts]) -> Result<Mlp> {
        let gate_up: Vec<&load::Matrix> = parts.iter().flat_map(|part| [&part.gate, &part.up]).collect();
        let down: Vec<&load::Matrix> = parts.iter().map(|part| &part.down).collect();
        Ok(Mlp {
            gate_up: Matrix::stacked(self.stream, &gate_up, parts.len())?,
            down: Matrix::stacked(self.stream, &down, parts.len())?,
        })
    }

    fn moe(&self, parts: &MoeParts) -> Result<Moe> {
        let (top_k, norm_topk_prob) =
            self.config.moe.as_ref().map_or((0, false), |moe| (moe.num_experts_per_tok, moe.norm_topk_prob));
        if top_k > MAX_TOP_K {
            return Err(ModelError::NotOnDevice {
                device: DEVICE,
                what: format!("a model with `num_experts_per_tok` = {top_k}, above {MAX_TOP_K},"),
                hint: "run the model on the CPU",
            });
        }
        Ok(Moe {
            router: Matrix::joined(self.stream, &[&parts.router, &parts.shared_expert_gate])?,
            experts: self.mlps(&parts.experts)?,
            shared: self.mlps(std::slice::from_ref(&parts.shared_expert))?,
            top_k,
            norm_topk_prob,
        })
    }
}
