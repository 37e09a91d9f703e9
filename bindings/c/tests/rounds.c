/* Windows, commits and rollbacks against plain decoding, bit for bit: outputs, recurrent and convolution states. */
#include "support.h"

enum { MAX_WINDOW = 5, MAX_OUT = 2 * MAX_TOKENS * 128 };

static uint64_t random_state = 7;

static uint32_t below(uint32_t n) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 33) % n);
}

/* A token decoded plainly: a window of one that stays. */
static void decode(const Model *model, undraft_pool *pool, undraft_slot slot, uint64_t token, float *outs) {
    run_window(model, pool, slot, &token, 1, 1, outs);
}

/* Output of token `t` of a window of `n`, in every layer, against that of its decoding. */
static void require_same_outputs(const Model *model, const float *window, uint32_t n, uint32_t t, const float *decoded) {
    for (int layer = 0; layer < NUM_LAYERS; layer++) {
        const size_t row = model->sizes[layer].value_dim;
        REQUIRE(memcmp(window + t * row, decoded, row * sizeof *window) == 0);
        window += n * row;
        decoded += row;
    }
}

/* Histories of windows of which any number of tokens stays, on two slots at once, with padding between them. */
static void test_histories(const Model *model, undraft_dtype dtype) {
    static float outs[MAX_OUT], decoded[MAX_OUT];
    undraft_pool *pool = make_pool(model, 3, MAX_WINDOW, dtype), *plain = make_pool(model, 3, 1, dtype);
    undraft_slot slots[3], reference[3], ahead;
    for (int s = 0; s < 3; s++) {
        slots[s] = s == 1 ? UNDRAFT_PAD_SLOT : alloc_slot(pool);
        reference[s] = s == 1 ? UNDRAFT_PAD_SLOT : alloc_slot(plain);
    }
    uint64_t next = 1;
    for (int step = 0; step < 60; step++) {
        uint64_t tokens[3 * MAX_WINDOW];
        uint32_t windows[3], num_kept[3], n = 0;
        for (int s = 0; s < 3; s++) {
            windows[s] = below(MAX_WINDOW + 1);
            num_kept[s] = below(windows[s] + 1);
            for (uint32_t t = 0; t < windows[s]; t++) tokens[n++] = next++;
        }
        const undraft_round round = begin(pool, UNDRAFT_VERIFY, slots, windows, 3);
        verify_all(model, pool, round, tokens, n, outs);
        const int roll_back = below(4) == 0;
        if (roll_back) {
            OK(undraft_round_rollback(pool, round, &message));
        } else {
            OK(undraft_round_commit(pool, round, num_kept, 3, &message));
        }
        uint32_t t = 0;
        for (int s = 0; s < 3; s++) {
            if (s == 1) {
                t += windows[s];
                continue;
            }
            /* All tokens are decoded for their outputs, on a copy; those that stay on the slot itself. */
            OK(undraft_slot_fork(plain, reference[s], &ahead, &message));
            for (uint32_t i = 0; i < windows[s]; i++, t++) {
                decode(model, plain, ahead, tokens[t], decoded);
                require_same_outputs(model, outs, n, t, decoded);
                if (!roll_back && i < num_kept[s]) decode(model, plain, reference[s], tokens[t], NULL);
            }
            OK(undraft_slot_free(plain, ahead, &message));
            /* Reading a state settles it; now and then only, so that commits stay lazy in between. */
            if (step % 5 == 4) REQUIRE(same_states(model, pool, slots[s], plain, reference[s]));
        }
    }
    OK(undraft_slots_settle(pool, slots, 1, &message));
    REQUIRE(same_states(model, pool, slots[0], plain, reference[0]));
    OK(undraft_pool_free(pool, &message));
    OK(undraft_pool_free(plain, &message));
}

/* A window that is verified and rolled back, and one of which no token stays, leave every bit. */
static void test_rollback(const Model *model) {
    static float before[MAX_SIZE], after[MAX_SIZE];
    undraft_pool *pool = make_pool(model, 1, 4, UNDRAFT_F32);
    const undraft_slot slot = alloc_slot(pool);
    const uint64_t tokens[4] = {1, 2, 3, 4};
    run_window(model, pool, slot, tokens, 4, 3, NULL);
    const size_t bytes = read_states(model, pool, slot, before);
    const uint32_t window = 4;
    const undraft_round round = begin(pool, UNDRAFT_VERIFY, &slot, &window, 1);
    verify_all(model, pool, round, tokens, 4, NULL);
    OK(undraft_round_rollback(pool, round, &message));
    REQUIRE(read_states(model, pool, slot, after) == bytes && memcmp(before, after, bytes) == 0);
    run_window(model, pool, slot, tokens, 4, 0, NULL);
    REQUIRE(read_states(model, pool, slot, after) == bytes && memcmp(before, after, bytes) == 0);
    OK(undraft_pool_free(pool, &message));
}

/* Every node of a tree is decoding along its path; a path that is kept leaves what its tokens leave. */
static void test_trees(const Model *model) {
    static float outs[MAX_OUT], decoded[MAX_OUT];
    undraft_pool *pool = make_pool(model, 2, 6, UNDRAFT_F32), *plain = make_pool(model, 3, 1, UNDRAFT_F32);
    const undraft_slot slots[2] = {alloc_slot(pool), alloc_slot(pool)};
    const undraft_slot reference[2] = {alloc_slot(plain), alloc_slot(plain)};
    const uint32_t windows[2] = {6, 2};
    const int32_t parents[8] = {-1, 0, 0, 2, 2, -1, -1, 0};
    const uint32_t paths[5] = {0, 2, 4, 0, 1}, num_kept[2] = {3, 2};
    uint64_t tokens[8];
    for (uint64_t round_number = 0; round_number < 3; round_number++) {
        for (uint64_t t = 0; t < 8; t++) tokens[t] = 100 * round_number + t;
        undraft_round_params params = undraft_round_params_init(UNDRAFT_VERIFY, slots, windows, 2);
        params.parents = parents;
        undraft_round round;
        OK(undraft_round_begin(pool, &params, &round, &message));
        verify_all(model, pool, round, tokens, 8, outs);
        for (uint32_t t = 0; t < 8; t++) {
            const uint32_t first = t < 6 ? 0 : 6, s = t < 6 ? 0 : 1;
            uint32_t path[6], depth = 0;
            for (int32_t node = (int32_t)(t - first); node >= 0; node = parents[first + (uint32_t)node]) {
                path[depth++] = first + (uint32_t)node;
            }
            undraft_slot ahead;
            OK(undraft_slot_fork(plain, reference[s], &ahead, &message));
            while (depth > 0) decode(model, plain, ahead, tokens[path[--depth]], decoded);
            require_same_outputs(model, outs, 8, t, decoded);
            OK(undraft_slot_free(plain, ahead, &message));
        }
        OK(undraft_round_commit_path(pool, round, paths, num_kept, 2, &message));
        for (int i = 0; i < 3; i++) decode(model, plain, reference[0], tokens[paths[i]], NULL);
        for (int i = 3; i < 5; i++) decode(model, plain, reference[1], tokens[6 + paths[i]], NULL);
    }
    for (int s = 0; s < 2; s++) REQUIRE(same_states(model, pool, slots[s], plain, reference[s]));
    OK(undraft_pool_free(pool, &message));
    OK(undraft_pool_free(plain, &message));
}

/* A prompt through UNDRAFT_FINAL is decoding; one through UNDRAFT_PREFILL is close. Both beside an undecided window. */
static void test_prompts(const Model *model) {
    static float outs[MAX_OUT], decoded[MAX_OUT];
    undraft_pool *pool = make_pool(model, 3, 3, UNDRAFT_F32), *plain = make_pool(model, 1, 1, UNDRAFT_F32);
    const undraft_slot drafting = alloc_slot(pool), final = alloc_slot(pool), prefill = alloc_slot(pool);
    const undraft_slot reference = alloc_slot(plain);
    uint64_t tokens[20];
    for (uint64_t t = 0; t < 20; t++) tokens[t] = t + 1;
    const uint32_t n = 20, window = 3, two = 2;
    /* Layer by layer, as an engine runs a mixed batch. */
    const undraft_round rounds[3] = {begin(pool, UNDRAFT_VERIFY, &drafting, &window, 1),
                                     begin(pool, UNDRAFT_FINAL, &final, &n, 1),
                                     begin(pool, UNDRAFT_PREFILL, &prefill, &n, 1)};
    static Buffers buffers;
    for (int layer = 0; layer < NUM_LAYERS; layer++) {
        for (int r = 0; r < 3; r++) {
            undraft_verify_args args = layer_args(model, layer, tokens, r == 0 ? window : n, &buffers);
            OK(undraft_round_verify(pool, rounds[r], (size_t)layer, &args, &message));
            if (layer == 0 && r == 1) memcpy(outs, buffers.out, n * model->sizes[0].value_dim * sizeof *outs);
            if (layer == 0 && r == 2) {
                for (size_t i = 0; i < n * model->sizes[0].value_dim; i++) {
                    const float error = buffers.out[i] - outs[i];
                    REQUIRE(error < 1e-5f && error > -1e-5f);
                }
            }
        }
    }
    OK(undraft_round_commit(pool, rounds[0], &two, 1, &message));
    OK(undraft_round_commit(pool, rounds[1], &n, 1, &message));
    OK(undraft_round_commit(pool, rounds[2], &n, 1, &message));
    for (uint32_t t = 0; t < n; t++) {
        decode(model, plain, reference, tokens[t], decoded);
        const size_t row = model->sizes[0].value_dim;
        REQUIRE(memcmp(outs + t * row, decoded, row * sizeof *outs) == 0);
        if (t == 1) REQUIRE(same_states(model, pool, drafting, plain, reference));
    }
    REQUIRE(same_states(model, pool, final, plain, reference));
    OK(undraft_pool_free(pool, &message));
    OK(undraft_pool_free(plain, &message));
}

/* Strided and 16-bit tensors give what contiguous ones of the same values give. */
static void test_strides_and_dtypes(const Model *model) {
    static Buffers buffers;
    static float wide[2 * 300], out[2 * 200], expected[2 * 128];
    static uint16_t narrow[2 * 256], narrow_out[2 * 128];
    undraft_pool *pool = make_pool(model, 1, 2, UNDRAFT_F32);
    const undraft_slot slot = alloc_slot(pool);
    const uint64_t tokens[2] = {1, 2};
    const uint32_t n = 2;
    const size_t c = model->sizes[0].conv_dim, row = model->sizes[0].value_dim;
    undraft_verify_args args = layer_args(model, 0, tokens, n, &buffers);
    for (size_t i = 0; i < n * c; i++) {
        uint32_t bits; /* cut to bf16, so that both dtypes hold the same numbers */
        memcpy(&bits, &buffers.qkv[i], 4);
        bits &= 0xffff0000u;
        memcpy(&buffers.qkv[i], &bits, 4);
        narrow[i] = (uint16_t)(bits >> 16);
        wide[i / c * 300 + i % c] = buffers.qkv[i];
    }
    for (int form = 0; form < 3; form++) {
        const undraft_round round = begin(pool, UNDRAFT_VERIFY, &slot, &n, 1);
        const int64_t shape[3] = {2, model->dims[0].num_v_heads, model->dims[0].head_v_dim};
        if (form == 1) {
            args.mixed_qkv = undraft_tensor_rows(wide, UNDRAFT_F32, 2, (int64_t)c, 300);
            args.out = undraft_tensor_nd(out, UNDRAFT_F32, 3, shape);
            args.out.strides[0] = 200;
        }
        if (form == 2) {
            args.mixed_qkv = undraft_tensor_2d(narrow, UNDRAFT_BF16, 2, (int64_t)c);
            args.out = undraft_tensor_nd(narrow_out, UNDRAFT_BF16, 3, shape);
        }
        OK(undraft_round_verify(pool, round, 0, &args, &message));
        if (form == 0) memcpy(expected, buffers.out, n * row * sizeof *expected);
        for (size_t i = 0; i < n * row; i++) {
            if (form == 1) REQUIRE(memcmp(&out[i / row * 200 + i % row], &expected[i], 4) == 0);
            if (form == 2) {
                const uint32_t bits = (uint32_t)narrow_out[i] << 16;
                float value;
                memcpy(&value, &bits, 4);
                const float error = value - expected[i], bound = expected[i] / 256.0f;
                REQUIRE(error * error <= bound * bound);
            }
        }
        OK(undraft_round_rollback(pool, round, &message));
    }
    OK(undraft_pool_free(pool, &message));
}

int main(void) {
    undraft_device_options options = undraft_device_options_init();
    options.num_threads = 2;
    Model model = make_model(&options);
    test_histories(&model, UNDRAFT_F32);
    test_histories(&model, UNDRAFT_BF16);
    test_histories(&model, UNDRAFT_F16);
    test_rollback(&model);
    test_trees(&model);
    test_prompts(&model);
    test_strides_and_dtypes(&model);
    free_model(&model);
    puts("rounds: ok");
    return 0;
}
