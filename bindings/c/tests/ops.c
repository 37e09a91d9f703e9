/* The single operations: windows against single tokens and replays, bit for bit; the others against plain loops. */
#include <math.h>

#include "support.h"

enum { H = 2, HV = 4, K = 16, V = 8, W = 4, C = 2 * H * K + HV * V, N = 6, SLOTS = 3, STATE = HV * V * K };

static undraft_device *device;

static float q[N * H * K], k[N * H * K], v[N * HV * V], g[N * HV], beta[N * HV];

static undraft_tensor f32(const float *data, uint32_t ndim, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t shape[4] = {a, b, c, d};
    return undraft_tensor_nd(data, UNDRAFT_F32, ndim, shape);
}

static int is_near(double x, double y) {
    return fabs(x - y) <= 1e-5 * (1.0 + fabs(y));
}

/* Tokens `first` .. `first + n` as one sequence on a slot. */
static undraft_delta_rule_inputs inputs(int first, int n, const int32_t *cu_seqlens, const int32_t *slot) {
    undraft_delta_rule_inputs in = undraft_delta_rule_inputs_init(undraft_gdn_dims_init(H, HV, K, V, 0), UNDRAFT_DECAY_LOG,
                                                                  UNDRAFT_BETA_VALUE);
    in.q = f32(q + first * H * K, 3, n, H, K, 0);
    in.k = f32(k + first * H * K, 3, n, H, K, 0);
    in.v = f32(v + first * HV * V, 3, n, HV, V, 0);
    in.decay = f32(g + first * HV, 2, n, HV, 0, 0);
    in.beta = f32(beta + first * HV, 2, n, HV, 0, 0);
    in.cu_seqlens = undraft_tensor_1d(cu_seqlens, UNDRAFT_I32, 2);
    in.state_indices = undraft_tensor_1d(slot, UNDRAFT_I32, 1);
    return in;
}

static void test_delta_rule(void) {
    static float plain[SLOTS * STATE], state[SLOTS * STATE], before[SLOTS * STATE], captured[N * STATE];
    static float log_k[SLOTS * N * H * K], log_decay[SLOTS * N * HV], log_delta[SLOTS * N * HV * V];
    static float out[N * HV * V], window[N * HV * V], after[N + 1][SLOTS * STATE];
    const int32_t one[2] = {0, 1}, all[2] = {0, N}, slot = 1;
    fill(1, q, N * H * K);
    fill(2, k, N * H * K);
    fill(3, v, N * HV * V);
    fill(4, g, N * HV);
    fill(5, beta, N * HV);
    fill(6, plain, SLOTS * STATE);
    for (int i = 0; i < N * HV; i++) g[i] = -fabsf(g[i]), beta[i] = fabsf(beta[i]);
    memcpy(before, plain, sizeof before);
    memcpy(state, plain, sizeof state);
    memcpy(after[0], plain, sizeof after[0]);
    const undraft_tensor states = f32(state, 4, SLOTS, HV, V, K);
    undraft_fused_recurrent_args args;
    for (int t = 0; t < N; t++) {
        args = undraft_fused_recurrent_args_init(inputs(t, 1, one, &slot));
        args.capture = UNDRAFT_CAPTURE_FINAL;
        args.state = f32(plain, 4, SLOTS, HV, V, K);
        args.out = f32(out + t * HV * V, 3, 1, HV, V, 0);
        OK(undraft_fused_recurrent_gated_delta_rule(device, &args, &message));
        memcpy(after[t + 1], plain, sizeof plain);
    }

    const undraft_delta_log log = {f32(log_k, 4, SLOTS, N, H, K), f32(log_decay, 3, SLOTS, N, HV, 0), f32(log_delta, 4, SLOTS, N, HV, V)};
    args = undraft_fused_recurrent_args_init(inputs(0, N, all, &slot));
    args.state = states;
    args.log = log;
    args.out = f32(window, 2, N, HV * V, 0, 0);
    OK(undraft_fused_recurrent_gated_delta_rule(device, &args, &message));
    REQUIRE(memcmp(out, window, sizeof out) == 0 && memcmp(state, before, sizeof state) == 0);
    for (uint32_t kept = 0; kept <= N; kept++) {
        undraft_commit_states_args commit = undraft_commit_states_args_init(args.inputs.dims);
        memcpy(state, before, sizeof state);
        commit.state = states;
        commit.log = log;
        commit.state_indices = args.inputs.state_indices;
        commit.num_kept = undraft_tensor_1d(&kept, UNDRAFT_U32, 1);
        OK(undraft_commit_states(device, &commit, &message));
        REQUIRE(memcmp(state, after[kept], sizeof state) == 0);
    }

    /* Lazily: the next window replays what stays. */
    const uint32_t two = 2;
    memcpy(state, before, sizeof state);
    args.inputs = inputs(2, 1, one, &slot);
    args.num_pending = undraft_tensor_1d(&two, UNDRAFT_U32, 1);
    args.out = f32(window, 3, 1, HV, V, 0);
    OK(undraft_fused_recurrent_gated_delta_rule(device, &args, &message));
    REQUIRE(memcmp(state, after[2], sizeof state) == 0 && memcmp(window, out + 2 * HV * V, HV * V * sizeof *out) == 0);

    /* A state a token. */
    const int64_t shape[5] = {1, N, HV, V, K};
    args = undraft_fused_recurrent_args_init(inputs(0, N, all, &slot));
    args.capture = UNDRAFT_CAPTURE_PER_TOKEN;
    args.state = f32(before, 4, SLOTS, HV, V, K);
    args.capture_states = undraft_tensor_nd(captured, UNDRAFT_F32, 5, shape);
    args.out = f32(window, 3, N, HV, V, 0);
    OK(undraft_fused_recurrent_gated_delta_rule(device, &args, &message));
    for (int t = 0; t < N; t++) REQUIRE(memcmp(captured + t * STATE, after[t + 1] + STATE, STATE * sizeof *captured) == 0);

    /* The matrix form, with a checkpoint after every 4 tokens. */
    undraft_chunk_args chunk = undraft_chunk_args_init(args.inputs);
    memcpy(state, before, sizeof state);
    chunk.state = states;
    chunk.checkpoints = f32(captured, 4, 1, HV, V, K);
    chunk.checkpoint_every = 4;
    chunk.out = args.out;
    OK(undraft_chunk_gated_delta_rule(device, &chunk, &message));
    for (int i = 0; i < N * HV * V; i++) REQUIRE(is_near(window[i], out[i]));
    for (int i = 0; i < SLOTS * STATE; i++) REQUIRE(is_near(state[i], after[N][i]));
    for (int i = 0; i < STATE; i++) REQUIRE(is_near(captured[i], after[4][STATE + i]));

    /* Padding: nothing is read or written, outputs are zero. */
    const int32_t pad = -1;
    args = undraft_fused_recurrent_args_init(inputs(0, N, all, &pad));
    args.capture = UNDRAFT_CAPTURE_FINAL;
    args.state = f32(before, 4, SLOTS, HV, V, K);
    args.out = f32(window, 3, N, HV, V, 0);
    OK(undraft_fused_recurrent_gated_delta_rule(device, &args, &message));
    for (int i = 0; i < N * HV * V; i++) REQUIRE(window[i] == 0.0f);
    REQUIRE(memcmp(before, after[0], sizeof before) == 0);

    undraft_fused_recurrent_args bad;
#define FUSED_FAILS(status, text, change)                                                     \
    do {                                                                                      \
        bad = args;                                                                           \
        change;                                                                               \
        FAILS(status, text, undraft_fused_recurrent_gated_delta_rule(device, &bad, &message)); \
    } while (0)
    const int32_t short_seqlens[2] = {0, N - 1}, far = SLOTS;
    FUSED_FAILS(UNDRAFT_INVALID_ARGUMENT, "`cu_seqlens` ends with 5, expected num_tokens = 6",
                bad.inputs.cu_seqlens = undraft_tensor_1d(short_seqlens, UNDRAFT_I32, 2));
    FUSED_FAILS(UNDRAFT_INVALID_ARGUMENT, "`state_indices`[0] is 3, expected -1 (padding) or 0..3",
                bad.inputs.state_indices = undraft_tensor_1d(&far, UNDRAFT_I32, 1));
    FUSED_FAILS(UNDRAFT_INVALID_ARGUMENT, "`decay_form` is 0", bad.inputs.decay_form = 0);
    FUSED_FAILS(UNDRAFT_INVALID_ARGUMENT, "`beta_form` is 3", bad.inputs.beta_form = 3);
    FUSED_FAILS(UNDRAFT_INVALID_ARGUMENT, "`a_log` is absent", bad.inputs.decay_form = UNDRAFT_DECAY_GATE);
    FUSED_FAILS(UNDRAFT_INVALID_ARGUMENT, "expected neither", bad.inputs.a_log = undraft_tensor_1d(beta, UNDRAFT_F32, HV));
    FUSED_FAILS(UNDRAFT_INVALID_ARGUMENT, "`capture` is 0", bad.capture = 0);
    FUSED_FAILS(UNDRAFT_INVALID_ARGUMENT, "`log` is missing", bad.capture = UNDRAFT_CAPTURE_DELTA_LOG;
                bad.inputs.state_indices = undraft_tensor_1d(&slot, UNDRAFT_I32, 1));
    FUSED_FAILS(UNDRAFT_INVALID_ARGUMENT, "`capture_states` is absent", bad.capture = UNDRAFT_CAPTURE_PER_TOKEN);
    FUSED_FAILS(UNDRAFT_INVALID_ARGUMENT, "`capture_states` is given", bad.capture_states = bad.state);
    FUSED_FAILS(UNDRAFT_INVALID_ARGUMENT, "`log.decay` is absent", bad.log.k = log.k);
    FUSED_FAILS(UNDRAFT_INVALID_ARGUMENT, "`out` overlaps with `state`", bad.out.data = bad.state.data);
    FUSED_FAILS(UNDRAFT_INVALID_ARGUMENT, "`q` has shape [6, 2, 15]", bad.inputs.q.shape[2] = 15);
    FUSED_FAILS(UNDRAFT_INVALID_ARGUMENT, "`state_indices` is f32 (1), expected one of i32", bad.inputs.state_indices.dtype = UNDRAFT_F32);
#undef FUSED_FAILS
}

static void test_convolution(void) {
    static float x[N * C], weight[C * W], taps[W * C], bias[C], single[N * C], window[N * C], out[N * C];
    static float state[SLOTS * (W - 1) * C], plain[SLOTS * (W - 1) * C], log_x[SLOTS * N * C];
    const int32_t one[2] = {0, 1}, all[2] = {0, N}, slot = 2;
    fill(10, x, N * C);
    fill(11, weight, C * W);
    fill(12, bias, C);
    fill(13, plain, SLOTS * (W - 1) * C);
    memcpy(state, plain, sizeof state);
    const undraft_tensor by_channel = f32(weight, 3, C, 1, W, 0), by_tap = f32(taps, 2, W, C, 0, 0);
    OK(undraft_convert_conv_weight(&by_channel, &by_tap, &message));
    for (int c = 0; c < C; c++)
        for (int j = 0; j < W; j++) REQUIRE(taps[j * C + c] == weight[c * W + j]);

    undraft_causal_conv1d_update_args args = undraft_causal_conv1d_update_args_init();
    args.weight = by_tap;
    args.bias = undraft_tensor_1d(bias, UNDRAFT_F32, C);
    args.state_indices = undraft_tensor_1d(&slot, UNDRAFT_I32, 1);
    args.capture = UNDRAFT_CAPTURE_FINAL;
    args.cu_seqlens = undraft_tensor_1d(one, UNDRAFT_I32, 2);
    args.state = f32(plain, 3, SLOTS, W - 1, C, 0);
    for (int t = 0; t < N; t++) {
        double y[C];
        for (int c = 0; c < C; c++) {
            y[c] = bias[c] + (double)taps[(W - 1) * C + c] * x[t * C + c];
            for (int j = 0; j < W - 1; j++) y[c] += (double)taps[j * C + c] * plain[(slot * (W - 1) + j) * C + c];
        }
        args.x = f32(x + t * C, 2, 1, C, 0, 0);
        args.out = f32(single + t * C, 2, 1, C, 0, 0);
        OK(undraft_causal_conv1d_update(device, &args, &message));
        for (int c = 0; c < C; c++) REQUIRE(is_near(single[t * C + c], y[c] / (1.0 + exp(-y[c]))));
    }
    args.capture = UNDRAFT_CAPTURE_DELTA_LOG;
    args.cu_seqlens = undraft_tensor_1d(all, UNDRAFT_I32, 2);
    args.state = f32(state, 3, SLOTS, W - 1, C, 0);
    args.log_x = f32(log_x, 3, SLOTS, N, C, 0);
    args.x = f32(x, 2, N, C, 0, 0);
    args.out = f32(window, 2, N, C, 0, 0);
    OK(undraft_causal_conv1d_update(device, &args, &message));
    REQUIRE(memcmp(window, single, sizeof window) == 0 && memcmp(state, plain, sizeof state) != 0);
    undraft_causal_conv1d_fn_args prompt = undraft_causal_conv1d_fn_args_init();
    prompt.x = args.x;
    prompt.weight = args.weight;
    prompt.bias = args.bias;
    prompt.cu_seqlens = args.cu_seqlens;
    prompt.state_indices = args.state_indices;
    prompt.state = args.state;
    prompt.out = f32(out, 2, N, C, 0, 0);
    OK(undraft_causal_conv1d_fn(device, &prompt, &message));
    REQUIRE(memcmp(out, single, sizeof out) == 0 && memcmp(state, plain, sizeof state) == 0);

    prompt.activation = 0;
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`activation` is 0", undraft_causal_conv1d_fn(device, &prompt, &message));
    args.log_x = f32(log_x, 3, SLOTS, N - 1, C, 0);
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`windows`[0] is 6 tokens, expected at most `max_tokens` = 5",
          undraft_causal_conv1d_update(device, &args, &message));
    args.weight = f32(taps, 2, W, C - 1, 0, 0);
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`weight` has shape", undraft_causal_conv1d_update(device, &args, &message));
}

static void test_gating_and_norm(void) {
    static float a[N * HV], b[N * HV], a_log[HV], dt_bias[HV], decay[N * HV], strength[N * HV];
    static float x[N * HV * V], z[N * HV * V], weight[V], out[N * HV * V];
    fill(20, a, N * HV);
    fill(21, b, N * HV);
    fill(22, a_log, HV);
    fill(23, dt_bias, HV);
    undraft_fused_gdn_gating_args args = undraft_fused_gdn_gating_args_init();
    args.a = f32(a, 2, N, HV, 0, 0);
    args.b = f32(b, 2, N, HV, 0, 0);
    args.a_log = undraft_tensor_1d(a_log, UNDRAFT_F32, HV);
    args.dt_bias = undraft_tensor_1d(dt_bias, UNDRAFT_F32, HV);
    args.g = f32(decay, 2, N, HV, 0, 0);
    args.beta = f32(strength, 2, N, HV, 0, 0);
    OK(undraft_fused_gdn_gating(device, &args, &message));
    for (int i = 0; i < N * HV; i++) {
        REQUIRE(is_near(decay[i], -exp(a_log[i % HV]) * log1p(exp((double)a[i] + dt_bias[i % HV]))));
        REQUIRE(is_near(strength[i], 1.0 / (1.0 + exp(-(double)b[i]))));
    }
    args.g.shape[0] = N - 1;
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`g` has shape [5, 4]", undraft_fused_gdn_gating(device, &args, &message));

    fill(24, x, N * HV * V);
    fill(25, z, N * HV * V);
    fill(26, weight, V);
    undraft_rms_norm_gated_args norm = undraft_rms_norm_gated_args_init();
    norm.x = f32(x, 3, N, HV, V, 0);
    norm.z = f32(z, 2, N, HV * V, 0, 0);
    norm.weight = undraft_tensor_1d(weight, UNDRAFT_F32, V);
    norm.out = f32(out, 3, N, HV, V, 0);
    OK(undraft_rms_norm_gated(device, &norm, &message));
    for (int i = 0; i < N * HV * V; i++) {
        double mean = 0.0;
        for (int j = 0; j < V; j++) mean += (double)x[i / V * V + j] * x[i / V * V + j] / V;
        REQUIRE(is_near(out[i], x[i] / sqrt(mean + 1e-6) * weight[i % V] * z[i] / (1.0 + exp(-(double)z[i]))));
    }
    norm.eps = -1.0f;
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`eps` is -1", undraft_rms_norm_gated(device, &norm, &message));
}

static void test_conversions(void) {
    static float a[STATE], b[STATE], again[STATE];
    fill(30, a, STATE);
    const undraft_tensor by_value = f32(a, 3, HV, V, K, 0), by_key = f32(b, 3, HV, K, V, 0), back = f32(again, 3, HV, V, K, 0);
    OK(undraft_convert_state(UNDRAFT_STATE_VALUE_MAJOR, &by_value, UNDRAFT_STATE_KEY_MAJOR, &by_key, &message));
    OK(undraft_convert_state(UNDRAFT_STATE_KEY_MAJOR, &by_key, UNDRAFT_STATE_VALUE_MAJOR, &back, &message));
    for (int i = 0; i < STATE; i++) REQUIRE(b[i / (V * K) * V * K + i % K * V + i / K % V] == a[i]);
    REQUIRE(memcmp(a, again, sizeof a) == 0);
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`to` has shape [4, 16, 8], expected [num_v_heads=4, head_v_dim=8, head_k_dim=16]",
          undraft_convert_state(UNDRAFT_STATE_VALUE_MAJOR, &by_value, UNDRAFT_STATE_VALUE_MAJOR, &by_key, &message));
    FAILS(UNDRAFT_INVALID_ARGUMENT, "`to` overlaps with `from`",
          undraft_convert_state(UNDRAFT_STATE_VALUE_MAJOR, &by_value, UNDRAFT_STATE_VALUE_MAJOR, &by_value, &message));
    const undraft_tensor by_time = f32(a, 2, W - 1, 20, 0, 0), by_channel = f32(b, 2, 20, W - 1, 0, 0);
    OK(undraft_convert_conv_state(UNDRAFT_CONV_TIME_MAJOR, &by_time, UNDRAFT_CONV_CHANNEL_MAJOR, &by_channel, &message));
    for (int i = 0; i < (W - 1) * 20; i++) REQUIRE(b[i % 20 * (W - 1) + i / 20] == a[i]);
    const undraft_tensor times = f32(again, 2, W - 1, 20, 0, 0);
    OK(undraft_convert_conv_state(UNDRAFT_CONV_CHANNEL_MAJOR, &by_channel, UNDRAFT_CONV_TIME_MAJOR, &times, &message));
    REQUIRE(memcmp(a, again, (W - 1) * 20 * sizeof *a) == 0);
}

int main(void) {
    OK(undraft_device_new("cpu", NULL, &device, &message));
    undraft_support what = undraft_support_init(UNDRAFT_OP_FUSED_RECURRENT_GATED_DELTA_RULE, K, V);
    what.tree = 1;
    OK(undraft_device_supports(device, &what, &message));
    undraft_device_info info = undraft_device_info_init();
    OK(undraft_device_get_info(device, &info, &message));
    REQUIRE(strcmp(info.name, "cpu") == 0 && strncmp(info.backend, "cpu-", 4) == 0 && info.max_head_dim == 256);
    char *names = NULL;
    OK(undraft_device_names(&names, &message));
    REQUIRE(strncmp(names, "cpu", 3) == 0);
    undraft_string_free(names);
    test_delta_rule();
    test_convolution();
    test_gating_and_norm();
    test_conversions();
    undraft_device_free(device);
    puts("ops: ok");
    return 0;
}
