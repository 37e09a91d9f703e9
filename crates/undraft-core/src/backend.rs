//! What a back end can do, and the operations over host memory.

use crate::capture::Capture;
use crate::conventions::DecayShape;
use crate::error::{Error, Result};
use crate::ops::{
    CausalConv1dFnArgs, CausalConv1dUpdateArgs, Checked, ChunkGatedDeltaRuleArgs, CommitStatesArgs, FusedGdnGatingArgs,
    FusedRecurrentArgs, RmsNormGatedArgs,
};
use crate::rows::DType;

/// An operation, by the field's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// `fused_gdn_gating`
    FusedGdnGating,
    /// `causal_conv1d_update`
    CausalConv1dUpdate,
    /// `causal_conv1d_fn`
    CausalConv1dFn,
    /// `fused_recurrent_gated_delta_rule`
    FusedRecurrentGatedDeltaRule,
    /// `chunk_gated_delta_rule`
    ChunkGatedDeltaRule,
    /// `commit_states`
    CommitStates,
    /// `rms_norm_gated`
    RmsNormGated,
}

impl Op {
    /// Every operation.
    pub const ALL: [Op; 7] = [
        Op::FusedGdnGating,
        Op::CausalConv1dUpdate,
        Op::CausalConv1dFn,
        Op::FusedRecurrentGatedDeltaRule,
        Op::ChunkGatedDeltaRule,
        Op::CommitStates,
        Op::RmsNormGated,
    ];
    /// The field's name.
    pub fn name(self) -> &'static str {
        match self {
            Op::FusedGdnGating => "fused_gdn_gating",
            Op::CausalConv1dUpdate => "causal_conv1d_update",
            Op::CausalConv1dFn => "causal_conv1d_fn",
            Op::FusedRecurrentGatedDeltaRule => "fused_recurrent_gated_delta_rule",
            Op::ChunkGatedDeltaRule => "chunk_gated_delta_rule",
            Op::CommitStates => "commit_states",
            Op::RmsNormGated => "rms_norm_gated",
        }
    }
}

/// One question to [`Caps::supports`].
#[derive(Clone, Copy, Debug)]
pub struct Support {
    /// Operation.
    pub op: Op,
    /// Dtype of q, k, v, o or x.
    pub io: DType,
    /// `head_k_dim`; not looked at for operations without key heads.
    pub head_k_dim: usize,
    /// `head_v_dim`; not looked at for operations without value heads.
    pub head_v_dim: usize,
    /// Capture.
    pub capture: Capture,
    /// Dtype of the states; not looked at for operations without recurrent states.
    pub state: DType,
    /// Shape of the decay; not looked at for operations without recurrent states.
    pub decay_shape: DecayShape,
    /// Whether windows are draft trees; looked at for the recurrence and the convolution's update.
    pub tree: bool,
}

impl Support {
    /// f32, one decay factor a head, no trees; change the fields that differ.
    pub fn new(op: Op, head_k_dim: usize, head_v_dim: usize) -> Self {
        Self {
            op,
            io: DType::F32,
            head_k_dim,
            head_v_dim,
            capture: Capture::DeltaLog,
            state: DType::F32,
            decay_shape: DecayShape::PerHead,
            tree: false,
        }
    }
}

/// What a back end can do, as data.
#[derive(Clone, Debug)]
pub struct Caps {
    /// Name of the back end, such as `cpu-avx2`.
    pub backend: &'static str,
    /// Operations.
    pub ops: &'static [Op],
    /// I/O dtypes.
    pub io: &'static [DType],
    /// Captures of the recurrence.
    pub captures: &'static [Capture],
    /// Largest head size; every size from 1 is meant.
    pub max_head_dim: usize,
    /// Dtypes of the recurrent states.
    pub states: &'static [DType],
    /// Shapes of the decay.
    pub decay_shapes: &'static [DecayShape],
    /// Whether draft trees are verified.
    pub trees: bool,
    /// Whether numbers below f32's smallest normal one are kept; a device may take them for 0, at any step of an operation.
    pub keeps_subnormals: bool,
}

impl Caps {
    /// Whether the back end does this; the error says what it does not and what to do instead.
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub fn supports(&self, what: &Support) -> Result<()> {
        let no = |what: String, hint| Err(Error::Unsupported { backend: self.backend, what, hint });
        if !self.ops.contains(&what.op) {
            return no(format!("`{}`", what.op.name()), "run this operation on the cpu back end");
        }
        if !self.io.contains(&what.io) {
            return no(format!("`{}` with {} tensors", what.op.name(), what.io.name()), "convert them to f32");
        }
        if !self.captures.contains(&what.capture) {
            return no(format!("capture `{:?}`", what.capture), "use capture `DeltaLog`");
        }
        let has_heads =
            matches!(what.op, Op::FusedRecurrentGatedDeltaRule | Op::ChunkGatedDeltaRule | Op::CommitStates);
        if has_heads && !self.states.contains(&what.state) {
            return no(format!("{} states", what.state.name()), "use f32 states");
        }
        if has_heads && !self.decay_shapes.contains(&what.decay_shape) {
            return no(format!("decay shape `{:?}`", what.decay_shape), "use one decay factor a head");
        }
        let windows = matches!(what.op, Op::FusedRecurrentGatedDeltaRule | Op::CausalConv1dUpdate);
        if windows && what.tree && !self.trees {
            return no("draft trees".into(), "verify each path as a chain");
        }
        for (name, dim) in [("head_k_dim", what.head_k_dim), ("head_v_dim", what.head_v_dim)] {
            if has_heads && (dim == 0 || dim > self.max_head_dim) {
                return no(format!("{name} {dim}"), "head sizes reach from 1 to the back end's largest");
            }
        }
        Ok(())
    }
}

/// The operations over host memory; a device back end moves the data for them. What tests and small users call.
pub trait Backend: Send + Sync {
    /// What the back end can do.
    fn caps(&self) -> &Caps;
    /// Log decay and beta.
    ///
    /// # Errors
    /// [`Error::Unsupported`], or the device's error.
    fn fused_gdn_gating(&self, args: Checked<FusedGdnGatingArgs<'_>>) -> Result<()>;
    /// Causal depthwise convolution of a window.
    ///
    /// # Errors
    /// [`Error::Unsupported`], or the device's error.
    fn causal_conv1d_update(&self, args: Checked<CausalConv1dUpdateArgs<'_>>) -> Result<()>;
    /// Causal depthwise convolution of whole prompts.
    ///
    /// # Errors
    /// [`Error::Unsupported`], or the device's error.
    fn causal_conv1d_fn(&self, args: Checked<CausalConv1dFnArgs<'_>>) -> Result<()>;
    /// The recurrence over a window.
    ///
    /// # Errors
    /// [`Error::Unsupported`], or the device's error.
    fn fused_recurrent_gated_delta_rule(&self, args: Checked<FusedRecurrentArgs<'_>>) -> Result<()>;
    /// The matrix form over a prompt.
    ///
    /// # Errors
    /// [`Error::Unsupported`], or the device's error.
    fn chunk_gated_delta_rule(&self, args: Checked<ChunkGatedDeltaRuleArgs<'_>>) -> Result<()>;
    /// Replay of a log.
    ///
    /// # Errors
    /// [`Error::Unsupported`], or the device's error.
    fn commit_states(&self, args: Checked<CommitStatesArgs<'_>>) -> Result<()>;
    /// Gated RMS norm.
    ///
    /// # Errors
    /// [`Error::Unsupported`], or the device's error.
    fn rms_norm_gated(&self, args: Checked<RmsNormGatedArgs<'_>>) -> Result<()>;
}
