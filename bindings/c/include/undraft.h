/*
 * undraft: speculative decoding on Gated DeltaNet layers, with rejected drafts taken back exactly.
 *
 *   device   where states live and kernels run
 *   pool     recurrent and convolution states of all layers, in slots, one a sequence
 *   round    a window of drafted tokens on some slots: verify every layer, then commit 0 to all of the tokens
 *   layer    the parameters of one layer
 *   ops      the single operations, without a pool, on memory of the caller
 *
 * H key heads, HV value heads (a multiple of H), K and V the sizes of a key and of a value head, W taps of the
 * convolution, C = 2 H K + HV V its channels, N tokens of a call. docs/conventions.md says what each choice means,
 * docs/c.md how the calls go together.
 *
 * Rules of every call:
 *
 *  - A function that can fail returns a status; UNDRAFT_OK is 0. Its last parameter `message` may be NULL; else it is
 *    set to NULL on success and to a sentence on failure, to be given to undraft_string_free. What a failed call
 *    would have given out is left as it was, and so are all states, unless its description says otherwise.
 *  - Nothing unwinds into the caller. A panic, which is a bug of undraft, comes back as UNDRAFT_INTERNAL; a pool in
 *    which one happened gives UNDRAFT_POISONED from then on and can only be freed.
 *  - A struct that begins with `size` has its sizeof there. Make it with its `_init` function, which also sets the
 *    defaults; enumerations begin with 1, so that one that was forgotten is an error. Later versions may add fields
 *    at the end, of which 0 keeps today's meaning. `reserved` must be 0.
 *  - Tensors are in host memory. A tensor that is written must not overlap with any other of the call, from the first
 *    to the last of its elements. No pointer is kept when a call returns.
 *  - Objects may be used from any thread; calls on one pool wait for each other. Free an object when no call on it is
 *    running, and once. Devices and layers may be freed before the pools and rounds that were made with them.
 */
#ifndef UNDRAFT_H
#define UNDRAFT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rises with every change that old programs notice; undraft_abi_version gives that of the library. */
#define UNDRAFT_ABI_VERSION 1

/* ---- status ---- */

typedef int32_t undraft_status;
enum {
    UNDRAFT_OK = 0,
    UNDRAFT_INVALID_ARGUMENT = 1, /* the message names it, with what was expected and what came */
    UNDRAFT_UNSUPPORTED = 2,      /* the device, or this version, does not do it */
    UNDRAFT_NO_DEVICE = 3,        /* no such device, or no driver */
    UNDRAFT_DEVICE_FAILED = 4,    /* the device's driver failed */
    UNDRAFT_OUT_OF_MEMORY = 5,
    UNDRAFT_NO_FREE_SLOT = 6,
    UNDRAFT_NOT_IN_USE = 7,  /* a slot that was freed or belongs to another pool; a round that is over */
    UNDRAFT_BUSY = 8,        /* a slot in an undecided round; a pool with one */
    UNDRAFT_TORN = 9,        /* a slot left in the middle of a prefill: reset or free it */
    UNDRAFT_FILE = 10,       /* the file cannot be read or written */
    UNDRAFT_NOT_A_SNAPSHOT = 11, /* a file of another kind or version, damaged, or of other layers */
    UNDRAFT_INTERNAL = 12,   /* a bug of undraft */
    UNDRAFT_POISONED = 13    /* an earlier call on the pool returned UNDRAFT_INTERNAL */
};

/* Name of a status, such as "UNDRAFT_BUSY"; static. */
const char *undraft_status_name(undraft_status status);
/* Frees a string that undraft gave; NULL is allowed. */
void undraft_string_free(char *string);
/* UNDRAFT_ABI_VERSION of the library. */
uint32_t undraft_abi_version(void);
/* Version of the library, such as "0.1.0"; static. */
const char *undraft_version(void);

/* ---- choices ---- */

/* Element type of a tensor. 0 stands for a tensor that is absent. */
typedef uint32_t undraft_dtype;
enum { UNDRAFT_F32 = 1, UNDRAFT_BF16 = 2, UNDRAFT_F16 = 3, UNDRAFT_I32 = 4, UNDRAFT_U32 = 5 };

/* Over what the state decays: one factor a value head (GDN), or one a key channel as well (KDA). */
typedef uint32_t undraft_decay_shape;
enum { UNDRAFT_DECAY_PER_HEAD = 1, UNDRAFT_DECAY_PER_CHANNEL = 2 };

/*
 * How the decay is given: g <= 0 of exp(g); the factor; -g; or a with A_log and dt_bias, g = -exp(A_log) softplus(a +
 * dt_bias).
 */
typedef uint32_t undraft_decay_form;
enum { UNDRAFT_DECAY_LOG = 1, UNDRAFT_DECAY_LINEAR = 2, UNDRAFT_DECAY_NEG_LOG = 3, UNDRAFT_DECAY_GATE = 4 };

/* How beta is given: the value, or a logit. */
typedef uint32_t undraft_beta_form;
enum { UNDRAFT_BETA_VALUE = 1, UNDRAFT_BETA_LOGIT = 2 };

/* Which key head value head hv reads: hv / (HV / H), or hv % H. */
typedef uint32_t undraft_head_map;
enum { UNDRAFT_HEADS_GROUPED = 1, UNDRAFT_HEADS_TILED = 2 };

/* Whether q and k are used as they are, or as x / sqrt(sum(x^2) + eps). */
typedef uint32_t undraft_qk_norm;
enum { UNDRAFT_QK_AS_GIVEN = 1, UNDRAFT_QK_L2_NORM = 2 };

/* Whether beta and the normalised q and k stay in f32, or are rounded to the dtype of q and k. */
typedef uint32_t undraft_rounding;
enum { UNDRAFT_ROUND_F32 = 1, UNDRAFT_ROUND_IO = 2 };

/* What follows the convolution. */
typedef uint32_t undraft_activation;
enum { UNDRAFT_ACTIVATION_NONE = 1, UNDRAFT_ACTIVATION_SILU = 2 };

/* What is done to the gate of the norm. */
typedef uint32_t undraft_gate_activation;
enum { UNDRAFT_GATE_SILU = 1, UNDRAFT_GATE_SIGMOID = 2 };

/*
 * What a window records so that it can be taken back: k, decay and delta of each token; the state after each token;
 * nothing.
 */
typedef uint32_t undraft_capture;
enum { UNDRAFT_CAPTURE_DELTA_LOG = 1, UNDRAFT_CAPTURE_PER_TOKEN = 2, UNDRAFT_CAPTURE_FINAL = 3 };

/* Inner axes of a recurrent state: [HV, V, K], or [HV, K, V]. */
typedef uint32_t undraft_state_layout;
enum { UNDRAFT_STATE_VALUE_MAJOR = 1, UNDRAFT_STATE_KEY_MAJOR = 2 };

/* Axes of a convolution state, oldest input first: [W - 1, C], or [C, W - 1]. */
typedef uint32_t undraft_conv_layout;
enum { UNDRAFT_CONV_TIME_MAJOR = 1, UNDRAFT_CONV_CHANNEL_MAJOR = 2 };

/* The single operations. */
typedef uint32_t undraft_op;
enum {
    UNDRAFT_OP_FUSED_GDN_GATING = 1,
    UNDRAFT_OP_CAUSAL_CONV1D_UPDATE = 2,
    UNDRAFT_OP_CAUSAL_CONV1D_FN = 3,
    UNDRAFT_OP_FUSED_RECURRENT_GATED_DELTA_RULE = 4,
    UNDRAFT_OP_CHUNK_GATED_DELTA_RULE = 5,
    UNDRAFT_OP_COMMIT_STATES = 6,
    UNDRAFT_OP_RMS_NORM_GATED = 7
};

/* ---- tensors ---- */

#define UNDRAFT_MAX_NDIM 5

/*
 * Memory of the caller. Strides count elements. Tensors are contiguous, but for "rows": of these the first axis
 * (tokens) may have any stride that is no shorter than a row, so that q, k and v may be parts of one fused row; and
 * the axes behind it may be given joined, [N, HV V] for [N, HV, V]. All zero is an absent tensor.
 */
typedef struct undraft_tensor {
    void *data; /* aligned to its elements; read only where the field is an input */
    undraft_dtype dtype;
    uint32_t ndim;
    int64_t shape[UNDRAFT_MAX_NDIM];
    int64_t strides[UNDRAFT_MAX_NDIM];
} undraft_tensor;

/* A contiguous tensor; `ndim` of at most UNDRAFT_MAX_NDIM. */
static inline undraft_tensor undraft_tensor_nd(const void *data, undraft_dtype dtype, uint32_t ndim,
                                               const int64_t *shape) {
    undraft_tensor tensor;
    int64_t stride = 1;
    uint32_t i;
    memset(&tensor, 0, sizeof tensor);
    memcpy(&tensor.data, &data, sizeof data);
    tensor.dtype = dtype;
    tensor.ndim = ndim;
    for (i = ndim <= UNDRAFT_MAX_NDIM ? ndim : 0; i-- > 0;) {
        tensor.shape[i] = shape[i];
        tensor.strides[i] = stride;
        stride *= shape[i];
    }
    return tensor;
}

static inline undraft_tensor undraft_tensor_1d(const void *data, undraft_dtype dtype, int64_t n) {
    return undraft_tensor_nd(data, dtype, 1, &n);
}

static inline undraft_tensor undraft_tensor_2d(const void *data, undraft_dtype dtype, int64_t rows, int64_t columns) {
    const int64_t shape[2] = {rows, columns};
    return undraft_tensor_nd(data, dtype, 2, shape);
}

/* `rows` rows of `columns` elements whose starts are `stride` elements apart. */
static inline undraft_tensor undraft_tensor_rows(const void *data, undraft_dtype dtype, int64_t rows, int64_t columns,
                                                 int64_t stride) {
    undraft_tensor tensor = undraft_tensor_2d(data, dtype, rows, columns);
    tensor.strides[0] = stride;
    return tensor;
}

/* ---- sizes ---- */

/* Sizes of one Gated DeltaNet layer. Head sizes 1 to 256, conv_width 2 to 8. */
typedef struct undraft_gdn_dims {
    uint32_t num_k_heads; /* H */
    uint32_t num_v_heads; /* HV */
    uint32_t head_k_dim;  /* K */
    uint32_t head_v_dim;  /* V */
    undraft_decay_shape decay_shape;
    uint32_t conv_width; /* W */
    uint32_t reserved[2];
} undraft_gdn_dims;

static inline undraft_gdn_dims undraft_gdn_dims_init(uint32_t num_k_heads, uint32_t num_v_heads, uint32_t head_k_dim,
                                                     uint32_t head_v_dim, uint32_t conv_width) {
    undraft_gdn_dims dims;
    memset(&dims, 0, sizeof dims);
    dims.num_k_heads = num_k_heads;
    dims.num_v_heads = num_v_heads;
    dims.head_k_dim = head_k_dim;
    dims.head_v_dim = head_v_dim;
    dims.decay_shape = UNDRAFT_DECAY_PER_HEAD;
    dims.conv_width = conv_width;
    return dims;
}

/* Elements and bytes of one layer. */
typedef struct undraft_gdn_sizes {
    size_t size;
    size_t key_dim;   /* H K, elements of q or k of a token */
    size_t value_dim; /* HV V, elements of v or o of a token */
    size_t conv_dim;  /* C */
    size_t decay_len; /* HV, or HV K with a decay per channel */
    size_t state_len; /* HV V K, elements of a slot's recurrent state */
    size_t conv_state_len; /* (W - 1) C */
    size_t log_len;        /* H K + decay_len + HV V, elements of a token of the delta log */
    size_t state_bytes;
    size_t conv_state_bytes;
    size_t log_bytes;      /* of a token; f32 */
    size_t conv_log_bytes; /* of a token; f32 */
} undraft_gdn_sizes;

static inline undraft_gdn_sizes undraft_gdn_sizes_init(void) {
    undraft_gdn_sizes sizes;
    memset(&sizes, 0, sizeof sizes);
    sizes.size = sizeof sizes;
    return sizes;
}

/* Sizes of a layer whose states are f32, bf16 or f16. */
undraft_status undraft_gdn_get_sizes(const undraft_gdn_dims *dims, undraft_dtype state_dtype, undraft_gdn_sizes *sizes,
                                     char **message);

/* ---- device ---- */

typedef struct undraft_device undraft_device;

typedef struct undraft_device_options {
    size_t size;
    uint32_t num_threads; /* of the CPU; 0 is 1 */
    uint32_t reserved;
    const char *isa; /* of the CPU: "scalar", "avx2", "avx512", "neon"; NULL is the best of the machine */
} undraft_device_options;

static inline undraft_device_options undraft_device_options_init(void) {
    undraft_device_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    return options;
}

typedef struct undraft_device_info {
    size_t size;
    char name[32];    /* as undraft_device_new takes it, "cuda:0" */
    char backend[32]; /* as messages name it, "cpu-avx2" */
    uint32_t num_threads;
    uint32_t max_head_dim;
    uint32_t has_trees; /* 1 if draft trees are verified */
    uint32_t reserved;
} undraft_device_info;

static inline undraft_device_info undraft_device_info_init(void) {
    undraft_device_info info;
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    return info;
}

/* Names of the devices of this machine that can be used, one a line, for undraft_string_free. Opens each of them. */
undraft_status undraft_device_names(char **names, char **message);
/*
 * A device by its name: "cpu", "cuda" (the first one), "cuda:N", "metal", "wgpu" (the first adapter) or "wgpu:N". `options`
 * may be NULL. See docs/c.md about GPUs.
 */
undraft_status undraft_device_new(const char *name, const undraft_device_options *options, undraft_device **device,
                                  char **message);
/* NULL is allowed. */
void undraft_device_free(undraft_device *device);
undraft_status undraft_device_get_info(const undraft_device *device, undraft_device_info *info, char **message);

/* One question to undraft_device_supports. */
typedef struct undraft_support {
    size_t size;
    undraft_op op;
    undraft_dtype io_dtype; /* of q, k, v, o or x */
    uint32_t head_k_dim;    /* these five are looked at where the operation has them */
    uint32_t head_v_dim;
    undraft_capture capture;
    undraft_dtype state_dtype;
    undraft_decay_shape decay_shape;
    uint32_t tree; /* 1: windows are draft trees */
} undraft_support;

/* f32, a decay a head, a delta log, no trees. */
static inline undraft_support undraft_support_init(undraft_op op, uint32_t head_k_dim, uint32_t head_v_dim) {
    undraft_support what;
    memset(&what, 0, sizeof what);
    what.size = sizeof what;
    what.op = op;
    what.io_dtype = UNDRAFT_F32;
    what.head_k_dim = head_k_dim;
    what.head_v_dim = head_v_dim;
    what.capture = UNDRAFT_CAPTURE_DELTA_LOG;
    what.state_dtype = UNDRAFT_F32;
    what.decay_shape = UNDRAFT_DECAY_PER_HEAD;
    return what;
}

/* UNDRAFT_OK, or UNDRAFT_UNSUPPORTED with what is not and what to do instead. */
undraft_status undraft_device_supports(const undraft_device *device, const undraft_support *what, char **message);

/* ---- layer ---- */

typedef struct undraft_layer undraft_layer;

/* All tensors f32 and contiguous. */
typedef struct undraft_layer_params {
    size_t size;
    undraft_gdn_dims dims;
    undraft_tensor conv_weight; /* [C, W] or [C, 1, W], channels q | k | v, the last tap is the present token */
    undraft_tensor conv_bias;   /* [C], or absent */
    undraft_tensor a_log;       /* [HV] */
    undraft_tensor dt_bias;     /* [HV], or [HV, K] with a decay per channel */
    undraft_activation activation;
    undraft_head_map head_map;
    undraft_qk_norm qk_norm;
    undraft_rounding rounding;
    float qk_eps;
    float scale; /* factor on the output; 0 is K^-0.5 */
} undraft_layer_params;

/* Defaults of Qwen3-Next and Qwen3.5: SiLU, grouped heads, L2 norm with eps 1e-6, f32. */
static inline undraft_layer_params undraft_layer_params_init(undraft_gdn_dims dims) {
    undraft_layer_params params;
    memset(&params, 0, sizeof params);
    params.size = sizeof params;
    params.dims = dims;
    params.activation = UNDRAFT_ACTIVATION_SILU;
    params.head_map = UNDRAFT_HEADS_GROUPED;
    params.qk_norm = UNDRAFT_QK_L2_NORM;
    params.rounding = UNDRAFT_ROUND_F32;
    params.qk_eps = 1e-6f;
    return params;
}

/* Copies the parameters. */
undraft_status undraft_layer_new(const undraft_layer_params *params, undraft_layer **layer, char **message);
/* NULL is allowed. */
void undraft_layer_free(undraft_layer *layer);

/* ---- pool ---- */

typedef struct undraft_pool undraft_pool;

typedef struct undraft_pool_config {
    size_t size;
    const undraft_gdn_dims *layers; /* the model's Gated DeltaNet layers, in order */
    size_t num_layers;
    uint32_t num_slots;        /* sequences at once */
    uint32_t max_window;       /* tokens of a window that can be taken back */
    undraft_dtype state_dtype; /* f32, bf16 or f16; 16-bit states are rounded after every token */
    uint32_t reserved;
} undraft_pool_config;

/* States in f32. */
static inline undraft_pool_config undraft_pool_config_init(const undraft_gdn_dims *layers, size_t num_layers,
                                                           uint32_t num_slots, uint32_t max_window) {
    undraft_pool_config config;
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.layers = layers;
    config.num_layers = num_layers;
    config.num_slots = num_slots;
    config.max_window = max_window;
    config.state_dtype = UNDRAFT_F32;
    return config;
}

typedef struct undraft_pool_info {
    size_t size;
    size_t num_layers;
    size_t num_slots;
    size_t num_free_slots;
    size_t num_open_rounds;
    size_t max_window;
    size_t state_bytes; /* of one slot, over all layers; so the three that follow */
    size_t conv_state_bytes;
    size_t log_bytes;      /* of max_window tokens */
    size_t conv_log_bytes; /* of max_window tokens */
    size_t slot_bytes;     /* the four together */
    size_t total_bytes;    /* of all slots */
} undraft_pool_info;

static inline undraft_pool_info undraft_pool_info_init(void) {
    undraft_pool_info info;
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    return info;
}

/* A pool with all slots free. */
undraft_status undraft_pool_new(const undraft_device *device, const undraft_pool_config *config, undraft_pool **pool,
                                char **message);
/* Frees the pool; with UNDRAFT_BUSY it has an undecided round and stays. NULL is allowed. */
undraft_status undraft_pool_free(undraft_pool *pool, char **message);
undraft_status undraft_pool_get_info(const undraft_pool *pool, undraft_pool_info *info, char **message);
/* Rolls all undecided rounds back. */
undraft_status undraft_pool_rollback_all(undraft_pool *pool, char **message);

/* ---- slots ---- */

/* A sequence's place in a pool; no number is given out twice in a process. Never 0. */
typedef int64_t undraft_slot;
/* A padding sequence of a round: nothing is read or written, its outputs are zero. */
#define UNDRAFT_PAD_SLOT (-1)

/* A free slot, all states zero. */
undraft_status undraft_slot_alloc(undraft_pool *pool, undraft_slot *slot, char **message);
/* Gives a slot back; its number is dead from here on. */
undraft_status undraft_slot_free(undraft_pool *pool, undraft_slot slot, char **message);
/* Sets all states of a slot to zero; mends a torn slot, and ends the round that it is in by rolling it back. */
undraft_status undraft_slot_reset(undraft_pool *pool, undraft_slot slot, char **message);
/* Copies a slot, tokens not yet replayed included, into a free one. */
undraft_status undraft_slot_fork(undraft_pool *pool, undraft_slot slot, undraft_slot *copy, char **message);
/* Replays what was committed now instead of in the next round. */
undraft_status undraft_slots_settle(undraft_pool *pool, const undraft_slot *slots, size_t num_slots, char **message);

/* Writes a slot to a safetensors file, in one step: an interrupted save leaves what was there. */
undraft_status undraft_slot_save(undraft_pool *pool, undraft_slot slot, const char *path, char **message);
/* Reads such a file into a free slot. */
undraft_status undraft_slot_load(undraft_pool *pool, const char *path, undraft_slot *slot, char **message);

/*
 * A layer's states of a slot out and in, settled. `to` and `from` are contiguous: the recurrent state [HV, V, K] or
 * [HV, K, V] in f32 or in the pool's dtype (a 16-bit state is rounded to nearest even where f32 comes in), the
 * convolution state [W - 1, C] or [C, W - 1] in f32, oldest input first.
 */
undraft_status undraft_slot_export_state(undraft_pool *pool, undraft_slot slot, size_t layer,
                                         undraft_state_layout layout, const undraft_tensor *to, char **message);
undraft_status undraft_slot_import_state(undraft_pool *pool, undraft_slot slot, size_t layer,
                                         undraft_state_layout layout, const undraft_tensor *from, char **message);
undraft_status undraft_slot_export_conv(undraft_pool *pool, undraft_slot slot, size_t layer, undraft_conv_layout layout,
                                        const undraft_tensor *to, char **message);
undraft_status undraft_slot_import_conv(undraft_pool *pool, undraft_slot slot, size_t layer, undraft_conv_layout layout,
                                        const undraft_tensor *from, char **message);

/* A slot's states outside of the pool, for prefix caches; belongs to no pool. */
typedef struct undraft_snapshot undraft_snapshot;

undraft_status undraft_snapshot_new(undraft_pool *pool, undraft_slot slot, undraft_snapshot **snapshot, char **message);
/* NULL is allowed. */
void undraft_snapshot_free(undraft_snapshot *snapshot);
/* Overwrites a slot's states with those of a snapshot of the same layers and dtype; mends a torn slot. */
undraft_status undraft_snapshot_restore(const undraft_snapshot *snapshot, undraft_pool *pool, undraft_slot slot,
                                        char **message);
undraft_status undraft_snapshot_save(const undraft_snapshot *snapshot, const char *path, char **message);
undraft_status undraft_snapshot_load(const char *path, undraft_snapshot **snapshot, char **message);

/* ---- rounds ---- */

/* An undecided window of a pool; no number is given out twice in a process. Never 0. */
typedef int64_t undraft_round;

typedef uint32_t undraft_round_mode;
enum {
    /* At most max_window tokens a sequence, of which 0 to all stay. */
    UNDRAFT_VERIFY = 1,
    /*
     * Any number of tokens, all of which stay; bit for bit as decoding. The states are overwritten: rolled back after
     * its first verify, such a round leaves its slots torn.
     */
    UNDRAFT_FINAL = 2,
    /* As UNDRAFT_FINAL in the matrix form: faster for prompts, close to decoding and not bit-equal to it. */
    UNDRAFT_PREFILL = 3
};

typedef struct undraft_round_params {
    size_t size;
    undraft_round_mode mode;
    uint32_t reserved;
    size_t num_seqs;
    const undraft_slot *slots; /* [num_seqs], or UNDRAFT_PAD_SLOT; a slot may stand once, and in one undecided round */
    const uint32_t *windows;   /* [num_seqs], tokens of each window */
    /*
     * NULL: each window is a chain. Else draft trees (UNDRAFT_VERIFY alone), [sum of windows]: of each token the
     * position in its window of the token that it follows, -1 for the committed state; parents come before their
     * children.
     */
    const int32_t *parents;
} undraft_round_params;

static inline undraft_round_params undraft_round_params_init(undraft_round_mode mode, const undraft_slot *slots,
                                                             const uint32_t *windows, size_t num_seqs) {
    undraft_round_params params;
    memset(&params, 0, sizeof params);
    params.size = sizeof params;
    params.mode = mode;
    params.num_seqs = num_seqs;
    params.slots = slots;
    params.windows = windows;
    return params;
}

/* What one layer reads and writes in a round: N tokens of all windows, sequence by sequence. */
typedef struct undraft_verify_args {
    size_t size;
    const undraft_layer *layer;
    undraft_tensor mixed_qkv; /* in, rows [N, C]: the joined q, k, v before the convolution; f32, bf16, f16 */
    undraft_tensor a;         /* in, [N, HV] f32: gate projection of the decay; [N, HV, K] with a decay per channel */
    undraft_tensor b;         /* in, [N, HV] f32: logit of beta */
    undraft_tensor out;       /* out, rows [N, HV, V]; f32, bf16, f16 */
} undraft_verify_args;

static inline undraft_verify_args undraft_verify_args_init(const undraft_layer *layer) {
    undraft_verify_args args;
    memset(&args, 0, sizeof args);
    args.size = sizeof args;
    args.layer = layer;
    return args;
}

/* Opens a round. Until it is decided its slots can only be reset; all others may be used, also in other rounds. */
undraft_status undraft_round_begin(undraft_pool *pool, const undraft_round_params *params, undraft_round *round,
                                   char **message);
/* Convolution, gates and recurrence of one layer over the windows: each layer once, in any order. */
undraft_status undraft_round_verify(undraft_pool *pool, undraft_round round, size_t layer,
                                    const undraft_verify_args *args, char **message);
/*
 * Keeps the first num_kept[s] tokens of each window, in all layers; 0 leaves a slot as it was. The round is over
 * whatever comes back: if the commit is refused, it has been rolled back.
 */
undraft_status undraft_round_commit(undraft_pool *pool, undraft_round round, const uint32_t *num_kept, size_t num_seqs,
                                    char **message);
/*
 * Keeps a path through each draft tree: num_kept[s] positions in the window, each the parent of the next, the paths
 * of all sequences one after the other in `paths`. Otherwise as undraft_round_commit.
 */
undraft_status undraft_round_commit_path(undraft_pool *pool, undraft_round round, const uint32_t *paths,
                                         const uint32_t *num_kept, size_t num_seqs, char **message);
/* Keeps nothing. */
undraft_status undraft_round_rollback(undraft_pool *pool, undraft_round round, char **message);

#ifdef __cplusplus
}
#endif

#endif
