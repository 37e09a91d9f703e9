// fused_gdn_gating: g = -exp(A_log) * softplus(a + dt_bias), beta = sigmoid(b), in f64 and rounded once.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | a | [num_tokens, HV, decay_dim], rows a_stride elements apart | f32, bf16, f16 | in |
// | b | [num_tokens, HV], rows b_stride apart | f32, bf16, f16 | in |
// | a_log | [HV] | f32 | in |
// | dt_bias | [HV, decay_dim] | f32 | in |
// | g | [num_tokens, HV, decay_dim] | f32 | out |
// | beta | [num_tokens, HV] | f32 | out |
//
// One thread a decay; the first of a head's computes beta.
#include "prelude.cuh"

struct GatingParams {
    const void *a, *b;
    const float *a_log, *dt_bias;
    float *g, *beta;
    i64 a_stride, b_stride, num_tokens;
    int num_v_heads, decay_dim, a_dtype, b_dtype;
};

extern "C" __global__ void __launch_bounds__(128) fused_gdn_gating(const __grid_constant__ GatingParams p) {
    i64 i = (i64)blockIdx.x * 128 + threadIdx.x;
    int decays = p.num_v_heads * p.decay_dim;
    if (i >= p.num_tokens * decays) return;
    i64 t = i / decays;
    int at = (int)(i % decays), head = at / p.decay_dim;
    p.g[i] = (float)Gate(p.a_log[head], p.dt_bias[at]).log_decay(load_as_f32(p.a, p.a_dtype, t * p.a_stride + at));
    if (at % p.decay_dim == 0)
        p.beta[t * p.num_v_heads + head] = (float)sigmoid64(load_as_f32(p.b, p.b_dtype, t * p.b_stride + head));
}
