//! The parameters of one Gated DeltaNet layer.

use undraft_core::ops::{GateActivation, RmsNormGatedArgs};
use undraft_core::{
    Activation, ConvDims, DecayShape, Error, GdnDims, HeadMap, NamedShape, QkNorm, Rounding, Rows, RowsMut,
    conv_weight_to_tap_major,
};

use crate::Device;
use crate::error::Result;

/// What a layer is made from; the fields after the constructor's have the defaults of Qwen3-Next.
#[derive(Clone, Debug)]
pub struct GdnLayerParams<'a> {
    /// Sizes.
    pub dims: GdnDims,
    /// Taps of the convolution, `W`.
    pub conv_width: usize,
    /// `[C, W]` (or `[C, 1, W]`), C = all q, all k, all v channels; the last tap is the present token.
    pub conv_weight: &'a [f32],
    /// `[C]`; default none.
    pub conv_bias: Option<&'a [f32]>,
    /// After the convolution; default SiLU.
    pub activation: Activation,
    /// `A_log`, `[HV]`.
    pub a_log: &'a [f32],
    /// `[HV]`, or `[HV, K]` with a decay per channel.
    pub dt_bias: &'a [f32],
    /// `[V]` of the gated norm, plain; default none, then [`GdnLayer::norm_gated`] uses 1.
    pub norm_weight: Option<&'a [f32]>,
    /// Default 1e-6.
    pub norm_eps: f32,
    /// Of the gated norm; default SiLU.
    pub gate_activation: GateActivation,
    /// Default grouped.
    pub head_map: HeadMap,
    /// Default L2 norm with eps 1e-6.
    pub qk_norm: QkNorm,
    /// Default kept in f32.
    pub rounding: Rounding,
    /// Default `K^-0.5`.
    pub scale: f32,
}

impl<'a> GdnLayerParams<'a> {
    /// Parameters without default; see the fields for shapes.
    pub fn new(dims: GdnDims, conv_width: usize, conv_weight: &'a [f32], a_log: &'a [f32], dt_bias: &'a [f32]) -> Self {
        Self {
            dims,
            conv_width,
            conv_weight,
            conv_bias: None,
            activation: Activation::Silu,
            a_log,
            dt_bias,
            norm_weight: None,
            norm_eps: 1e-6,
            gate_activation: GateActivation::Silu,
            head_map: HeadMap::Grouped,
            qk_norm: QkNorm::L2Norm { eps: 1e-6 },
            rounding: Rounding::F32,
            scale: undraft_core::ops::DeltaRuleInputs::default_scale(&dims),
        }
    }
}

/// A layer's parameters, checked and laid out for the kernels.
#[derive(Clone, Debug)]
pub struct GdnLayer {
    pub(crate) dims: GdnDims,
    pub(crate) conv: ConvDims,
    /// `[W, C]`.
    pub(crate) conv_weight: Vec<f32>,
    pub(crate) conv_bias: Option<Vec<f32>>,
    pub(crate) activation: Activation,
    pub(crate) a_log: Vec<f32>,
    pub(crate) dt_bias: Vec<f32>,
    norm_weight: Vec<f32>,
    norm_eps: f32,
    gate_activation: GateActivation,
    pub(crate) head_map: HeadMap,
    pub(crate) qk_norm: QkNorm,
    pub(crate) rounding: Rounding,
    pub(crate) scale: f32,
}

impl GdnLayer {
    /// Checks and lays out.
    ///
    /// # Errors
    /// [`crate::Error::Op`] naming the parameter with the wrong size.
    pub fn new(params: GdnLayerParams<'_>) -> Result<Self> {
        let dims = params.dims;
        let conv = ConvDims::new(dims.conv_dim(), params.conv_width)?;
        let mut conv_weight = vec![0.0; params.conv_weight.len()];
        conv_weight_to_tap_major(&conv, params.conv_weight, &mut conv_weight)?;
        let hv = ("num_v_heads", dims.num_v_heads());
        check_len("A_log", params.a_log.len(), hv)?;
        match dims.decay_shape() {
            DecayShape::PerHead => check_len("dt_bias", params.dt_bias.len(), hv)?,
            DecayShape::PerChannel => {
                let axis = ("num_v_heads * head_k_dim", dims.decay_len());
                check_len("dt_bias", params.dt_bias.len(), axis)?;
            }
        }
        if let Some(bias) = params.conv_bias {
            check_len("conv_bias", bias.len(), ("channels", conv.channels()))?;
        }
        let norm_weight = params.norm_weight.map_or_else(|| vec![1.0; dims.head_v_dim()], <[f32]>::to_vec);
        check_len("norm_weight", norm_weight.len(), ("head_v_dim", dims.head_v_dim()))?;
        for (arg, got) in [("scale", params.scale), ("norm_eps", params.norm_eps)] {
            if !got.is_finite() {
                return Err(Error::Number { arg, got, expected: "a finite number" }.into());
            }
        }
        Ok(Self {
            dims,
            conv,
            conv_weight,
            conv_bias: params.conv_bias.map(<[f32]>::to_vec),
            activation: params.activation,
            a_log: params.a_log.to_vec(),
            dt_bias: params.dt_bias.to_vec(),
            norm_weight,
            norm_eps: params.norm_eps,
            gate_activation: params.gate_activation,
            head_map: params.head_map,
            qk_norm: params.qk_norm,
            rounding: params.rounding,
            scale: params.scale,
        })
    }

    /// Sizes.
    pub fn dims(&self) -> &GdnDims {
        &self.dims
    }
    /// Sizes of the convolution.
    pub fn conv_dims(&self) -> &ConvDims {
        &self.conv
    }

    /// `rms_norm_gated` with the layer's weight: `out = norm(x) * weight * act(z)`, all `[num_rows, HV, V]`.
    ///
    /// # Errors
    /// [`crate::Error::Op`] naming the buffer with the wrong size.
    pub fn norm_gated(
        &self,
        device: &Device,
        num_rows: usize,
        x: Rows<'_>,
        z: Rows<'_>,
        out: RowsMut<'_>,
    ) -> Result<()> {
        let args = RmsNormGatedArgs {
            num_rows,
            num_heads: self.dims.num_v_heads(),
            head_dim: self.dims.head_v_dim(),
            x,
            z,
            weight: &self.norm_weight,
            eps: self.norm_eps,
            activation: self.gate_activation,
            out,
        };
        Ok(device.backend().rms_norm_gated(args.check()?)?)
    }
}

fn check_len(arg: &'static str, got: usize, axis: (&'static str, usize)) -> Result<()> {
    if got == axis.1 {
        return Ok(());
    }
    Err(Error::Length { arg, expected: NamedShape(vec![axis]), got }.into())
}
