//! Scratch memory of a thread.

use undraft_core::{DecayShape, GdnDims};

use super::super::matmul::Lanes;
use super::panel::PANEL;
use super::{CHUNK, PITCH};
use crate::simd::LANES;

/// Sizes that the steps share.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// K, padded to 16.
    pub(super) kp: usize,
    /// Panels of a value head.
    pub(super) panels_per_head: usize,
    /// Panels that one thread carries along at once.
    pub(super) panels_per_part: usize,
    /// Whether each channel has a decay of its own.
    pub(super) per_channel: bool,
}

impl Sizes {
    pub(super) fn new(dims: &GdnDims, panels_per_part: usize) -> Self {
        Self {
            kp: dims.head_k_dim().next_multiple_of(LANES),
            panels_per_head: panels_per_head(dims),
            panels_per_part,
            per_channel: dims.decay_shape() == DecayShape::PerChannel,
        }
    }
    /// f32 of a thread's scratch.
    pub(super) fn scratch_len(&self) -> usize {
        let keys = if self.per_channel { 8 } else { 5 } * self.keys_len();
        LANES * (keys + 4 * WEIGHTS + self.values_len() + DELTA + self.kp + self.states_len()) + self.kp
    }
    fn keys_len(&self) -> usize {
        self.kp / LANES * PITCH
    }
    fn values_len(&self) -> usize {
        CHUNK * PANEL * self.panels_per_head
    }
    fn states_len(&self) -> usize {
        self.panels_per_part * PANEL * self.kp
    }
}

/// Panels of a value head.
pub(super) fn panels_per_head(dims: &GdnDims) -> usize {
    dims.head_v_dim().div_ceil(PANEL * LANES)
}

/// Vectors of a matrix over pairs of tokens.
const WEIGHTS: usize = CHUNK / LANES * CHUNK;
/// Vectors of a panel's deltas.
const DELTA: usize = 2 * PANEL * PITCH;

/// The buffers; KP is K, padded to 16.
pub(super) struct Scratch<'a> {
    /// Queries and keys, `[CHUNK][KP / 16][16 channels]`.
    pub(super) q: &'a mut [Lanes],
    pub(super) k: &'a mut [Lanes],
    /// Keys, of the value head at hand where they differ, `[KP / 16][PITCH][16 channels]`.
    pub(super) k_blocks: &'a mut [Lanes],
    /// The same, `[CHUNK / 16][KP][16 tokens]`.
    pub(super) q_t: &'a mut [Lanes],
    pub(super) k_t: &'a mut [Lanes],
    /// `k_s . k_t` and `k_s . q_t`, `[CHUNK / 16][CHUNK s][16 t]`.
    pub(super) kk: &'a mut [Lanes],
    pub(super) qk: &'a mut [Lanes],
    /// Of the value head at hand, alike.
    pub(super) w_k: &'a mut [Lanes],
    pub(super) w_q: &'a mut [Lanes],
    /// v and outputs of the value head at hand, `[CHUNK][blocks][16]`.
    pub(super) values: &'a mut [Lanes],
    /// `[2][PANEL][PITCH][16]`.
    pub(super) delta: &'a mut [Lanes],
    /// 16 rows of a state, `[16][KP / 16][16]`.
    pub(super) rows: &'a mut [Lanes],
    /// `[panels][PANEL][KP][16]`, key-major.
    pub(super) states: &'a mut [Lanes],
    /// `[KP]`.
    pub(super) carry: &'a mut [f32],
    /// With a decay per channel, two of `[CHUNK][KP / 16][16 channels]` and `[CHUNK / 16][KP][16 tokens]`, else empty.
    pub(super) alpha: &'a mut [Lanes],
    pub(super) decayed: &'a mut [Lanes],
    pub(super) k_s: &'a mut [Lanes],
}

impl<'a> Scratch<'a> {
    /// Cuts up a buffer of `sizes.scratch_len()`.
    pub(super) fn new(sizes: &Sizes, buffer: &'a mut [f32]) -> Self {
        let (carry, rest) = buffer.split_at_mut(sizes.kp);
        let mut rest = rest.as_chunks_mut().0;
        let mut take = |len: usize| {
            let (part, left) = std::mem::take(&mut rest).split_at_mut(len);
            rest = left;
            part
        };
        let (keys, own_keys) = (sizes.keys_len(), if sizes.per_channel { sizes.keys_len() } else { 0 });
        Scratch {
            q: take(keys),
            k: take(keys),
            k_blocks: take(keys),
            q_t: take(keys),
            k_t: take(keys),
            kk: take(WEIGHTS),
            qk: take(WEIGHTS),
            w_k: take(WEIGHTS),
            w_q: take(WEIGHTS),
            values: take(sizes.values_len()),
            delta: take(DELTA),
            rows: take(sizes.kp),
            states: take(sizes.states_len()),
            alpha: take(own_keys),
            decayed: take(own_keys),
            k_s: take(own_keys),
            carry,
        }
    }
}
