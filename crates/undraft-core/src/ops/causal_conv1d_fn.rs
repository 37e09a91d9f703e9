//! Causal depthwise convolution over whole prompts.

use super::Checked;
use crate::conventions::Activation;
use crate::dims::ConvDims;
use crate::error::{Result, check_len};
use crate::rows::{Rows, RowsMut};
use crate::seqlens::{CuSeqlens, StateIndices};

/// Arguments of `causal_conv1d_fn`.
///
/// | name | shape | dtype | direction |
/// | --- | --- | --- | --- |
/// | `x` | `[num_tokens, C]` | f32, bf16, f16 | in |
/// | `weight` | `[W, C]`, last tap = the present token | f32 | in |
/// | `bias` | `[C]` or none | f32 | in |
/// | `state` | `[num_slots, W - 1, C]`, oldest first: the inputs before, then the last inputs | f32 | in, out |
/// | `out` | `[num_tokens, C]` | f32, bf16, f16 | out |
///
/// The same sums in the same order as [`super::CausalConv1dUpdateArgs`], hence the same bits as token-by-token updates, for
/// the outputs and for the state that is handed on. A new sequence starts from a state of zeros.
#[derive(Debug)]
pub struct CausalConv1dFnArgs<'a> {
    /// Sizes.
    pub dims: ConvDims,
    /// Inputs.
    pub x: Rows<'a>,
    /// Weight, tap-major; see [`crate::conv_weight_to_tap_major`].
    pub weight: &'a [f32],
    /// Bias.
    pub bias: Option<&'a [f32]>,
    /// What follows the sum.
    pub activation: Activation,
    /// `[num_seqs + 1]`.
    pub cu_seqlens: &'a [i32],
    /// `[num_seqs]`, -1 = padding.
    pub state_indices: &'a [i32],
    /// Number of slots in `state`.
    pub num_slots: usize,
    /// State.
    pub state: &'a mut [f32],
    /// Outputs.
    pub out: RowsMut<'a>,
}

impl<'a> CausalConv1dFnArgs<'a> {
    /// Checks shapes, sequences and slots.
    ///
    /// Facts for kernels: every sequence's tokens lie in `x` and `out`; every slot lies in `state` and stands once.
    ///
    /// # Errors
    /// [`crate::Error`] naming the argument; nothing was touched.
    pub fn check(self) -> Result<Checked<Self>> {
        let Self { dims, x, weight, bias, cu_seqlens, state_indices, num_slots, state, out, .. } = &self;
        let shapes = Shapes { x, weight, bias: *bias, cu_seqlens, state_indices, num_slots: *num_slots, state, out };
        shapes.check(dims)?;
        Ok(Checked::new(self))
    }
}

/// What both forms of the convolution hold to.
pub(super) struct Shapes<'s, 'a> {
    pub(super) x: &'s Rows<'a>,
    pub(super) weight: &'a [f32],
    pub(super) bias: Option<&'a [f32]>,
    pub(super) cu_seqlens: &'a [i32],
    pub(super) state_indices: &'a [i32],
    pub(super) num_slots: usize,
    pub(super) state: &'s [f32],
    pub(super) out: &'s RowsMut<'a>,
}

impl<'a> Shapes<'_, 'a> {
    /// Checks sequences, slots and the lengths of all buffers but the log; gives the sequences.
    pub(super) fn check(&self, dims: &ConvDims) -> Result<CuSeqlens<'a>> {
        let (c, w) = (("channels", dims.channels()), ("conv_width", dims.width()));
        let seqs = CuSeqlens::new(self.cu_seqlens)?;
        StateIndices::new(self.state_indices, seqs.num_seqs(), self.num_slots)?;
        self.x.check("x", seqs.num_tokens(), c.1)?;
        self.out.check("out", seqs.num_tokens(), c.1)?;
        check_len("weight", self.weight.len(), &[w, c])?;
        if let Some(bias) = self.bias {
            check_len("bias", bias.len(), &[c])?;
        }
        let slots = ("num_slots", self.num_slots);
        check_len("state", self.state.len(), &[slots, ("conv_width - 1", w.1 - 1), c])?;
        Ok(seqs)
    }
}
