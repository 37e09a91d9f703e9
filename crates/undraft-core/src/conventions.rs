//! The conventions on which engines silently differ, as types.

/// How the factor that the state decays by is given; `[num_tokens, HV]` f32 unless said otherwise.
///
/// ```
/// use undraft_core::Decay;
/// let g = [-0.1f32, 0.0];
/// assert!((Decay::Log(&g).factor(0, 0) - (-0.1f32).exp()).abs() < 1e-7);
/// assert_eq!(Decay::Linear(&[0.5]).factor(0, 0), 0.5);
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
        /// `[num_tokens, HV]`.
        a: &'a [f32],
        /// `[HV]`.
        a_log: &'a [f32],
        /// `[HV]`.
        dt_bias: &'a [f32],
    },
}

impl Decay<'_> {
    /// The factor at flat index `index` = `token * HV + head`, rounded once from f64.
    ///
    /// # Panics
    /// If the index lies outside the slices; checked arguments rule that out.
    pub fn factor(&self, index: usize, head: usize) -> f32 {
        match *self {
            Decay::Log(g) => f64::from(g[index]).exp() as f32,
            Decay::Linear(alpha) => alpha[index],
            Decay::NegLog(x) => (-f64::from(x[index])).exp() as f32,
            Decay::Gate { a, a_log, dt_bias } => gate_log_decay(a[index], a_log[head], dt_bias[head]).exp() as f32,
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
    pub fn k_head(self, dims: &crate::GdnDims, v_head: usize) -> usize {
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
