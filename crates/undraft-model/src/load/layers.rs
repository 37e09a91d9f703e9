//! Mixers and MLPs.

use undraft::GdnDims;

use super::rows::{GroupedRows, take_rows};
use super::{AttentionParts, GdnParts, Loader, Matrix, MlpParts, MoeParts};
use crate::config::MoeConfig;
use crate::error::Result;
use crate::weights::WeightData;

impl Loader<'_> {
    pub(super) fn attention(&mut self, name: &str) -> Result<AttentionParts> {
        let config = self.config;
        let (hidden_size, head_dim) = (config.hidden_size, config.head_dim);
        let (num_heads, num_kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
        Ok(AttentionParts {
            q_proj: self.matrix(&format!("{name}q_proj.weight"), num_heads * 2 * head_dim, hidden_size)?,
            k_proj: self.matrix(&format!("{name}k_proj.weight"), num_kv_heads * head_dim, hidden_size)?,
            v_proj: self.matrix(&format!("{name}v_proj.weight"), num_kv_heads * head_dim, hidden_size)?,
            o_proj: self.matrix(&format!("{name}o_proj.weight"), hidden_size, num_heads * head_dim)?,
            q_norm: self.values(&format!("{name}q_norm.weight"), &[head_dim])?,
            k_norm: self.values(&format!("{name}k_norm.weight"), &[head_dim])?,
        })
    }

    pub(super) fn gdn(&mut self, name: &str) -> Result<GdnParts> {
        let config = self.config;
        let (hidden_size, width) = (config.hidden_size, config.linear_conv_kernel_dim);
        let dims = GdnDims::new(
            config.linear_num_key_heads,
            config.linear_num_value_heads,
            config.linear_key_head_dim,
            config.linear_value_head_dim,
        )
        .map_err(undraft::Error::from)?;
        let (heads, channels, values) = (dims.num_v_heads(), dims.conv_dim(), dims.value_dim());

        let conv_weight = self.values(&format!("{name}conv1d.weight"), &[channels, 1, width])?;
        let a_log = self.values(&format!("{name}A_log"), &[heads])?;
        let dt_bias = self.values(&format!("{name}dt_bias"), &[heads])?;
        let norm_weight = self.values(&format!("{name}norm.weight"), &[dims.head_v_dim()])?;

        let (qkvz, ba) = (format!("{name}in_proj_qkvz.weight"), format!("{name}in_proj_ba.weight"));
        let [in_proj_qkv, in_proj_z, in_proj_b, in_proj_a] = if self.weights.contains(&qkvz) {
            let rows = GroupedRows::new(&dims);
            let qkvz = self.storage(&qkvz, &[channels + values, hidden_size])?;
            let ba = self.storage(&ba, &[2 * heads, hidden_size])?;
            let part = |data: &WeightData, rows: Vec<usize>| matrix_of(data, hidden_size, &rows);
            [part(&qkvz, rows.qkv()), part(&qkvz, rows.z()), part(&ba, rows.b()), part(&ba, rows.a())]
        } else {
            [
                self.matrix(&format!("{name}in_proj_qkv.weight"), channels, hidden_size)?,
                self.matrix(&format!("{name}in_proj_z.weight"), values, hidden_size)?,
                self.matrix(&format!("{name}in_proj_b.weight"), heads, hidden_size)?,
                self.matrix(&format!("{name}in_proj_a.weight"), heads, hidden_size)?,
            ]
        };
        let out_proj = self.matrix(&format!("{name}out_proj.weight"), hidden_size, values)?;
        Ok(GdnParts {
            dims,
            conv_weight,
            a_log,
            dt_bias,
            norm_weight,
            in_proj_qkv,
            in_proj_z,
            in_proj_b,
            in_proj_a,
            out_proj,
        })
    }

    pub(super) fn mlp(&mut self, name: &str, inner: usize) -> Result<MlpParts> {
        let hidden_size = self.config.hidden_size;
        Ok(MlpParts {
            gate: self.matrix(&format!("{name}gate_proj.weight"), inner, hidden_size)?,
            up: self.matrix(&format!("{name}up_proj.weight"), inner, hidden_size)?,
            down: self.matrix(&format!("{name}down_proj.weight"), hidden_size, inner)?,
        })
    }

    pub(super) fn moe(&mut self, name: &str, moe: &MoeConfig) -> Result<MoeParts> {
        let hidden_size = self.config.hidden_size;
        let (num_experts, inner) = (moe.num_experts, moe.moe_intermediate_size);
        let router = self.matrix(&format!("{name}gate.weight"), num_experts, hidden_size)?;
        let experts = if self.weights.contains(&format!("{name}experts.gate_up_proj")) {
            self.stacked_experts(name, num_experts, inner)?
        } else {
            (0..num_experts).map(|e| self.mlp(&format!("{name}experts.{e}."), inner)).collect::<Result<_>>()?
        };
        Ok(MoeParts {
            router,
            experts,
            shared_expert: self.mlp(&format!("{name}shared_expert."), moe.shared_expert_intermediate_size)?,
            shared_expert_gate: self.matrix(&format!("{name}shared_expert_gate.weight"), 1, hidden_size)?,
        })
    }

    /// `gate_up_proj` `[E, 2 * inner, H]`, of each expert the gate's rows first, and `down_proj` `[E, H, inner]`.
    fn stacked_experts(&mut self, name: &str, num_experts: usize, inner: usize) -> Result<Vec<MlpParts>> {
        let hidden_size = self.config.hidden_size;
        let gate_up = self.storage(&format!("{name}experts.gate_up_proj"), &[num_experts, 2 * inner, hidden_size])?;
        let down = self.storage(&format!("{name}experts.down_proj"), &[num_experts, hidden_size, inner])?;
        let part = |data: &WeightData, start: usize, len: usize, in_features: usize| {
            matrix_of(data, in_features, &(start..start + len).collect::<Vec<_>>())
        };
        let expert = |e: usize| MlpParts {
            gate: part(&gate_up, e * 2 * inner, inner, hidden_size),
            up: part(&gate_up, (2 * e + 1) * inner, inner, hidden_size),
            down: part(&down, e * hidden_size, hidden_size, inner),
        };
        Ok((0..num_experts).map(expert).collect())
    }
}

/// Some rows of a stored matrix.
fn matrix_of(data: &WeightData, in_features: usize, rows: &[usize]) -> Matrix {
    Matrix { data: take_rows(data, in_features, rows), out_features: rows.len(), in_features }
}
