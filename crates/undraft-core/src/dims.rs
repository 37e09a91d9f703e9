//! Sizes of a layer.

use crate::conventions::DecayShape;
use crate::error::{Error, Result, check_range};

/// Largest head size of any back end.
pub const MAX_HEAD_DIM: usize = 256;
/// Smallest width of the causal convolution.
pub const MIN_CONV_WIDTH: usize = 2;
/// Largest width of the causal convolution.
pub const MAX_CONV_WIDTH: usize = 8;
const MAX_HEADS: usize = 1 << 16;

/// Sizes of a Gated DeltaNet layer; in kernels and shapes `H`, `HV`, `K`, `V`.
///
/// ```
/// let dims = undraft_core::GdnDims::new(16, 48, 128, 128)?;
/// assert_eq!(dims.state_len(), 48 * 128 * 128);
/// // One token of the delta log: k [H, K], decay [HV], delta [HV, V], all f32.
/// assert_eq!(dims.log_len() * 4, 32_960);
/// # Ok::<(), undraft_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GdnDims {
    num_k_heads: usize,
    num_v_heads: usize,
    head_k_dim: usize,
    head_v_dim: usize,
    decay_shape: DecayShape,
}

impl GdnDims {
    /// Checks the sizes: heads in `1..=65536`, head sizes in `1..=256`, `num_v_heads` a multiple of `num_k_heads`.
    /// The decay is one factor a value head; see [`GdnDims::with_decay_shape`].
    ///
    /// # Errors
    /// [`Error::OutOfRange`] or [`Error::NotMultiple`] with the offending size.
    pub fn new(num_k_heads: usize, num_v_heads: usize, head_k_dim: usize, head_v_dim: usize) -> Result<Self> {
        check_range("num_k_heads", num_k_heads, 1, MAX_HEADS)?;
        check_range("num_v_heads", num_v_heads, 1, MAX_HEADS)?;
        check_range("head_k_dim", head_k_dim, 1, MAX_HEAD_DIM)?;
        check_range("head_v_dim", head_v_dim, 1, MAX_HEAD_DIM)?;
        if !num_v_heads.is_multiple_of(num_k_heads) {
            return Err(Error::NotMultiple {
                arg: "num_v_heads",
                got: num_v_heads,
                of_arg: "num_k_heads",
                of: num_k_heads,
            });
        }
        Ok(Self { num_k_heads, num_v_heads, head_k_dim, head_v_dim, decay_shape: DecayShape::PerHead })
    }

    /// The same sizes with another shape of the decay.
    ///
    /// ```
    /// use undraft_core::{DecayShape, GdnDims};
    /// let kda = GdnDims::new(32, 32, 128, 128)?.with_decay_shape(DecayShape::PerChannel);
    /// assert_eq!((kda.decay_dim(), kda.decay_len()), (128, 32 * 128));
    /// # Ok::<(), undraft_core::Error>(())
    /// ```
    pub fn with_decay_shape(self, decay_shape: DecayShape) -> Self {
        Self { decay_shape, ..self }
    }

    /// Over what the state decays.
    pub fn decay_shape(&self) -> DecayShape {
        self.decay_shape
    }
    /// Factors of a token and value head: 1, or `K` with [`DecayShape::PerChannel`].
    pub fn decay_dim(&self) -> usize {
        match self.decay_shape {
            DecayShape::PerHead => 1,
            DecayShape::PerChannel => self.head_k_dim,
        }
    }
    /// Factors of a token, `HV` or `HV * K`.
    pub fn decay_len(&self) -> usize {
        self.num_v_heads * self.decay_dim()
    }

    /// Key (and query) heads, `H`.
    pub fn num_k_heads(&self) -> usize {
        self.num_k_heads
    }
    /// Value heads, `HV`, a multiple of `H`.
    pub fn num_v_heads(&self) -> usize {
        self.num_v_heads
    }
    /// Size of a key head, `K`.
    pub fn head_k_dim(&self) -> usize {
        self.head_k_dim
    }
    /// Size of a value head, `V`.
    pub fn head_v_dim(&self) -> usize {
        self.head_v_dim
    }
    /// `H * K`, elements of k (or q) of one token.
    pub fn key_dim(&self) -> usize {
        self.num_k_heads * self.head_k_dim
    }
    /// `HV * V`, elements of v (or o) of one token.
    pub fn value_dim(&self) -> usize {
        self.num_v_heads * self.head_v_dim
    }
    /// `2 * H * K + HV * V`, channels of the convolution over the joined q, k, v.
    pub fn conv_dim(&self) -> usize {
        2 * self.key_dim() + self.value_dim()
    }
    /// `HV * V * K`, elements of one slot's recurrent state.
    pub fn state_len(&self) -> usize {
        self.value_dim() * self.head_k_dim
    }
    /// `H * K + HV + HV * V` (with [`DecayShape::PerChannel`] `HV * K` in the middle), elements of one token of the delta
    /// log.
    pub fn log_len(&self) -> usize {
        self.key_dim() + self.decay_len() + self.value_dim()
    }
}

/// Sizes of a causal depthwise convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvDims {
    channels: usize,
    width: usize,
}

impl ConvDims {
    /// Checks `channels >= 1` and `width` in `2..=8`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn new(channels: usize, width: usize) -> Result<Self> {
        check_range("channels", channels, 1, MAX_HEADS * MAX_HEAD_DIM * 3)?;
        check_range("conv_width", width, MIN_CONV_WIDTH, MAX_CONV_WIDTH)?;
        Ok(Self { channels, width })
    }
    /// Channels, `C`.
    pub fn channels(&self) -> usize {
        self.channels
    }
    /// Taps, `W`.
    pub fn width(&self) -> usize {
        self.width
    }
    /// `(W - 1) * C`, elements of one slot's convolution state.
    pub fn state_len(&self) -> usize {
        (self.width - 1) * self.channels
    }
}
