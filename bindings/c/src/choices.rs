//! Enumerations of the interface: numbers of a fixed width, checked where they come in.

use undraft::ops::GateActivation;
use undraft::{Activation, Capture, DType, DecayShape, HeadMap, Op, Rounding, StateLayout};

use crate::status::{Failure, Result};

/// Declares a choice: its type, constants, and what each stands for.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident, $read:ident -> $to:ty { $($constant:ident = $number:literal => $value:expr, $word:literal;)* }) => {
        $(#[$doc])*
        pub type $name = u32;
        $(
            #[doc = $word]
            pub const $constant: $name = $number;
        )*
        pub(crate) fn $read(arg: &'static str, got: $name) -> Result<$to> {
            match got {
                $($constant => Ok($value),)*
                _ => {
                    let expected = [$(concat!(stringify!($number), " (", $word, ")")),*].join(", ");
                    Err(Failure::invalid(format!("`{arg}` is {got}, expected one of {expected}")))
                }
            }
        }
    };
}

choice! {
    /// Dtype of the elements of q, k, v, outputs and states.
    undraft_dtype, float_dtype -> DType {
        UNDRAFT_F32 = 1 => DType::F32, "f32";
        UNDRAFT_BF16 = 2 => DType::Bf16, "bf16";
        UNDRAFT_F16 = 3 => DType::F16, "f16";
    }
}
/// i32, for indices alone.
pub const UNDRAFT_I32: undraft_dtype = 4;
/// u32, for counts alone.
pub const UNDRAFT_U32: undraft_dtype = 5;

choice! {
    /// Over what the state decays.
    undraft_decay_shape, decay_shape -> DecayShape {
        UNDRAFT_DECAY_PER_HEAD = 1 => DecayShape::PerHead, "per head";
        UNDRAFT_DECAY_PER_CHANNEL = 2 => DecayShape::PerChannel, "per channel";
    }
}

/// How the decay is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecayForm {
    /// `g <= 0`.
    Log,
    /// The factor.
    Linear,
    /// `-g`.
    NegLog,
    /// The raw gate.
    Gate,
}
choice! {
    /// How the decay is given.
    undraft_decay_form, decay_form -> DecayForm {
        UNDRAFT_DECAY_LOG = 1 => DecayForm::Log, "log";
        UNDRAFT_DECAY_LINEAR = 2 => DecayForm::Linear, "linear";
        UNDRAFT_DECAY_NEG_LOG = 3 => DecayForm::NegLog, "negative log";
        UNDRAFT_DECAY_GATE = 4 => DecayForm::Gate, "gate";
    }
}

/// How beta is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BetaForm {
    /// The value.
    Value,
    /// A logit.
    Logit,
}
choice! {
    /// How beta is given.
    undraft_beta_form, beta_form -> BetaForm {
        UNDRAFT_BETA_VALUE = 1 => BetaForm::Value, "value";
        UNDRAFT_BETA_LOGIT = 2 => BetaForm::Logit, "logit";
    }
}

choice! {
    /// Which key head a value head reads.
    undraft_head_map, head_map -> HeadMap {
        UNDRAFT_HEADS_GROUPED = 1 => HeadMap::Grouped, "grouped";
        UNDRAFT_HEADS_TILED = 2 => HeadMap::Tiled, "tiled";
    }
}
choice! {
    /// Whether q and k are normalised in the operation.
    undraft_qk_norm, has_qk_norm -> bool {
        UNDRAFT_QK_AS_GIVEN = 1 => false, "as given";
        UNDRAFT_QK_L2_NORM = 2 => true, "L2 norm";
    }
}
choice! {
    /// Rounding of beta and of the normalised q and k.
    undraft_rounding, rounding -> Rounding {
        UNDRAFT_ROUND_F32 = 1 => Rounding::F32, "f32";
        UNDRAFT_ROUND_IO = 2 => Rounding::Io, "dtype of q and k";
    }
}
choice! {
    /// What follows the convolution.
    undraft_activation, activation -> Activation {
        UNDRAFT_ACTIVATION_NONE = 1 => Activation::None, "none";
        UNDRAFT_ACTIVATION_SILU = 2 => Activation::Silu, "SiLU";
    }
}
choice! {
    /// What is done to the gate of the norm.
    undraft_gate_activation, gate_activation -> GateActivation {
        UNDRAFT_GATE_SILU = 1 => GateActivation::Silu, "SiLU";
        UNDRAFT_GATE_SIGMOID = 2 => GateActivation::Sigmoid, "sigmoid";
    }
}
choice! {
    /// What a window records.
    undraft_capture, capture -> Capture {
        UNDRAFT_CAPTURE_DELTA_LOG = 1 => Capture::DeltaLog, "delta log";
        UNDRAFT_CAPTURE_PER_TOKEN = 2 => Capture::PerToken, "per token";
        UNDRAFT_CAPTURE_FINAL = 3 => Capture::Final, "final";
    }
}
choice! {
    /// Inner axes of a recurrent state.
    undraft_state_layout, state_layout -> StateLayout {
        UNDRAFT_STATE_VALUE_MAJOR = 1 => StateLayout::ValueMajor, "value major";
        UNDRAFT_STATE_KEY_MAJOR = 2 => StateLayout::KeyMajor, "key major";
    }
}

/// Axes of a convolution state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvLayout {
    /// `[W - 1, C]`.
    TimeMajor,
    /// `[C, W - 1]`.
    ChannelMajor,
}
choice! {
    /// Axes of a convolution state.
    undraft_conv_layout, conv_layout -> ConvLayout {
        UNDRAFT_CONV_TIME_MAJOR = 1 => ConvLayout::TimeMajor, "time major";
        UNDRAFT_CONV_CHANNEL_MAJOR = 2 => ConvLayout::ChannelMajor, "channel major";
    }
}
choice! {
    /// The single operations.
    undraft_op, op -> Op {
        UNDRAFT_OP_FUSED_GDN_GATING = 1 => Op::FusedGdnGating, "fused_gdn_gating";
        UNDRAFT_OP_CAUSAL_CONV1D_UPDATE = 2 => Op::CausalConv1dUpdate, "causal_conv1d_update";
        UNDRAFT_OP_CAUSAL_CONV1D_FN = 3 => Op::CausalConv1dFn, "causal_conv1d_fn";
        UNDRAFT_OP_FUSED_RECURRENT_GATED_DELTA_RULE = 4 => Op::FusedRecurrentGatedDeltaRule, "fused_recurrent_gated_delta_rule";
        UNDRAFT_OP_CHUNK_GATED_DELTA_RULE = 5 => Op::ChunkGatedDeltaRule, "chunk_gated_delta_rule";
        UNDRAFT_OP_COMMIT_STATES = 6 => Op::CommitStates, "commit_states";
        UNDRAFT_OP_RMS_NORM_GATED = 7 => Op::RmsNormGated, "rms_norm_gated";
    }
}

/// How a round runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundMode {
    /// Can be taken back.
    Verify,
    /// Keeps all tokens, token by token.
    Final,
    /// Keeps all tokens, in the matrix form.
    Prefill,
}
choice! {
    /// How a round runs.
    undraft_round_mode, round_mode -> RoundMode {
        UNDRAFT_VERIFY = 1 => RoundMode::Verify, "verify";
        UNDRAFT_FINAL = 2 => RoundMode::Final, "final";
        UNDRAFT_PREFILL = 3 => RoundMode::Prefill, "prefill";
    }
}
