/* Saving and loading: slots and snapshots come back bit for bit, with what was pending; damaged files are refused. */
#include "support.h"

static const char *in(const char *dir, const char *name) {
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void test_round_trip(const Model *model, const char *dir, undraft_dtype dtype) {
    undraft_pool *pool = make_pool(model, 2, 3, dtype), *fresh = make_pool(model, 3, 5, dtype);
    const undraft_slot slot = alloc_slot(pool);
    const uint64_t tokens[6] = {1, 2, 3, 4, 5, 6};
    run_window(model, pool, slot, tokens, 3, 2, NULL); /* pending when it is saved */
    OK(undraft_slot_save(pool, slot, in(dir, "slot.safetensors"), &message));
    undraft_slot loaded;
    OK(undraft_slot_load(fresh, in(dir, "slot.safetensors"), &loaded, &message));
    REQUIRE(same_states(model, pool, slot, fresh, loaded));

    undraft_snapshot *snapshot = NULL, *read = NULL;
    OK(undraft_snapshot_new(pool, slot, &snapshot, &message));
    OK(undraft_snapshot_save(snapshot, in(dir, "snapshot.safetensors"), &message));
    OK(undraft_snapshot_load(in(dir, "snapshot.safetensors"), &read, &message));
    const undraft_slot restored = alloc_slot(fresh);
    OK(undraft_snapshot_restore(read, fresh, restored, &message));

    /* All three go on alike, also after the pool that they came from has moved on. */
    run_window(model, pool, slot, tokens + 2, 3, 3, NULL);
    run_window(model, fresh, loaded, tokens + 2, 3, 3, NULL);
    run_window(model, fresh, restored, tokens + 2, 3, 3, NULL);
    REQUIRE(same_states(model, pool, slot, fresh, loaded) && same_states(model, pool, slot, fresh, restored));
    OK(undraft_snapshot_restore(snapshot, pool, slot, &message));
    REQUIRE(!same_states(model, pool, slot, fresh, loaded));
    undraft_snapshot_free(snapshot);
    undraft_snapshot_free(read);
    OK(undraft_pool_free(pool, &message));
    OK(undraft_pool_free(fresh, &message));
}

/* A state goes out in each layout and dtype and comes back in. */
static void test_layouts(const Model *model) {
    static float value_major[MAX_SIZE], key_major[MAX_SIZE], time_major[MAX_SIZE], channel_major[MAX_SIZE];
    static uint16_t narrow[MAX_SIZE], again[MAX_SIZE];
    undraft_pool *pool = make_pool(model, 2, 3, UNDRAFT_F32), *half = make_pool(model, 2, 3, UNDRAFT_BF16);
    const undraft_slot slot = alloc_slot(pool), other = alloc_slot(pool), rounded = alloc_slot(half);
    const uint64_t tokens[3] = {1, 2, 3};
    run_window(model, pool, slot, tokens, 3, 3, NULL);
    for (size_t layer = 0; layer < NUM_LAYERS; layer++) {
        const undraft_gdn_dims *dims = &model->dims[layer];
        const int64_t hv = dims->num_v_heads, k = dims->head_k_dim, v = dims->head_v_dim, taps = dims->conv_width - 1;
        const int64_t c = (int64_t)model->sizes[layer].conv_dim;
        const int64_t by_value[3] = {hv, v, k}, by_key[3] = {hv, k, v};
        const undraft_tensor values = undraft_tensor_nd(value_major, UNDRAFT_F32, 3, by_value);
        const undraft_tensor keys = undraft_tensor_nd(key_major, UNDRAFT_F32, 3, by_key);
        OK(undraft_slot_export_state(pool, slot, layer, UNDRAFT_STATE_VALUE_MAJOR, &values, &message));
        OK(undraft_slot_export_state(pool, slot, layer, UNDRAFT_STATE_KEY_MAJOR, &keys, &message));
        for (int64_t h = 0; h < hv; h++)
            for (int64_t i = 0; i < v; i++)
                for (int64_t j = 0; j < k; j++)
                    REQUIRE(value_major[(h * v + i) * k + j] == key_major[(h * k + j) * v + i]);
        OK(undraft_slot_import_state(pool, other, layer, UNDRAFT_STATE_KEY_MAJOR, &keys, &message));

        const undraft_tensor times = undraft_tensor_2d(time_major, UNDRAFT_F32, taps, c);
        const undraft_tensor channels = undraft_tensor_2d(channel_major, UNDRAFT_F32, c, taps);
        OK(undraft_slot_export_conv(pool, slot, layer, UNDRAFT_CONV_TIME_MAJOR, &times, &message));
        OK(undraft_slot_export_conv(pool, slot, layer, UNDRAFT_CONV_CHANNEL_MAJOR, &channels, &message));
        for (int64_t t = 0; t < taps; t++)
            for (int64_t i = 0; i < c; i++) REQUIRE(time_major[t * c + i] == channel_major[i * taps + t]);
        OK(undraft_slot_import_conv(pool, other, layer, UNDRAFT_CONV_CHANNEL_MAJOR, &channels, &message));

        /* f32 into a bf16 pool rounds to nearest even; bf16 out and in again loses nothing. */
        const undraft_tensor out = undraft_tensor_nd(narrow, UNDRAFT_BF16, 3, by_value);
        const undraft_tensor back = undraft_tensor_nd(again, UNDRAFT_BF16, 3, by_value);
        OK(undraft_slot_import_state(half, rounded, layer, UNDRAFT_STATE_VALUE_MAJOR, &values, &message));
        OK(undraft_slot_export_state(half, rounded, layer, UNDRAFT_STATE_VALUE_MAJOR, &out, &message));
        for (int64_t i = 0; i < hv * v * k; i++) {
            uint32_t bits;
            memcpy(&bits, &value_major[i], 4);
            REQUIRE(narrow[i] == (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16));
        }
        OK(undraft_slot_import_state(half, rounded, layer, UNDRAFT_STATE_VALUE_MAJOR, &out, &message));
        OK(undraft_slot_export_state(half, rounded, layer, UNDRAFT_STATE_VALUE_MAJOR, &back, &message));
        REQUIRE(memcmp(narrow, again, (size_t)(hv * v * k) * sizeof *narrow) == 0);
    }
    REQUIRE(same_states(model, pool, slot, pool, other));
    OK(undraft_pool_free(pool, &message));
    OK(undraft_pool_free(half, &message));
}

static void test_bad_files(const Model *model, const char *dir) {
    undraft_pool *pool = make_pool(model, 1, 3, UNDRAFT_F32), *half = make_pool(model, 1, 3, UNDRAFT_F16);
    const undraft_slot slot = alloc_slot(pool);
    undraft_slot loaded = 0;
    undraft_snapshot *snapshot = NULL;
    OK(undraft_slot_save(pool, slot, in(dir, "good.safetensors"), &message));
    FAILS(UNDRAFT_NO_FREE_SLOT, "all 1 slots", undraft_slot_load(pool, in(dir, "good.safetensors"), &loaded, &message));
    FAILS(UNDRAFT_INVALID_ARGUMENT, "f16", undraft_slot_load(half, in(dir, "good.safetensors"), &loaded, &message));
    FAILS(UNDRAFT_FILE, "cannot read", undraft_slot_load(half, in(dir, "absent"), &loaded, &message));
    FAILS(UNDRAFT_FILE, "cannot write", undraft_slot_save(pool, slot, in(dir, "absent/slot"), &message));
    FAILS(UNDRAFT_FILE, "cannot read", undraft_snapshot_load(in(dir, "absent"), &snapshot, &message));
    FILE *file = fopen(in(dir, "damaged.safetensors"), "wb");
    REQUIRE(file != NULL && fwrite("\x08\0\0\0\0\0\0\0{}      ", 1, 16, file) == 16 && fclose(file) == 0);
    FAILS(UNDRAFT_NOT_A_SNAPSHOT, "metadata.format", undraft_slot_load(half, in(dir, "damaged.safetensors"), &loaded, &message));
    FAILS(UNDRAFT_NOT_A_SNAPSHOT, "metadata.format", undraft_snapshot_load(in(dir, "damaged.safetensors"), &snapshot, &message));
    /* A pool of other layers. */
    undraft_pool_config config = undraft_pool_config_init(model->dims, 1, 1, 3);
    undraft_pool *shallow = NULL;
    OK(undraft_pool_new(model->device, &config, &shallow, &message));
    FAILS(UNDRAFT_NOT_A_SNAPSHOT, "has 2 layers, expected 1",
          undraft_slot_load(shallow, in(dir, "good.safetensors"), &loaded, &message));
    undraft_pool_info info = undraft_pool_info_init();
    OK(undraft_pool_get_info(shallow, &info, &message));
    REQUIRE(info.num_free_slots == 1 && loaded == 0 && snapshot == NULL);
    OK(undraft_pool_free(shallow, &message));
    OK(undraft_pool_free(pool, &message));
    OK(undraft_pool_free(half, &message));
}

int main(int argc, char **argv) {
    REQUIRE(argc == 2); /* a folder to write to */
    Model model = make_model(NULL);
    test_round_trip(&model, argv[1], UNDRAFT_F32);
    test_round_trip(&model, argv[1], UNDRAFT_BF16);
    test_layouts(&model);
    test_bad_files(&model, argv[1]);
    free_model(&model);
    puts("files: ok");
    return 0;
}
