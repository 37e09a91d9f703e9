/* Verifies a window of three drafted tokens and keeps two, rolls a second window back, and prints what there is. */
#include <stdio.h>
#include <stdlib.h>
#include <undraft.h>

enum { H = 2, HV = 4, K = 32, V = 32, W = 4, C = 2 * H * K + HV * V, N = 3 };

static void check(undraft_status status, char *message) {
    if (status == UNDRAFT_OK) return;
    fprintf(stderr, "%s: %s\n", undraft_status_name(status), message ? message : "");
    exit(1);
}

int main(void) {
    static float weight[C * W], a_log[HV], dt_bias[HV], qkv[N * C], gates[N * HV], out[N * HV * V], state[HV * V * K];
    for (int i = 0; i < C * W; i++) weight[i] = 0.1f;
    for (int i = 0; i < N * C; i++) qkv[i] = (float)(i % 7) - 3.0f; /* a model's projections of the tokens */

    char *message = NULL;
    undraft_device *device = NULL;
    check(undraft_device_new("cpu", NULL, &device, &message), message);

    undraft_gdn_dims dims = undraft_gdn_dims_init(H, HV, K, V, W);
    undraft_layer_params params = undraft_layer_params_init(dims);
    params.conv_weight = undraft_tensor_2d(weight, UNDRAFT_F32, C, W);
    params.a_log = undraft_tensor_1d(a_log, UNDRAFT_F32, HV);
    params.dt_bias = undraft_tensor_1d(dt_bias, UNDRAFT_F32, HV);
    undraft_layer *layer = NULL;
    check(undraft_layer_new(&params, &layer, &message), message);

    undraft_pool *pool = NULL;
    undraft_pool_config config = undraft_pool_config_init(&dims, 1, 8, N); /* 1 layer, 8 slots */
    check(undraft_pool_new(device, &config, &pool, &message), message);

    undraft_slot slot;
    check(undraft_slot_alloc(pool, &slot, &message), message);
    const uint32_t window = N, num_kept = 2;
    undraft_round_params begin = undraft_round_params_init(UNDRAFT_VERIFY, &slot, &window, 1);
    undraft_verify_args args = undraft_verify_args_init(layer);
    args.mixed_qkv = undraft_tensor_2d(qkv, UNDRAFT_F32, N, C);
    args.a = args.b = undraft_tensor_2d(gates, UNDRAFT_F32, N, HV);
    args.out = undraft_tensor_2d(out, UNDRAFT_F32, N, HV * V);
    const int64_t shape[3] = {HV, V, K};
    undraft_tensor to = undraft_tensor_nd(state, UNDRAFT_F32, 3, shape);
    for (int i = 0; i < 2; i++) {
        undraft_round round;
        check(undraft_round_begin(pool, &begin, &round, &message), message);
        check(undraft_round_verify(pool, round, 0, &args, &message), message); /* once for every layer */
        if (i == 0) check(undraft_round_commit(pool, round, &num_kept, 1, &message), message);
        if (i == 1) check(undraft_round_rollback(pool, round, &message), message);
        check(undraft_slot_export_state(pool, slot, 0, UNDRAFT_STATE_VALUE_MAJOR, &to, &message), message);
        printf("%s: first output %.6f, state %.6f\n", i == 0 ? "kept 2 of 3" : "rolled back", out[0], state[0]);
    }
    check(undraft_pool_free(pool, &message), message);
    undraft_layer_free(layer);
    undraft_device_free(device);
    return 0;
}
