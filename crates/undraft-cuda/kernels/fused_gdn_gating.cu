// fused_gdn_gating: g = -exp(A_log) * softplus(a + dt_bias), beta = sigmoid(b), in f64 and rounded once.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | a, b | [num_tokens, HV], rows a_stride, b_stride elements apart | f32, bf16, f16 | in |
// | a_log, dt_bias | [HV] | f32 | in |
// | g, beta | [num_tokens, HV] | f32 | out |
//
// One thread an element.
#include "prelude.cuh"

struct GatingParams {
    const void *a, *b;
    const float *a_log, *dt_bias;
    float *g, *beta;
    i64 a_stride, b_stride, num_tokens;
    int num_v_heads, a_dtype, b_dtype;
};

extern "C" __global__ void __launch_bounds__(128) fused_gdn_gating(const __grid_constant__ GatingParams p) {
    i64 i = (i64)blockIdx.x * 128 + threadIdx.x;
    if (i >= p.num_tokens * p.num_v_heads) return;
    i64 t = i / p.num_v_heads;
    int head = (int)(i % p.num_v_heads);
    p.g[i] = (float)gate_log_decay(load_as_f32(p.a, p.a_dtype, t * p.a_stride + head), p.a_log[head], p.dt_bias[head]);
    p.beta[i] = (float)sigmoid64(load_as_f32(p.b, p.b_dtype, t * p.b_stride + head));
}
