//! The conventions on which engines silently differ, as types.

use crate::dims::GdnDims;

/// Over what the state decays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DecayShape {
    /// One factor a token and value head, `[num_tokens, HV]`: Gated DeltaNet.
    #[default]
    PerHead,
    /// A factor for each key channel as well, `[num_tokens, HV, K]`: Kimi Delta Attention (KDA).
    PerChannel,
}

/// How the factor that the state decays by is given; f32, `[num_tokens, HV]` or, with [`DecayShape::PerChannel`],
/// `[num_tokens, HV, K]`, unless said otherwise.
///
/// ```
/// use undraft_core::{Decay, DecayShape, GdnDims};
/// let dims = GdnDims::new(1, 2, 64, 64)?;
/// let g = [-0.1f32, 0.0]; // one token, two heads
/// assert!((Decay::Log(&g).factor(&dims, 0, 0, 0) - (-0.1f32).exp()).abs() < 1e-7);
/// assert_eq!(Decay::Linear(&[0.5, 0.25]).factor(&dims, 0, 1, 0), 0.25);
/// # Ok::<(), undraft_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Decay<'a> {
    /// `g <= 0`; the factor is `exp(g)` (HF, FLA, vLLM, ggml).
    Log(&'a [f32]),
    /// The factor itself (FlashInfer, mlx-lm).
    Linear(&'a [f32]),
    /// `-g >= 0`; the factor is `exp(-x)` (the mlx-native Metal kernels).
    NegLog(&'a [f32]),
    /// Raw gate: `g = -exp(A_log) * softplus(a + dt_bias)`, the factor is `exp(g)`.
    Gate {
        /// `[num_tokens, HV]` or `[num_tokens, HV, K]`.
        a: &'a [f32],
        /// `[HV]`.
        a_log: &'a [f32],
        /// `[HV]` or `[HV, K]`.
        dt_bias: &'a [f32],
    },
}

impl Decay<'_> {
    /// The factor of a token, value head and key channel (0 with [`DecayShape::PerHead`]), rounded once from f64.
    ///
    /// # Panics
    /// If one of them lies outside the slices; checked arguments rule that out.
    pub fn factor(&self, dims: &GdnDims, token: usize, head: usize, channel: usize) -> f32 {
        let bias = head * dims.decay_dim() + channel;
        let index = token * dims.decay_len() + bias;
        match *self {
            Decay::Log(g) => f64::from(g[index]).exp() as f32,
            Decay::Linear(alpha) => alpha[index],
            Decay::NegLog(x) => (-f64::from(x[index])).exp() as f32,
            Decay::Gate { a, a_log, dt_bias } => gate_log_decay(a[index], a_log[head], dt_bias[bias]).exp() as f32,
        }
    }
}

/// `-exp(A_log) * softplus(a + dt_bias)` in f64.
pub(crate) fn gate_log_decay(a: f32, a_log: f32, dt_bias: f32) -> f64 {
    let x = f64::from(a) + f64::from(dt_bias);
    // softplus(x) = max(x, 0) + ln(1 + exp(-|x|)), which never overflows.
    let softplus = x.max(0.0) + (-x.abs()).exp().ln_1p();
    -f64::from(a_log).exp() * softplus
}

/// `1 / (1 + exp(-x))` in f64.
pub(crate) fn sigmoid(x: f32) -> f64 {
    1.0 / (1.0 + (-f64::from(x)).exp())
}

/// How beta is given, `[num_tokens, HV]` f32.
#[derive(Clone, Copy, Debug)]
pub enum Beta<'a> {
    /// The value itself.
    Value(&'a [f32]),
    /// A logit; the operation takes its sigmoid.
    Logit(&'a [f32]),
}

impl Beta<'_> {
    /// Beta at flat index `token * HV + head`, rounded once from f64.
    ///
    /// # Panics
    /// If the index lies outside the slice; checked arguments rule that out.
    pub fn value(&self, index: usize) -> f32 {
        match *self {
            Beta::Value(b) => b[index],
            Beta::Logit(b) => sigmoid(b[index]) as f32,
        }
    }
}

/// Which key head a value head reads.
///
/// ```
/// use undraft_core::{GdnDims, HeadMap};
/// let dims = GdnDims::new(2, 6, 64, 64)?;
/// assert_eq!((0..6).map(|hv| HeadMap::Grouped.k_head(&dims, hv)).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1]);
/// assert_eq!((0..6).map(|hv| HeadMap::Tiled.k_head(&dims, hv)).collect::<Vec<_>>(), [0, 1, 0, 1, 0, 1]);
/// # Ok::<(), undraft_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HeadMap {
    /// `hv / (HV / H)`: HF, FLA, vLLM, SGLang.
    #[default]
    Grouped,
    /// `hv % H`: ggml, mlx-native.
    Tiled,
}

impl HeadMap {
    /// Key head of value head `v_head`.
    pub fn k_head(self, dims: &GdnDims, v_head: usize) -> usize {
        match self {
            HeadMap::Grouped => v_head / (dims.num_v_heads() / dims.num_k_heads()),
            HeadMap::Tiled => v_head % dims.num_k_heads(),
        }
    }
}

/// Whether q and k come normalised.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum QkNorm {
    /// Used as they are.
    #[default]
    AsGiven,
    /// `x * rsqrt(sum(x^2) + eps)` in the operation; eps is on the sum, inside the root.
    L2Norm {
        /// Usually 1e-6.
        eps: f32,
    },
}

/// Whether beta and the normalised q and k are first rounded to the I/O dtype, as some references do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// Kept in f32.
    #[default]
    F32,
    /// Rounded to the dtype of q and k.
    Io,
}

/// What follows the convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    #[default]
    Silu,
    /// Nothing.
    None,
}
