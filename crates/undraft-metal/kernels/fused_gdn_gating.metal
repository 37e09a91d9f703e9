// fused_gdn_gating: g = -exp(A_log) * softplus(a + dt_bias), beta = sigmoid(b), each rounded once (nearly always).
//
// | slot | name | shape | dtype | direction |
// | --- | --- | --- | --- | --- |
// | 0 | a | [num_tokens, HV, decay_dim], rows a_stride elements apart | f32, bf16, f16 | in |
// | 1 | b | [num_tokens, HV], rows b_stride apart | f32, bf16, f16 | in |
// | 2 | a_log | [HV] | f32 | in |
// | 3 | dt_bias | [HV, decay_dim] | f32 | in |
// | 4 | g | [num_tokens, HV, decay_dim] | f32 | out |
// | 5 | beta | [num_tokens, HV] | f32 | out |
// | 6 | params | GatingParams | | in |
//
// One thread a decay; the first of a head's computes beta. Threadgroups: (HV * decay_dim / 128 rounded up, num_tokens), of 128
// threads.
#include "gates.h"

struct GatingParams {
    long a_stride, b_stride;
    int num_v_heads, decay_dim, a_dtype, b_dtype;
};

kernel void fused_gdn_gating(
    device const uchar* a [[buffer(0)]], device const uchar* b [[buffer(1)]], device const float* a_log [[buffer(2)]],
    device const float* dt_bias [[buffer(3)]], device float* g [[buffer(4)]], device float* beta [[buffer(5)]],
    constant GatingParams& p [[buffer(6)]], uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
    int decays = p.num_v_heads * p.decay_dim, at = (int)(group.x * 128 + tid);
    if (at >= decays) return;
    long t = group.y;
    int head = at / p.decay_dim;
    g[t * decays + at] = gate_log_decay(load_as_f32(a, p.a_dtype, t * p.a_stride + at), a_log[head], dt_bias[at]).hi;
    if (at % p.decay_dim == 0)
        beta[t * p.num_v_heads + head] = sigmoid(load_as_f32(b, p.b_dtype, t * p.b_stride + head));
}
