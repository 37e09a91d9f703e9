//! The text of the kernels. Each library is one text, headers first, as it is given to the compiler.

/// A file of kernels with the headers that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Library {
    /// Stem of the file.
    pub name: &'static str,
    parts: &'static [&'static str],
}

const PRELUDE: &str = include_str!("../kernels/prelude.h");
const GATES: &str = include_str!("../kernels/gates.h");
const CONVOLUTION: &str = include_str!("../kernels/causal_conv1d.h");
const RECURRENT: &str = include_str!("../kernels/recurrent.h");
const DENSE: &str = include_str!("../kernels/dense.h");

/// `causal_conv1d_fn`.
pub const CAUSAL_CONV1D_FN: Library = Library {
    name: "causal_conv1d_fn",
    parts: &[PRELUDE, GATES, CONVOLUTION, include_str!("../kernels/causal_conv1d_fn.metal")],
};
/// `causal_conv1d_update`.
pub const CAUSAL_CONV1D_UPDATE: Library = Library {
    name: "causal_conv1d_update",
    parts: &[PRELUDE, GATES, CONVOLUTION, include_str!("../kernels/causal_conv1d_update.metal")],
};
/// `commit_states_{f32,bf16,f16}_{x1,x4}`.
pub const COMMIT_STATES: Library =
    Library { name: "commit_states", parts: &[PRELUDE, include_str!("../kernels/commit_states.metal")] };
/// `dense_argmax_parts` and `dense_argmax`.
pub const DENSE_ARGMAX: Library =
    Library { name: "dense_argmax", parts: &[PRELUDE, GATES, DENSE, include_str!("../kernels/dense_argmax.metal")] };
/// `dense_attention_parts` and `dense_attention`.
pub const DENSE_ATTENTION: Library = Library {
    name: "dense_attention",
    parts: &[PRELUDE, GATES, DENSE, include_str!("../kernels/dense_attention.metal")],
};
/// `dense_embed`.
pub const DENSE_EMBED: Library =
    Library { name: "dense_embed", parts: &[PRELUDE, include_str!("../kernels/dense_embed.metal")] };
/// `dense_linear_{f32,bf16,f16}_t{1,4,8}`.
pub const DENSE_LINEAR: Library =
    Library { name: "dense_linear", parts: &[PRELUDE, GATES, DENSE, include_str!("../kernels/dense_linear.metal")] };
/// `dense_moe_route` and `dense_moe_sum`.
pub const DENSE_MOE: Library =
    Library { name: "dense_moe", parts: &[PRELUDE, GATES, DENSE, include_str!("../kernels/dense_moe.metal")] };
/// `dense_rms_norm`.
pub const DENSE_RMS_NORM: Library = Library {
    name: "dense_rms_norm",
    parts: &[PRELUDE, GATES, DENSE, include_str!("../kernels/dense_rms_norm.metal")],
};
/// `dense_rotate`.
pub const DENSE_ROTATE: Library =
    Library { name: "dense_rotate", parts: &[PRELUDE, GATES, DENSE, include_str!("../kernels/dense_rotate.metal")] };
/// `dense_silu_mul`.
pub const DENSE_SILU_MUL: Library =
    Library { name: "dense_silu_mul", parts: &[PRELUDE, GATES, include_str!("../kernels/dense_silu_mul.metal")] };
/// `fused_gdn_gating`.
pub const FUSED_GDN_GATING: Library =
    Library { name: "fused_gdn_gating", parts: &[PRELUDE, GATES, include_str!("../kernels/fused_gdn_gating.metal")] };
/// `recurrent_{f32,bf16,f16}_k{32,64,128,256}`.
pub const FUSED_RECURRENT_GATED_DELTA_RULE: Library = Library {
    name: "fused_recurrent_gated_delta_rule",
    parts: &[PRELUDE, GATES, RECURRENT, include_str!("../kernels/fused_recurrent_gated_delta_rule.metal")],
};
/// `gated_delta_net_decode_f32_{1,2,4}` and `gated_delta_net_decode_capture_f32_{1,2,4}`.
pub const GATED_DELTA_NET_DECODE: Library = Library {
    name: "gated_delta_net_decode",
    parts: &[PRELUDE, GATES, include_str!("../kernels/gated_delta_net_decode.metal")],
};
/// `write_words` and `clear_words`.
pub const MEMORY: Library = Library { name: "memory", parts: &[PRELUDE, include_str!("../kernels/memory.metal")] };
/// `rms_norm_gated`.
pub const RMS_NORM_GATED: Library =
    Library { name: "rms_norm_gated", parts: &[PRELUDE, GATES, include_str!("../kernels/rms_norm_gated.metal")] };

/// All libraries.
pub const ALL: [Library; 16] = [
    CAUSAL_CONV1D_FN,
    CAUSAL_CONV1D_UPDATE,
    COMMIT_STATES,
    DENSE_ARGMAX,
    DENSE_ATTENTION,
    DENSE_EMBED,
    DENSE_LINEAR,
    DENSE_MOE,
    DENSE_RMS_NORM,
    DENSE_ROTATE,
    DENSE_SILU_MUL,
    FUSED_GDN_GATING,
    FUSED_RECURRENT_GATED_DELTA_RULE,
    GATED_DELTA_NET_DECODE,
    MEMORY,
    RMS_NORM_GATED,
];

impl Library {
    /// One text without includes of files; to be compiled with fast math off.
    pub fn source(&self) -> String {
        let lines = self.parts.iter().flat_map(|part| part.lines());
        let kept = lines.filter(|line| !line.starts_with("#include \"") && *line != "#pragma once");
        kept.flat_map(|line| [line, "\n"]).collect()
    }
}
