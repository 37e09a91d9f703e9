/* Every mistake that C lets a library see: a status, a message that names it, and everything as it was. */
#include "support.h"

static Model model;

/* 0 as UNDRAFT_PAD_SLOT is not: a number that was never given out. */
enum { NO_SLOT = 0, NO_ROUND = 0 };

static void test_null(void) {
    undraft_pool *pool = make_pool(&model, 1, 2, UNDRAFT_F32);
    const undraft_slot slot = alloc_slot(pool);
    undraft_slot other;
    undraft_round round;
    undraft_gdn_sizes sizes = undraft_gdn_sizes_init();
    undraft_device *device = NULL;
    undraft_layer *layer = NULL;
    undraft_pool *made = NULL;
    undraft_snapshot *snapshot = NULL;
    const undraft_status bad = UNDRAFT_INVALID_ARGUMENT;
    FAILS(bad, "`dims` is NULL", undraft_gdn_get_sizes(NULL, UNDRAFT_F32, &sizes, &message));
    FAILS(bad, "`sizes` is NULL", undraft_gdn_get_sizes(&model.dims[0], UNDRAFT_F32, NULL, &message));
    FAILS(bad, "`names` is NULL", undraft_device_names(NULL, &message));
    FAILS(bad, "`name` is NULL", undraft_device_new(NULL, NULL, &device, &message));
    FAILS(bad, "`device` is NULL", undraft_device_new("cpu", NULL, NULL, &message));
    FAILS(bad, "`device` is NULL", undraft_device_get_info(NULL, NULL, &message));
    FAILS(bad, "`info` is NULL", undraft_device_get_info(model.device, NULL, &message));
    FAILS(bad, "`what` is NULL", undraft_device_supports(model.device, NULL, &message));
    FAILS(bad, "`params` is NULL", undraft_layer_new(NULL, &layer, &message));
    FAILS(bad, "`layer` is NULL", undraft_layer_new(NULL, NULL, &message));
    FAILS(bad, "`device` is NULL", undraft_pool_new(NULL, NULL, &made, &message));
    FAILS(bad, "`config` is NULL", undraft_pool_new(model.device, NULL, &made, &message));
    FAILS(bad, "`pool` is NULL", undraft_pool_new(model.device, NULL, NULL, &message));
    FAILS(bad, "`pool` is NULL", undraft_pool_get_info(NULL, NULL, &message));
    FAILS(bad, "`pool` is NULL", undraft_pool_rollback_all(NULL, &message));
    FAILS(bad, "`pool` is NULL", undraft_slot_alloc(NULL, &other, &message));
    FAILS(bad, "`slot` is NULL", undraft_slot_alloc(pool, NULL, &message));
    FAILS(bad, "`copy` is NULL", undraft_slot_fork(pool, slot, NULL, &message));
    FAILS(bad, "`slots` is NULL, expected 3 elements", undraft_slots_settle(pool, NULL, 3, &message));
    FAILS(bad, "`path` is NULL", undraft_slot_save(pool, slot, NULL, &message));
    FAILS(bad, "`path` is NULL", undraft_slot_load(pool, NULL, &other, &message));
    FAILS(bad, "`to` is NULL", undraft_slot_export_state(pool, slot, 0, UNDRAFT_STATE_VALUE_MAJOR, NULL, &message));
    FAILS(bad, "`from` is NULL", undraft_slot_import_conv(pool, slot, 0, UNDRAFT_CONV_TIME_MAJOR, NULL, &message));
    FAILS(bad, "`snapshot` is NULL", undraft_snapshot_new(pool, slot, NULL, &message));
    FAILS(bad, "`snapshot` is NULL", undraft_snapshot_restore(NULL, pool, slot, &message));
    FAILS(bad, "`snapshot` is NULL", undraft_snapshot_save(NULL, "x", &message));
    FAILS(bad, "`path` is NULL", undraft_snapshot_load(NULL, &snapshot, &message));
    FAILS(bad, "`params` is NULL", undraft_round_begin(pool, NULL, &round, &message));
    FAILS(bad, "`round` is NULL", undraft_round_begin(pool, NULL, NULL, &message));
    FAILS(bad, "`args` is NULL", undraft_round_verify(pool, NO_ROUND, 0, NULL, &message));
    FAILS(bad, "`args` is NULL", undraft_fused_gdn_gating(model.device, NULL, &message));
    FAILS(bad, "`device` is NULL", undraft_rms_norm_gated(NULL, NULL, &message));
    FAILS(bad, "`from` is NULL", undraft_convert_conv_weight(NULL, NULL, &message));
    /* Without a place for the message, and what may be NULL. */
    REQUIRE(undraft_slot_alloc(NULL, &other, NULL) == UNDRAFT_INVALID_ARGUMENT);
    OK(undraft_pool_free(NULL, &message));
    undraft_device_free(NULL);
    undraft_layer_free(NULL);
    undraft_snapshot_free(NULL);
    undraft_string_free(NULL);
    OK(undraft_pool_free(pool, &message));
}

static void test_devices_and_sizes(void) {
    undraft_device *device = NULL;
    undraft_device_options options = undraft_device_options_init();
    FAILS(UNDRAFT_NO_DEVICE, "`name` is \"tpu\", expected cpu", undraft_device_new("tpu", NULL, &device, &message));
    FAILS(UNDRAFT_NO_DEVICE, "`name` is \"cuda:x\"", undraft_device_new("cuda:x", NULL, &device, &message));
    FAILS(UNDRAFT_NO_DEVICE, "`name` is \"cpu:1\"", undraft_device_new("cpu:1", NULL, &device, &message));
    FAILS(UNDRAFT_NO_DEVICE, "", undraft_device_new("cuda:9999", NULL, &device, &message));
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`name` is", undraft_device_new("\xff\xfe", NULL, &device, &message));
    options.isa = "sse9";
    FAILS(UNDRAFT_INVALID_ARGUMENT, "expected one of scalar", undraft_device_new("cpu", &options, &device, &message));
    options.isa = NULL;
    options.num_threads = 100000;
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`num_threads` is 100000", undraft_device_new("cpu", &options, &device, &message));
    options.num_threads = 1;
    options.reserved = 7;
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`reserved` of `undraft_device_options` is 7",
          undraft_device_new("cpu", &options, &device, &message));
    REQUIRE(device == NULL);

    undraft_support what = undraft_support_init(UNDRAFT_OP_COMMIT_STATES, 300, 64);
    FAILS(UNDRAFT_UNSUPPORTED, "head_k_dim 300", undraft_device_supports(model.device, &what, &message));
    what.op = 9;
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`op` is 9, expected one of 1 (fused_gdn_gating)",
          undraft_device_supports(model.device, &what, &message));

    undraft_gdn_sizes sizes = undraft_gdn_sizes_init();
    undraft_gdn_dims dims = undraft_gdn_dims_init(4, 6, 16, 16, 4);
    FAILS(UNDRAFT_INVALID_ARGUMENT, "expected a multiple of `num_k_heads` = 4",
          undraft_gdn_get_sizes(&dims, UNDRAFT_F32, &sizes, &message));
    dims = undraft_gdn_dims_init(1, 1, 257, 16, 4);
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`head_k_dim` is 257", undraft_gdn_get_sizes(&dims, UNDRAFT_F32, &sizes, &message));
    dims = undraft_gdn_dims_init(1, 1, 16, 16, 9);
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`conv_width` is 9", undraft_gdn_get_sizes(&dims, UNDRAFT_F32, &sizes, &message));
    dims.conv_width = 4;
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`state_dtype` is 4", undraft_gdn_get_sizes(&dims, UNDRAFT_I32, &sizes, &message));
    dims.decay_shape = 0;
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`decay_shape` is 0, expected one of 1 (per head), 2 (per channel)",
          undraft_gdn_get_sizes(&dims, UNDRAFT_F32, &sizes, &message));
    dims = model.dims[0];
    dims.reserved[1] = 1;
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`reserved`", undraft_gdn_get_sizes(&dims, UNDRAFT_F32, &sizes, &message));

    undraft_pool *pool = NULL;
    undraft_pool_config config = undraft_pool_config_init(model.dims, NUM_LAYERS, 0, 4);
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`num_slots` is 0", undraft_pool_new(model.device, &config, &pool, &message));
    config = undraft_pool_config_init(model.dims, 0, 1, 4);
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`num_layers` is 0", undraft_pool_new(model.device, &config, &pool, &message));
    config = undraft_pool_config_init(NULL, 2, 1, 4);
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`layers` is NULL", undraft_pool_new(model.device, &config, &pool, &message));
    undraft_gdn_dims large = undraft_gdn_dims_init(65536, 65536, 256, 256, 8);
    config = undraft_pool_config_init(&large, 1, 1 << 16, 1); /* 2^50 bytes */
    FAILS(UNDRAFT_OUT_OF_MEMORY, "bytes", undraft_pool_new(model.device, &config, &pool, &message));
    REQUIRE(pool == NULL);
}

static void test_layers(void) {
    static float values[MAX_SIZE];
    const undraft_gdn_dims dims = model.dims[0];
    const int64_t c = (int64_t)model.sizes[0].conv_dim;
    undraft_layer *layer = NULL;
    undraft_layer_params good = undraft_layer_params_init(dims), params;
    good.conv_weight = undraft_tensor_2d(values, UNDRAFT_F32, c, 4);
    good.a_log = undraft_tensor_1d(values, UNDRAFT_F32, 4);
    good.dt_bias = undraft_tensor_1d(values, UNDRAFT_F32, 4);
#define LAYER_FAILS(text, change)                                                               \
    do {                                                                                        \
        params = good;                                                                          \
        change;                                                                                 \
        FAILS(UNDRAFT_INVALID_ARGUMENT, text, undraft_layer_new(&params, &layer, &message));    \
    } while (0)
    LAYER_FAILS("`conv_weight` is absent", memset(&params.conv_weight, 0, sizeof params.conv_weight));
    LAYER_FAILS("`conv_weight` has shape [4, 160], expected [channels=160, conv_width=4]",
                params.conv_weight = undraft_tensor_2d(values, UNDRAFT_F32, 4, c));
    LAYER_FAILS("`conv_weight` has strides [1, 160]", (params.conv_weight.strides[0] = 1, params.conv_weight.strides[1] = c));
    LAYER_FAILS("`a_log` is bf16 (2), expected one of f32", params.a_log.dtype = UNDRAFT_BF16);
    LAYER_FAILS("`dt_bias` has 6 axes", params.dt_bias.ndim = 6);
    LAYER_FAILS("`conv_bias` has shape [3], expected [channels=160]",
                params.conv_bias = undraft_tensor_1d(values, UNDRAFT_F32, 3));
    LAYER_FAILS("`head_map` is 0", params.head_map = 0);
    LAYER_FAILS("`activation` is 3", params.activation = 3);
    LAYER_FAILS("`rounding` is 77", params.rounding = 77);
    LAYER_FAILS("`qk_norm` is 0", params.qk_norm = 0);
    LAYER_FAILS("`qk_eps` is -1", params.qk_eps = -1.0f);
    LAYER_FAILS("`scale` is inf", params.scale = 1.0f / 0.0f);
#undef LAYER_FAILS
    REQUIRE(layer == NULL);
}

/* Structs of older and newer programs. */
static void test_struct_sizes(void) {
    struct {
        undraft_pool_config config;
        uint64_t newer[2];
    } next = {undraft_pool_config_init(model.dims, NUM_LAYERS, 1, 2), {0, 0}};
    undraft_pool *pool = NULL;
    next.config.size = sizeof next;
    OK(undraft_pool_new(model.device, &next.config, &pool, &message));
    OK(undraft_pool_free(pool, &message));
    next.newer[1] = 1;
    FAILS(UNDRAFT_UNSUPPORTED, "that this version does not know",
          undraft_pool_new(model.device, &next.config, &pool, &message));
    next.config.size = 8;
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`size` of `undraft_pool_config` is 8",
          undraft_pool_new(model.device, &next.config, &pool, &message));
    undraft_gdn_sizes sizes;
    sizes.size = 0;
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`size`", undraft_gdn_get_sizes(&model.dims[0], UNDRAFT_F32, &sizes, &message));
    struct {
        undraft_gdn_sizes sizes;
        uint64_t newer;
    } out = {undraft_gdn_sizes_init(), 99};
    out.sizes.size = sizeof out;
    OK(undraft_gdn_get_sizes(&model.dims[0], UNDRAFT_F32, &out.sizes, &message));
    REQUIRE(out.sizes.size == sizeof out && out.newer == 99 && out.sizes.key_dim == 32);
    /* Misaligned: no struct lies there, so that it must not be read. */
    char bytes[2 * sizeof(undraft_pool_config)];
    const char *odd = bytes + 1 + ((uintptr_t)bytes & 1);
    FAILS(UNDRAFT_INVALID_ARGUMENT, "expected a multiple of 8",
          undraft_pool_new(model.device, (const undraft_pool_config *)(const void *)odd, &pool, &message));
}

static void test_slots(void) {
    undraft_pool *pool = make_pool(&model, 2, 2, UNDRAFT_F32), *other_pool = make_pool(&model, 2, 2, UNDRAFT_F32);
    undraft_slot a = alloc_slot(pool), b = alloc_slot(pool), foreign = alloc_slot(other_pool), c = 0;
    FAILS(UNDRAFT_NO_FREE_SLOT, "all 2 slots are in use", undraft_slot_alloc(pool, &c, &message));
    FAILS(UNDRAFT_NO_FREE_SLOT, "all 2 slots", undraft_slot_fork(pool, a, &c, &message));
    REQUIRE(c == 0);
    FAILS(UNDRAFT_NOT_IN_USE, "slot 0 is not in use", undraft_slot_free(pool, NO_SLOT, &message));
    FAILS(UNDRAFT_NOT_IN_USE, "slot -1", undraft_slot_reset(pool, UNDRAFT_PAD_SLOT, &message));
    FAILS(UNDRAFT_NOT_IN_USE, "belongs to another pool", undraft_slot_free(pool, foreign, &message));
    OK(undraft_slot_free(pool, b, &message));
    FAILS(UNDRAFT_NOT_IN_USE, "it was freed", undraft_slot_free(pool, b, &message));
    c = alloc_slot(pool);
    FAILS(UNDRAFT_NOT_IN_USE, "it was freed", undraft_slots_settle(pool, &b, 1, &message));
    FAILS(UNDRAFT_NOT_IN_USE, "it was freed", undraft_slot_fork(pool, b, &c, &message));

    static float values[MAX_SIZE];
    const undraft_tensor flat = undraft_tensor_1d(values, UNDRAFT_F32, 100);
    const int64_t shape[3] = {4, 24, 16};
    undraft_tensor state = undraft_tensor_nd(values, UNDRAFT_F32, 3, shape);
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`to` has shape [100], expected [num_v_heads=4, head_v_dim=24, head_k_dim=16]",
          undraft_slot_export_state(pool, a, 0, UNDRAFT_STATE_VALUE_MAJOR, &flat, &message));
    FAILS(UNDRAFT_INVALID_ARGUMENT, "[num_v_heads=4, head_k_dim=16, head_v_dim=24]",
          undraft_slot_export_state(pool, a, 0, UNDRAFT_STATE_KEY_MAJOR, &state, &message));
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`layout` is 0", undraft_slot_export_state(pool, a, 0, 0, &state, &message));
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`layer` is 2, expected 0..2",
          undraft_slot_export_state(pool, a, 2, UNDRAFT_STATE_VALUE_MAJOR, &state, &message));
    state.dtype = UNDRAFT_BF16;
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`to` is bf16, expected f32 with",
          undraft_slot_export_state(pool, a, 0, UNDRAFT_STATE_VALUE_MAJOR, &state, &message));
    state.dtype = UNDRAFT_F32;
    state.data = (char *)values + 2;
    FAILS(UNDRAFT_INVALID_ARGUMENT, "expected a multiple of 4",
          undraft_slot_export_state(pool, a, 0, UNDRAFT_STATE_VALUE_MAJOR, &state, &message));
    state.data = NULL;
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`from` has no data",
          undraft_slot_import_state(pool, a, 0, UNDRAFT_STATE_VALUE_MAJOR, &state, &message));
    OK(undraft_pool_free(pool, &message));
    OK(undraft_pool_free(other_pool, &message));
}

static void test_rounds(void) {
    static Buffers buffers, spare;
    undraft_pool *pool = make_pool(&model, 3, 2, UNDRAFT_F32), *other_pool = make_pool(&model, 1, 2, UNDRAFT_F32);
    const undraft_slot a = alloc_slot(pool), b = alloc_slot(pool);
    const uint64_t tokens[4] = {1, 2, 3, 4};
    undraft_round round = NO_ROUND;
    const undraft_slot pair[2] = {a, b}, twice[2] = {a, a}, one = a;
    const uint32_t windows[2] = {2, 1}, long_windows[2] = {3, 1}, two = 2, three = 3;
    undraft_round_params params = undraft_round_params_init(0, pair, windows, 2);
    const undraft_status bad = UNDRAFT_INVALID_ARGUMENT;
    FAILS(bad, "`mode` is 0", undraft_round_begin(pool, &params, &round, &message));
    params = undraft_round_params_init(UNDRAFT_VERIFY, pair, long_windows, 2);
    FAILS(bad, "window 0 has 3 tokens", undraft_round_begin(pool, &params, &round, &message));
    params = undraft_round_params_init(UNDRAFT_VERIFY, twice, windows, 2);
    FAILS(bad, "stands at [0] and again at [1]", undraft_round_begin(pool, &params, &round, &message));
    params = undraft_round_params_init(UNDRAFT_VERIFY, NULL, windows, 2);
    FAILS(bad, "`slots` is NULL", undraft_round_begin(pool, &params, &round, &message));
    params = undraft_round_params_init(UNDRAFT_VERIFY, pair, NULL, 2);
    FAILS(bad, "`windows` is NULL", undraft_round_begin(pool, &params, &round, &message));
    const int32_t wrong_parents[3] = {-1, 1, -1}, parents[3] = {-1, 0, -1};
    params = undraft_round_params_init(UNDRAFT_VERIFY, pair, windows, 2);
    params.parents = wrong_parents;
    FAILS(bad, "`parents`[0][1] is 1", undraft_round_begin(pool, &params, &round, &message));
    params = undraft_round_params_init(UNDRAFT_FINAL, pair, windows, 2);
    params.parents = parents;
    FAILS(bad, "`parents` is given, expected NULL", undraft_round_begin(pool, &params, &round, &message));
    REQUIRE(round == NO_ROUND);

    round = begin(pool, UNDRAFT_VERIFY, pair, windows, 2);
    /* What a slot of an undecided round allows: reset alone. */
    undraft_slot copy = 0;
    undraft_snapshot *snapshot = NULL;
    char text[64];
    snprintf(text, sizeof text, "slot %lld has an undecided round", (long long)a);
    FAILS(UNDRAFT_BUSY, text, undraft_slot_free(pool, a, &message));
    FAILS(UNDRAFT_BUSY, text, undraft_slot_fork(pool, a, &copy, &message));
    FAILS(UNDRAFT_BUSY, text, undraft_slots_settle(pool, &a, 1, &message));
    FAILS(UNDRAFT_BUSY, text, undraft_snapshot_new(pool, a, &snapshot, &message));
    FAILS(UNDRAFT_BUSY, text, undraft_slot_save(pool, a, "never-written.safetensors", &message));
    params = undraft_round_params_init(UNDRAFT_VERIFY, &one, &two, 1);
    FAILS(UNDRAFT_BUSY, text, undraft_round_begin(pool, &params, &round, &message));
    FAILS(UNDRAFT_BUSY, "1 undecided rounds", undraft_pool_free(pool, &message));

    const undraft_verify_args good = layer_args(&model, 0, tokens, 3, &buffers);
    undraft_verify_args args;
#define VERIFY_FAILS(status, text, change)                                                \
    do {                                                                                  \
        args = good;                                                                      \
        change;                                                                           \
        FAILS(status, text, undraft_round_verify(pool, round, 0, &args, &message));       \
    } while (0)
    VERIFY_FAILS(bad, "`layer` is NULL", args.layer = NULL);
    VERIFY_FAILS(bad, "`mixed_qkv` has shape [2, 160], expected [num_tokens=3, channels=160]",
                 args.mixed_qkv.shape[0] = 2);
    VERIFY_FAILS(bad, "`mixed_qkv` has row stride 100, expected at least the row length 160",
                 args.mixed_qkv.strides[0] = 100);
    VERIFY_FAILS(bad, "`mixed_qkv` has row stride -160", args.mixed_qkv.strides[0] = -160);
    VERIFY_FAILS(bad, "`mixed_qkv` has strides", args.mixed_qkv.strides[1] = 2);
    VERIFY_FAILS(bad, "`mixed_qkv` is i32 (4)", args.mixed_qkv.dtype = UNDRAFT_I32);
    VERIFY_FAILS(bad, "`mixed_qkv` reaches over more bytes", args.mixed_qkv.strides[0] = INT64_MAX / 2);
    VERIFY_FAILS(bad, "`a` has shape [3, 5]", args.a.shape[1] = 5);
    VERIFY_FAILS(bad, "`b` is absent", memset(&args.b, 0, sizeof args.b));
    VERIFY_FAILS(bad, "`out` overlaps with `mixed_qkv`", args.out.data = buffers.qkv);
    VERIFY_FAILS(bad, "`out` overlaps with `b`", args.out.data = buffers.b);
    VERIFY_FAILS(bad, "`out` has shape [3, -96]", args.out.shape[1] = -96);
    VERIFY_FAILS(bad, "has `num_k_heads` = 1, expected 2", args = layer_args(&model, 1, tokens, 3, &spare));
#undef VERIFY_FAILS
    FAILS(bad, "`layer` is 2, expected 0..2", undraft_round_verify(pool, round, 2, &good, &message));
    FAILS(UNDRAFT_NOT_IN_USE, "is over, or belongs to another pool",
          undraft_round_verify(other_pool, round, 0, &good, &message));
    OK(undraft_round_verify(pool, round, 0, &good, &message));
    FAILS(bad, "layer 0 was already verified", undraft_round_verify(pool, round, 0, &good, &message));

    /* A refused commit has rolled the round back; deciding it again is an error. */
    const uint32_t kept[3] = {2, 1, 0}, too_many[2] = {2, 2};
    FAILS(bad, "layer 1 was not verified", undraft_round_commit(pool, round, kept, 2, &message));
    FAILS(UNDRAFT_NOT_IN_USE, "is over", undraft_round_commit(pool, round, kept, 2, &message));
    FAILS(UNDRAFT_NOT_IN_USE, "is over", undraft_round_rollback(pool, round, &message));
    for (int i = 0; i < 4; i++) {
        round = begin(pool, UNDRAFT_VERIFY, pair, windows, 2);
        verify_all(&model, pool, round, tokens, 3, NULL);
        if (i == 0) FAILS(bad, "`num_kept` has 3 entries, expected 2", undraft_round_commit(pool, round, kept, 3, &message));
        if (i == 1) FAILS(bad, "`num_kept`[1] is 2, expected 0..=1", undraft_round_commit(pool, round, too_many, 2, &message));
        if (i == 2) FAILS(bad, "`num_kept` is NULL", undraft_round_commit(pool, round, NULL, 2, &message));
        if (i == 3) FAILS(bad, "adds up to 4", undraft_round_commit_path(pool, round, kept, too_many, 2, &message));
        FAILS(UNDRAFT_NOT_IN_USE, "is over", undraft_round_rollback(pool, round, &message));
        REQUIRE(same_states(&model, pool, a, other_pool, i == 0 ? alloc_slot(other_pool) : copy));
        if (i == 0) {
            OK(undraft_pool_free(other_pool, &message));
            other_pool = make_pool(&model, 1, 2, UNDRAFT_F32);
            copy = alloc_slot(other_pool);
        }
    }
    round = begin(pool, UNDRAFT_VERIFY, pair, windows, 2);
    verify_all(&model, pool, round, tokens, 3, NULL);
    const uint32_t path[3] = {1, 0, 0};
    FAILS(bad, "`paths`[0] has token 1 at position 0", undraft_round_commit_path(pool, round, path, kept, 2, &message));

    /* Reset ends a round, and so does rolling all back; a pool may then be freed. */
    round = begin(pool, UNDRAFT_VERIFY, pair, windows, 2);
    OK(undraft_slot_reset(pool, a, &message));
    FAILS(UNDRAFT_NOT_IN_USE, "is over", undraft_round_verify(pool, round, 0, &good, &message));
    begin(pool, UNDRAFT_VERIFY, &pair[0], &windows[0], 1);
    begin(pool, UNDRAFT_VERIFY, &pair[1], &windows[1], 1);
    FAILS(UNDRAFT_BUSY, "2 undecided rounds", undraft_pool_free(pool, &message));
    OK(undraft_pool_rollback_all(pool, &message));

    /* A prompt that is abandoned half way leaves its slot torn. */
    round = begin(pool, UNDRAFT_FINAL, &one, &three, 1);
    OK(undraft_round_verify(pool, round, 0, &good, &message));
    FAILS(bad, "keeps all its tokens", undraft_round_commit(pool, round, &two, 1, &message));
    snprintf(text, sizeof text, "slot %lld was left in the middle of a prefill", (long long)a);
    params = undraft_round_params_init(UNDRAFT_VERIFY, &one, &two, 1);
    FAILS(UNDRAFT_TORN, text, undraft_round_begin(pool, &params, &round, &message));
    FAILS(UNDRAFT_TORN, text, undraft_slots_settle(pool, &a, 1, &message));
    OK(undraft_slot_reset(pool, a, &message));
    OK(undraft_slots_settle(pool, &a, 1, &message));
    OK(undraft_pool_free(pool, &message));
    OK(undraft_pool_free(other_pool, &message));
}

static void test_names(void) {
    for (int32_t status = UNDRAFT_OK; status <= UNDRAFT_POISONED; status++) {
        REQUIRE(strncmp(undraft_status_name(status), "UNDRAFT_", 8) == 0);
    }
    REQUIRE(strcmp(undraft_status_name(-5), "a status of no name") == 0);
    REQUIRE(undraft_abi_version() == UNDRAFT_ABI_VERSION);
    REQUIRE(strchr(undraft_version(), '.') != NULL);
}

int main(void) {
    model = make_model(NULL);
    test_null();
    test_devices_and_sizes();
    test_layers();
    test_struct_sizes();
    test_slots();
    test_rounds();
    test_names();
    free_model(&model);
    puts("errors: ok");
    return 0;
}
