//! Causal depthwise convolution over the tokens of a window, with the state before it kept.

use super::Checked;
use super::causal_conv1d_fn::Shapes;
use super::fused_recurrent_gated_delta_rule::check_tree;
use crate::capture::{Capture, check_path};
use crate::conventions::Activation;
use crate::dims::ConvDims;
use crate::error::{Error, Result, check_len};
use crate::rows::{Rows, RowsMut};
use crate::seqlens::{CuSeqlens, check_parents};

/// The raw inputs of a window, so that the convolution's state can be taken back.
#[derive(Debug)]
pub struct ConvLogMut<'a> {
    /// `[num_slots, max_tokens, C]` f32, inputs before the convolution.
    pub x: &'a mut [f32],
    /// Tokens a slot may hold.
    pub max_tokens: usize,
}

/// Arguments of `causal_conv1d_update`.
///
/// | name | shape | dtype | direction |
/// | --- | --- | --- | --- |
/// | `x` | `[num_tokens, C]` | f32, bf16, f16 | in |
/// | `weight` | `[W, C]`, last tap = the present token | f32 | in |
/// | `bias` | `[C]` or none | f32 | in |
/// | `state` | `[num_slots, W - 1, C]`, oldest first, before the activation and the convolution | f32 | in, out |
/// | `out` | `[num_tokens, C]` | f32, bf16, f16 | out |
///
/// `y[t, c] = act(bias[c] + sum_j weight[j, c] * x[t - W + 1 + j, c])`, taps in rising order, one FMA each, the same
/// for every position of a window; in a draft tree the inputs before a token are those of its ancestors. The first
/// `num_pending[s]` entries of the slot's log, or those that `pending_path` lists, are first moved into `state` (they are
/// kept tokens of the window before). Then, with [`Capture::Final`], the window moves `state` on; with
/// [`Capture::DeltaLog`] its inputs go into the log and `state` stays.
#[derive(Debug)]
pub struct CausalConv1dUpdateArgs<'a> {
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
    /// Log; needed with [`Capture::DeltaLog`] and where `num_pending` is not zero.
    pub log: Option<ConvLogMut<'a>>,
    /// `[num_seqs]`, or empty for none.
    pub num_pending: &'a [u32],
    /// Which log entries are moved, `[num_seqs, log.max_tokens]`, rising; empty: the first ones.
    pub pending_path: &'a [u32],
    /// Draft trees, `[num_tokens]`; see [`super::DeltaRuleInputs::parents`]. Empty: every window is a chain.
    pub parents: &'a [i32],
    /// `DeltaLog` (take-back) or `Final`.
    pub capture: Capture,
    /// Outputs.
    pub out: RowsMut<'a>,
}

impl<'a> CausalConv1dUpdateArgs<'a> {
    /// Checks shapes, sequences, slots and capacities.
    ///
    /// Facts for kernels: every sequence's tokens lie in `x` and `out`; every slot lies in `state` and `log` and stands
    /// once; windows, `num_pending` and `pending_path` fit `log.max_tokens` where they use it; parents lie before their
    /// children, and trees have capture `DeltaLog`.
    ///
    /// # Errors
    /// [`Error`] naming the argument.
    pub fn check(self) -> Result<Checked<Self>> {
        let Self { dims, x, weight, bias, cu_seqlens, state_indices, num_slots, state, out, .. } = &self;
        let shapes = Shapes { x, weight, bias: *bias, cu_seqlens, state_indices, num_slots: *num_slots, state, out };
        let seqs = shapes.check(dims)?;
        let (slots, c) = (("num_slots", self.num_slots), ("channels", self.dims.channels()));
        if let Some(log) = &self.log {
            check_len("log.x", log.x.len(), &[slots, ("max_tokens", log.max_tokens), c])?;
        }
        let capacity = self.log.as_ref().map(|l| l.max_tokens);
        check_window(&seqs, self.state_indices, self.num_pending, self.capture, capacity)?;
        let max_tokens = capacity.unwrap_or(0);
        check_path("pending_path", self.pending_path, self.state_indices, self.num_pending, max_tokens)?;
        check_parents(self.parents, &seqs)?;
        check_tree(&seqs, self.parents, self.capture)?;
        if self.capture == Capture::PerToken {
            return Err(Error::Unsupported {
                backend: "any",
                what: "capture `PerToken` of a convolution".into(),
                hint: "use `DeltaLog`, the window's inputs are all that is needed",
            });
        }
        Ok(Checked::new(self))
    }
}

/// `num_pending` and the windows against the log's capacity.
pub(super) fn check_window(
    seqs: &CuSeqlens<'_>,
    state_indices: &[i32],
    num_pending: &[u32],
    capture: Capture,
    log_capacity: Option<usize>,
) -> Result<()> {
    if !num_pending.is_empty() {
        check_len("num_pending", num_pending.len(), &[("num_seqs", seqs.num_seqs())])?;
    }
    if capture == Capture::DeltaLog && log_capacity.is_none() {
        return Err(Error::Missing { arg: "log", because: "the capture is `DeltaLog`" });
    }
    for seq in 0..seqs.num_seqs() {
        if state_indices[seq] == crate::PAD_SLOT {
            continue;
        }
        let pending = num_pending.get(seq).map_or(0, |&n| n as usize);
        match log_capacity {
            None if pending > 0 => {
                return Err(Error::Missing { arg: "log", because: "`num_pending` is not zero" });
            }
            Some(capacity) if pending > capacity => {
                return Err(Error::OverCapacity { arg: "num_pending", seq, got: pending, capacity });
            }
            Some(capacity) if capture == Capture::DeltaLog && seqs.range(seq).len() > capacity => {
                return Err(Error::OverCapacity { arg: "windows", seq, got: seqs.range(seq).len(), capacity });
            }
            _ => {}
        }
    }
    Ok(())
}
