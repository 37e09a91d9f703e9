/* Small layers, tokens whose inputs follow from a number, and checks that end the program. */
#ifndef SUPPORT_H
#define SUPPORT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <undraft.h>
#include <undraft_ops.h>

#define REQUIRE(condition)                                                         \
    do {                                                                           \
        if (!(condition)) {                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);        \
            exit(1);                                                               \
        }                                                                          \
    } while (0)

/* A call whose last argument is `&message`. */
#define OK(call)                                                                                             \
    do {                                                                                                     \
        char *message = NULL;                                                                                \
        undraft_status status = (call);                                                                      \
        if (status != UNDRAFT_OK || message != NULL) {                                                       \
            fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, undraft_status_name(status),   \
                    message ? message : "no message");                                                       \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

/* A call that must fail with this status and with a message that holds this text. */
#define FAILS(expected, text, call)                                                                          \
    do {                                                                                                     \
        char *message = NULL;                                                                                \
        undraft_status status = (call);                                                                      \
        if (status != (expected) || message == NULL || strstr(message, (text)) == NULL) {                    \
            fprintf(stderr, "%s:%d: %s: got %s: %s\n    expected %s: ..%s..\n", __FILE__, __LINE__, #call,   \
                    undraft_status_name(status), message ? message : "no message",                           \
                    undraft_status_name(expected), (text));                                                  \
            exit(1);                                                                                         \
        }                                                                                                    \
        undraft_string_free(message);                                                                        \
    } while (0)

enum { NUM_LAYERS = 2, MAX_TOKENS = 64, MAX_SIZE = 4096 };

typedef struct {
    undraft_device *device;
    undraft_gdn_dims dims[NUM_LAYERS];
    undraft_gdn_sizes sizes[NUM_LAYERS];
    undraft_layer *layers[NUM_LAYERS];
} Model;

/* Values in -1..1 that follow from a seed. */
static inline void fill(uint64_t seed, float *values, size_t n) {
    uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
    for (size_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        values[i] = (float)(x >> 40) / (float)(1 << 23) - 1.0f;
    }
}

static inline undraft_layer *make_layer(undraft_gdn_dims dims, uint64_t seed) {
    static _Thread_local float weight[MAX_SIZE], a_log[64], dt_bias[MAX_SIZE];
    undraft_gdn_sizes sizes = undraft_gdn_sizes_init();
    OK(undraft_gdn_get_sizes(&dims, UNDRAFT_F32, &sizes, &message));
    const int64_t c = (int64_t)sizes.conv_dim;
    REQUIRE(sizes.conv_dim * dims.conv_width <= MAX_SIZE && dims.num_v_heads <= 64 && sizes.decay_len <= MAX_SIZE);
    fill(seed + 1, weight, sizes.conv_dim * dims.conv_width);
    fill(seed + 2, a_log, dims.num_v_heads);
    fill(seed + 3, dt_bias, sizes.decay_len);
    undraft_layer_params params = undraft_layer_params_init(dims);
    params.conv_weight = undraft_tensor_2d(weight, UNDRAFT_F32, c, dims.conv_width);
    params.a_log = undraft_tensor_1d(a_log, UNDRAFT_F32, dims.num_v_heads);
    params.dt_bias = dims.decay_shape == UNDRAFT_DECAY_PER_HEAD
                         ? undraft_tensor_1d(dt_bias, UNDRAFT_F32, dims.num_v_heads)
                         : undraft_tensor_2d(dt_bias, UNDRAFT_F32, dims.num_v_heads, dims.head_k_dim);
    undraft_layer *layer = NULL;
    OK(undraft_layer_new(&params, &layer, &message));
    return layer;
}

/* A layer with a decay a head and one with a decay a channel, K and V of their own. */
static inline Model make_model(const undraft_device_options *options) {
    Model model;
    memset(&model, 0, sizeof model);
    OK(undraft_device_new("cpu", options, &model.device, &message));
    model.dims[0] = undraft_gdn_dims_init(2, 4, 16, 24, 4);
    model.dims[1] = undraft_gdn_dims_init(1, 3, 8, 5, 3);
    model.dims[1].decay_shape = UNDRAFT_DECAY_PER_CHANNEL;
    for (int i = 0; i < NUM_LAYERS; i++) {
        model.sizes[i] = undraft_gdn_sizes_init();
        OK(undraft_gdn_get_sizes(&model.dims[i], UNDRAFT_F32, &model.sizes[i], &message));
        model.layers[i] = make_layer(model.dims[i], 1000 * (uint64_t)i);
    }
    return model;
}

static inline void free_model(Model *model) {
    for (int i = 0; i < NUM_LAYERS; i++) undraft_layer_free(model->layers[i]);
    undraft_device_free(model->device);
}

static inline undraft_pool *make_pool(const Model *model, uint32_t num_slots, uint32_t max_window, undraft_dtype dtype) {
    undraft_pool_config config = undraft_pool_config_init(model->dims, NUM_LAYERS, num_slots, max_window);
    config.state_dtype = dtype;
    undraft_pool *pool = NULL;
    OK(undraft_pool_new(model->device, &config, &pool, &message));
    return pool;
}

static inline undraft_slot alloc_slot(undraft_pool *pool) {
    undraft_slot slot = 0;
    OK(undraft_slot_alloc(pool, &slot, &message));
    REQUIRE(slot > 0);
    return slot;
}

typedef struct {
    float qkv[MAX_TOKENS * 256], a[MAX_TOKENS * 64], b[MAX_TOKENS * 8], out[MAX_TOKENS * 128];
} Buffers;

/* Arguments of one layer for these tokens; outputs are NaN until they are written. */
static inline undraft_verify_args layer_args(const Model *model, int layer, const uint64_t *tokens, uint32_t n,
                                             Buffers *buffers) {
    const undraft_gdn_sizes *sizes = &model->sizes[layer];
    const undraft_gdn_dims *dims = &model->dims[layer];
    REQUIRE(n <= MAX_TOKENS && sizes->conv_dim <= 256 && sizes->decay_len <= 64 && sizes->value_dim <= 128);
    for (uint32_t t = 0; t < n; t++) {
        const uint64_t seed = tokens[t] * 64 + (uint64_t)layer + 1;
        fill(seed, buffers->qkv + t * sizes->conv_dim, sizes->conv_dim);
        fill(seed + 8, buffers->a + t * sizes->decay_len, sizes->decay_len);
        fill(seed + 16, buffers->b + t * dims->num_v_heads, dims->num_v_heads);
    }
    memset(buffers->out, 0xff, sizeof buffers->out);
    undraft_verify_args args = undraft_verify_args_init(model->layers[layer]);
    const int64_t of_decay[3] = {n, dims->num_v_heads, dims->head_k_dim};
    args.mixed_qkv = undraft_tensor_2d(buffers->qkv, UNDRAFT_F32, n, (int64_t)sizes->conv_dim);
    args.a = undraft_tensor_nd(buffers->a, UNDRAFT_F32, dims->decay_shape == UNDRAFT_DECAY_PER_HEAD ? 2 : 3, of_decay);
    args.b = undraft_tensor_2d(buffers->b, UNDRAFT_F32, n, dims->num_v_heads);
    args.out = undraft_tensor_2d(buffers->out, UNDRAFT_F32, n, (int64_t)sizes->value_dim);
    return args;
}

/* Verifies every layer; outputs layer by layer, token by token, to `outs` unless that is NULL. */
static inline void verify_all(const Model *model, undraft_pool *pool, undraft_round round, const uint64_t *tokens,
                              uint32_t n, float *outs) {
    static _Thread_local Buffers buffers;
    for (int layer = 0; layer < NUM_LAYERS; layer++) {
        undraft_verify_args args = layer_args(model, layer, tokens, n, &buffers);
        OK(undraft_round_verify(pool, round, (size_t)layer, &args, &message));
        const size_t len = n * model->sizes[layer].value_dim;
        for (size_t i = 0; i < len; i++) REQUIRE(buffers.out[i] == buffers.out[i]);
        if (outs != NULL) {
            memcpy(outs, buffers.out, len * sizeof *outs);
            outs += len;
        }
    }
}

static inline undraft_round begin(undraft_pool *pool, undraft_round_mode mode, const undraft_slot *slots,
                                  const uint32_t *windows, size_t num_seqs) {
    undraft_round_params params = undraft_round_params_init(mode, slots, windows, num_seqs);
    undraft_round round = 0;
    OK(undraft_round_begin(pool, &params, &round, &message));
    REQUIRE(round > 0);
    return round;
}

/* One window on one slot, of which `num_kept` tokens stay. */
static inline void run_window(const Model *model, undraft_pool *pool, undraft_slot slot, const uint64_t *tokens, uint32_t n,
                              uint32_t num_kept, float *outs) {
    const undraft_round round = begin(pool, UNDRAFT_VERIFY, &slot, &n, 1);
    verify_all(model, pool, round, tokens, n, outs);
    OK(undraft_round_commit(pool, round, &num_kept, 1, &message));
}

/* All states of a slot as bytes, in f32 [HV, V, K] and [W - 1, C]; returns how many. */
static inline size_t read_states(const Model *model, undraft_pool *pool, undraft_slot slot, float *states) {
    float *at = states;
    for (int layer = 0; layer < NUM_LAYERS; layer++) {
        const undraft_gdn_dims *dims = &model->dims[layer];
        const int64_t shape[3] = {dims->num_v_heads, dims->head_v_dim, dims->head_k_dim};
        undraft_tensor to = undraft_tensor_nd(at, UNDRAFT_F32, 3, shape);
        OK(undraft_slot_export_state(pool, slot, (size_t)layer, UNDRAFT_STATE_VALUE_MAJOR, &to, &message));
        at += model->sizes[layer].state_len;
        to = undraft_tensor_2d(at, UNDRAFT_F32, dims->conv_width - 1, (int64_t)model->sizes[layer].conv_dim);
        OK(undraft_slot_export_conv(pool, slot, (size_t)layer, UNDRAFT_CONV_TIME_MAJOR, &to, &message));
        at += model->sizes[layer].conv_state_len;
    }
    return (size_t)(at - states) * sizeof *states;
}

/* Whether two slots hold the same bits. */
static inline int same_states(const Model *model, undraft_pool *pool, undraft_slot slot, undraft_pool *other_pool,
                              undraft_slot other) {
    static _Thread_local float a[MAX_SIZE], b[MAX_SIZE];
    const size_t bytes = read_states(model, pool, slot, a);
    REQUIRE(bytes <= sizeof a && bytes == read_states(model, other_pool, other, b));
    return memcmp(a, b, bytes) == 0;
}

#endif
