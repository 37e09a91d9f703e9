/*
 * undraft: the single operations, on memory of the caller and without a pool.
 *
 * The rules are those of undraft.h. "in", "out" and "in, out" say how a tensor is used; the slots of a state or log
 * that no sequence of the call has are not touched. Every argument is checked before anything is written.
 */
#ifndef UNDRAFT_OPS_H
#define UNDRAFT_OPS_H

#include "undraft.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Log decay and beta from the raw gates: g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b). */
typedef struct undraft_fused_gdn_gating_args {
    size_t size;
    undraft_tensor a;       /* in, rows [N, HV]; [N, HV, K] with a decay per channel; f32, bf16, f16 */
    undraft_tensor b;       /* in, rows [N, HV]; f32, bf16, f16 */
    undraft_tensor a_log;   /* in, [HV] f32 */
    undraft_tensor dt_bias; /* in, [HV] or [HV, K] f32 */
    undraft_tensor g;       /* out, [N, HV] or [N, HV, K] f32 */
    undraft_tensor beta;    /* out, [N, HV] f32 */
} undraft_fused_gdn_gating_args;

static inline undraft_fused_gdn_gating_args undraft_fused_gdn_gating_args_init(void) {
    undraft_fused_gdn_gating_args args;
    memset(&args, 0, sizeof args);
    args.size = sizeof args;
    return args;
}

undraft_status undraft_fused_gdn_gating(const undraft_device *device, const undraft_fused_gdn_gating_args *args,
                                        char **message);

/*
 * Causal depthwise convolution of windows. First the log entries that are pending move into the state; then the
 * window runs, and its inputs go into the log (UNDRAFT_CAPTURE_DELTA_LOG, the state stays) or into the state
 * (UNDRAFT_CAPTURE_FINAL).
 */
typedef struct undraft_causal_conv1d_update_args {
    size_t size;
    undraft_activation activation;
    undraft_capture capture;
    undraft_tensor x;             /* in, rows [N, C]; f32, bf16, f16 */
    undraft_tensor weight;        /* in, [W, C] f32, the last tap is the present token; undraft_convert_conv_weight */
    undraft_tensor bias;          /* in, [C] f32, or absent */
    undraft_tensor cu_seqlens;    /* in, [num_seqs + 1] i32, from 0 to N */
    undraft_tensor state_indices; /* in, [num_seqs] i32, a slot or -1 for padding */
    undraft_tensor state;         /* in, out, [num_slots, W - 1, C] f32, oldest input first */
    undraft_tensor log_x;         /* in, out, [num_slots, max_tokens, C] f32, or absent */
    undraft_tensor num_pending;   /* in, [num_seqs] u32, or absent for none */
    undraft_tensor pending_path;  /* in, [num_seqs, max_tokens] u32: which entries, rising; absent: the first ones */
    undraft_tensor parents;       /* in, [N] i32: draft trees; absent: chains */
    undraft_tensor out;           /* out, rows [N, C]; f32, bf16, f16 */
} undraft_causal_conv1d_update_args;

/* SiLU, a delta log. */
static inline undraft_causal_conv1d_update_args undraft_causal_conv1d_update_args_init(void) {
    undraft_causal_conv1d_update_args args;
    memset(&args, 0, sizeof args);
    args.size = sizeof args;
    args.activation = UNDRAFT_ACTIVATION_SILU;
    args.capture = UNDRAFT_CAPTURE_DELTA_LOG;
    return args;
}

undraft_status undraft_causal_conv1d_update(const undraft_device *device, const undraft_causal_conv1d_update_args *args,
                                            char **message);

/* Causal depthwise convolution of whole prompts; the state moves on. Fields as above. */
typedef struct undraft_causal_conv1d_fn_args {
    size_t size;
    undraft_activation activation;
    uint32_t reserved;
    undraft_tensor x;
    undraft_tensor weight;
    undraft_tensor bias;
    undraft_tensor cu_seqlens;
    undraft_tensor state_indices;
    undraft_tensor state;
    undraft_tensor out;
} undraft_causal_conv1d_fn_args;

/* SiLU. */
static inline undraft_causal_conv1d_fn_args undraft_causal_conv1d_fn_args_init(void) {
    undraft_causal_conv1d_fn_args args;
    memset(&args, 0, sizeof args);
    args.size = sizeof args;
    args.activation = UNDRAFT_ACTIVATION_SILU;
    return args;
}

undraft_status undraft_causal_conv1d_fn(const undraft_device *device, const undraft_causal_conv1d_fn_args *args,
                                        char **message);

/* What the recurrence and the matrix form read. */
typedef struct undraft_delta_rule_inputs {
    undraft_gdn_dims dims; /* conv_width is not looked at */
    undraft_decay_form decay_form;
    undraft_beta_form beta_form;
    undraft_head_map head_map;
    undraft_qk_norm qk_norm;
    undraft_rounding rounding;
    float qk_eps;
    float scale; /* factor on the output; 0 is K^-0.5 */
    uint32_t reserved;
    undraft_tensor q;             /* rows [N, H, K]; f32, bf16, f16 */
    undraft_tensor k;             /* rows [N, H, K]; f32, bf16, f16 */
    undraft_tensor v;             /* rows [N, HV, V]; f32, bf16, f16 */
    undraft_tensor decay;         /* [N, HV] f32; [N, HV, K] with a decay per channel; a with UNDRAFT_DECAY_GATE */
    undraft_tensor a_log;         /* [HV] f32 with UNDRAFT_DECAY_GATE, else absent */
    undraft_tensor dt_bias;       /* [HV] or [HV, K] f32 with UNDRAFT_DECAY_GATE, else absent */
    undraft_tensor beta;          /* [N, HV] f32 */
    undraft_tensor cu_seqlens;    /* [num_seqs + 1] i32, from 0 to N */
    undraft_tensor state_indices; /* [num_seqs] i32, a slot or -1 for padding */
    undraft_tensor parents;       /* [N] i32: draft trees; absent: chains */
} undraft_delta_rule_inputs;

/* Grouped heads, L2 norm with eps 1e-6, f32. The forms of decay and beta are to be given. */
static inline undraft_delta_rule_inputs undraft_delta_rule_inputs_init(undraft_gdn_dims dims,
                                                                       undraft_decay_form decay_form,
                                                                       undraft_beta_form beta_form) {
    undraft_delta_rule_inputs inputs;
    memset(&inputs, 0, sizeof inputs);
    inputs.dims = dims;
    inputs.decay_form = decay_form;
    inputs.beta_form = beta_form;
    inputs.head_map = UNDRAFT_HEADS_GROUPED;
    inputs.qk_norm = UNDRAFT_QK_L2_NORM;
    inputs.rounding = UNDRAFT_ROUND_F32;
    inputs.qk_eps = 1e-6f;
    return inputs;
}

/* k as used, the decay factor and delta of each token; all three are given, or all absent. f32. */
typedef struct undraft_delta_log {
    undraft_tensor k;     /* [num_slots, max_tokens, H, K] */
    undraft_tensor decay; /* [num_slots, max_tokens, HV]; [num_slots, max_tokens, HV, K] with a decay per channel */
    undraft_tensor delta; /* [num_slots, max_tokens, HV, V] */
} undraft_delta_log;

/*
 * The recurrence, token by token. First the log entries that are pending are replayed into the state; then the window
 * runs, and leaves entries in the log, states in capture_states, or (UNDRAFT_CAPTURE_FINAL) the state after its last
 * token.
 */
typedef struct undraft_fused_recurrent_args {
    size_t size;
    undraft_delta_rule_inputs inputs;
    undraft_capture capture;
    uint32_t reserved;
    undraft_tensor state;          /* in, out, [num_slots, HV, V, K]; f32, bf16, f16 */
    undraft_delta_log log;         /* in, out; needed with a delta log and where tokens are pending */
    undraft_tensor num_pending;    /* in, [num_seqs] u32, or absent for none */
    undraft_tensor pending_path;   /* in, [num_seqs, max_tokens] u32: which entries, rising; absent: the first ones */
    /* out, [num_seqs, max_tokens, HV, V, K] with UNDRAFT_CAPTURE_PER_TOKEN, else absent */
    undraft_tensor capture_states;
    undraft_tensor out;            /* out, rows [N, HV, V]; f32, bf16, f16 */
} undraft_fused_recurrent_args;

/* A delta log. */
static inline undraft_fused_recurrent_args undraft_fused_recurrent_args_init(undraft_delta_rule_inputs inputs) {
    undraft_fused_recurrent_args args;
    memset(&args, 0, sizeof args);
    args.size = sizeof args;
    args.inputs = inputs;
    args.capture = UNDRAFT_CAPTURE_DELTA_LOG;
    return args;
}

undraft_status undraft_fused_recurrent_gated_delta_rule(const undraft_device *device,
                                                        const undraft_fused_recurrent_args *args, char **message);

/* The matrix form, for prompts: close to the recurrence and not bit-equal to it. */
typedef struct undraft_chunk_args {
    size_t size;
    undraft_delta_rule_inputs inputs;
    undraft_tensor state; /* in, out, [num_slots, HV, V, K]; f32, bf16, f16 */
    /*
     * out, [num_checkpoints, HV, V, K] in the dtype of the states, or absent: a sequence of n tokens has n /
     * checkpoint_every (rounded down), its states after checkpoint_every, 2 checkpoint_every, .. tokens.
     */
    undraft_tensor checkpoints;
    size_t checkpoint_every;
    undraft_tensor out; /* out, rows [N, HV, V]; f32, bf16, f16 */
} undraft_chunk_args;

static inline undraft_chunk_args undraft_chunk_args_init(undraft_delta_rule_inputs inputs) {
    undraft_chunk_args args;
    memset(&args, 0, sizeof args);
    args.size = sizeof args;
    args.inputs = inputs;
    return args;
}

undraft_status undraft_chunk_gated_delta_rule(const undraft_device *device, const undraft_chunk_args *args,
                                              char **message);

/* Replay of a log: bit for bit what decoding those tokens one by one would have left. */
typedef struct undraft_commit_states_args {
    size_t size;
    undraft_gdn_dims dims; /* conv_width is not looked at */
    undraft_head_map head_map; /* as in the call that wrote the log */
    uint32_t reserved;
    undraft_tensor state;         /* in, out, [num_slots, HV, V, K]; f32, bf16, f16 */
    undraft_delta_log log;        /* in */
    undraft_tensor state_indices; /* in, [num_seqs] i32, a slot or -1 for padding */
    undraft_tensor num_kept;      /* in, [num_seqs] u32, 0 to max_tokens */
    undraft_tensor path;          /* in, [num_seqs, max_tokens] u32: which entries, rising; absent: the first ones */
} undraft_commit_states_args;

/* Grouped heads. */
static inline undraft_commit_states_args undraft_commit_states_args_init(undraft_gdn_dims dims) {
    undraft_commit_states_args args;
    memset(&args, 0, sizeof args);
    args.size = sizeof args;
    args.dims = dims;
    args.head_map = UNDRAFT_HEADS_GROUPED;
    return args;
}

undraft_status undraft_commit_states(const undraft_device *device, const undraft_commit_states_args *args,
                                     char **message);

/* out = x / sqrt(mean(x^2) + eps) * weight * act(z), per head of D elements. */
typedef struct undraft_rms_norm_gated_args {
    size_t size;
    undraft_gate_activation activation;
    float eps;
    undraft_tensor x;      /* in, rows [N, num_heads, D]; f32, bf16, f16 */
    undraft_tensor z;      /* in, rows [N, num_heads, D]; f32, bf16, f16 */
    undraft_tensor weight; /* in, [D] f32, plain: no 1 + w */
    undraft_tensor out;    /* out, rows [N, num_heads, D]; f32, bf16, f16 */
} undraft_rms_norm_gated_args;

/* SiLU, eps 1e-6. */
static inline undraft_rms_norm_gated_args undraft_rms_norm_gated_args_init(void) {
    undraft_rms_norm_gated_args args;
    memset(&args, 0, sizeof args);
    args.size = sizeof args;
    args.activation = UNDRAFT_GATE_SILU;
    args.eps = 1e-6f;
    return args;
}

undraft_status undraft_rms_norm_gated(const undraft_device *device, const undraft_rms_norm_gated_args *args,
                                      char **message);

/* ---- layouts, f32 ---- */

/* A recurrent state [HV, V, K] or [HV, K, V], as the layouts say, to the other one. */
undraft_status undraft_convert_state(undraft_state_layout from_layout, const undraft_tensor *from,
                                     undraft_state_layout to_layout, const undraft_tensor *to, char **message);
/* A convolution state [W - 1, C] or [C, W - 1], as the layouts say, to the other one. */
undraft_status undraft_convert_conv_state(undraft_conv_layout from_layout, const undraft_tensor *from,
                                          undraft_conv_layout to_layout, const undraft_tensor *to, char **message);
/* A convolution weight [C, W] or [C, 1, W] to [W, C]. */
undraft_status undraft_convert_conv_weight(const undraft_tensor *from, const undraft_tensor *to, char **message);

#ifdef __cplusplus
}
#endif

#endif
