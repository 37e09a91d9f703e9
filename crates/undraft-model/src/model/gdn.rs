//! The Gated DeltaNet mixer.

use undraft::{GdnLayer, LayerInputs, Round, Rows, RowsMut};

use super::block::Pass;
use crate::dense::matmul::forward_joint;
use crate::dense::{AlignedBuffer, Linear};
use crate::error::Result;

/// Projections around the recurrence, in the order of Qwen3.5: by kind, value heads in order.
#[derive(Debug)]
pub(super) struct Gdn {
    /// Place among the Gated DeltaNet layers of the model.
    pub(super) index: usize,
    pub(super) layer: GdnLayer,
    /// `[C, H]`: all q, all k, all v.
    pub(super) in_proj_qkv: Linear,
    /// `[HV * V, H]`.
    pub(super) in_proj_z: Linear,
    /// `[HV, H]`.
    pub(super) in_proj_b: Linear,
    /// `[HV, H]`.
    pub(super) in_proj_a: Linear,
    /// `[H, HV * V]`.
    pub(super) out_proj: Linear,
}

/// Scratch memory of [`Gdn::forward`].
#[derive(Debug, Default)]
pub(super) struct GdnScratch {
    qkv: AlignedBuffer,
    z: AlignedBuffer,
    b: AlignedBuffer,
    a: AlignedBuffer,
    o: AlignedBuffer,
    normed: AlignedBuffer,
}

impl Gdn {
    /// `x` and `out` are `[n, H]`; n tokens of `round`.
    pub(super) fn forward(
        &self,
        pass: &mut Pass<'_>,
        x: &[f32],
        round: &mut Round<'_>,
        scratch: &mut GdnScratch,
        out: &mut [f32],
    ) -> Result<()> {
        let n = round.num_tokens();
        let dims = self.layer.dims();
        let (channels, heads, values) = (dims.conv_dim(), dims.num_v_heads(), dims.value_dim());
        let (qkv, z) = (scratch.qkv.resized(n * channels), scratch.z.resized(n * values));
        let (b, a) = (scratch.b.resized(n * heads), scratch.a.resized(n * heads));
        let (o, normed) = (scratch.o.resized(n * values), scratch.normed.resized(n * values));

        let products =
            [(&self.in_proj_qkv, &mut *qkv), (&self.in_proj_z, z), (&self.in_proj_b, b), (&self.in_proj_a, a)];
        forward_joint(pass.compute, x, products);
        let inputs = LayerInputs { layer: &self.layer, mixed_qkv: Rows::new(&*qkv, channels), a, b };
        round.verify(self.index, inputs, RowsMut::new(&mut *o, values))?;
        let (x_rows, z_rows) = (Rows::new(&*o, values), Rows::new(&*z, values));
        self.layer.norm_gated(pass.device, n, x_rows, z_rows, RowsMut::new(&mut *normed, values))?;
        self.out_proj.forward(pass.compute, normed, out);

        for (name, value) in [
            ("input", x),
            ("in_proj_qkv", qkv),
            ("in_proj_z", z),
            ("in_proj_b", b),
            ("in_proj_a", a),
            ("o", o),
            ("normed", normed),
            ("output", out),
        ] {
            pass.record(name, value);
        }
        Ok(())
    }

    /// Bytes of the weights of linear layers.
    pub(super) fn memory(&self) -> usize {
        [&self.in_proj_qkv, &self.in_proj_z, &self.in_proj_b, &self.in_proj_a, &self.out_proj]
            .iter()
            .map(|linear| linear.memory())
            .sum()
    }
}
