// gated_delta_net_decode_f32_{1,2,4} and gated_delta_net_decode_capture_f32_{1,2,4}: names, buffer slots, `params` words and
// meaning are those of the Metal kernels of that family in mlx-native, so that an engine built on them can take these instead.
//
// | slot | name | shape | dtype | direction |
// | --- | --- | --- | --- | --- |
// | 0, 1 | q, k | [n_seqs, n_tokens, n_k_heads, D_k] | f32 | in |
// | 2 | v | [n_seqs, n_tokens, n_v_heads, D_v] | f32 | in |
// | 3, 4 | g, beta | [n_seqs, n_tokens, n_v_heads]; the state decays by exp(-g) | f32 | in |
// | 5 | state_in | [n_seqs, n_v_heads, D_v, D_k] | f32 | in |
// | 6 | output | [n_seqs, n_tokens, n_v_heads, D_v] | f32 | out |
// | 7 | state_out | as state_in: the state after the last token | f32 | out |
// | 8 | params | D_k, D_v, n_k_heads, n_v_heads, n_tokens, n_seqs, 0, 0, bits of q_scale | u32[9] | in |
// | 9 | state_capture | [n_seqs, n_tokens, n_v_heads, D_v, D_k]: the state after each token (capture alone) | f32 | out |
//
// D_k = 32 NSG. q_scale multiplies the output; 0 stands for 1. Value head h reads key head h % n_k_heads. Threadgroups:
// (D_v / NSG rounded up, n_v_heads, n_seqs), of (32, NSG, 1) threads: a simdgroup a row, NSG neighbours a lane.
//
// Offsets are 64 bits wide. Sums: FMAs over a lane's elements in rising order, then lanes l and l ^ 16, l ^ 8, .., l ^ 1.
#include "gates.h"

template <int NSG, bool CAPTURE>
inline void gated_delta_net_decode(
    device const float* q, device const float* k, device const float* v, device const float* g, device const float* beta,
    device const float* state_in, device float* output, device float* state_out, device const uint* params,
    device float* state_capture, uint3 thread_at, uint3 group_at) {
    long D_k = params[0], D_v = params[1], n_k_heads = params[2], n_v_heads = params[3], n_tokens = params[4];
    float q_scale = params[8] == 0u ? 1.0f : as_type<float>((uint)params[8]);
    long head = group_at.y, seq = group_at.z, row = (long)group_at.x * NSG + thread_at.y;
    // The same for all lanes of a simdgroup.
    if (head >= n_v_heads || seq >= (long)params[5] || row >= D_v) return;
    long first = (long)thread_at.x * NSG, key = head % n_k_heads * D_k + first;
    long in_state = (head * D_v + row) * D_k + first, state_len = n_v_heads * D_v * D_k;
    float s[NSG];
    UNROLL
    for (int j = 0; j < NSG; ++j) s[j] = state_in[seq * state_len + in_state + j];
    for (long token = seq * n_tokens; token < (seq + 1) * n_tokens; ++token) {
        device const float* kt = k + token * n_k_heads * D_k + key;
        device const float* qt = q + token * n_k_heads * D_k + key;
        long gate = token * n_v_heads + head;
        float alpha = exp_pair(-g[gate], 0.0f).hi, sum = 0.0f, y = 0.0f;
        UNROLL
        for (int j = 0; j < NSG; ++j) {
            s[j] = s[j] * alpha;
            sum = metal::fma(s[j], kt[j], sum);
        }
        float delta = (v[gate * D_v + row] - lanes_sum(sum)) * beta[gate];
        UNROLL
        for (int j = 0; j < NSG; ++j) {
            s[j] = metal::fma(delta, kt[j], s[j]);
            y = metal::fma(s[j], qt[j], y);
        }
        y = lanes_sum(y);
        if (thread_at.x == 0) output[gate * D_v + row] = y * q_scale;
        if (CAPTURE) {
            UNROLL
            for (int j = 0; j < NSG; ++j) state_capture[token * state_len + in_state + j] = s[j];
        }
    }
    UNROLL
    for (int j = 0; j < NSG; ++j) state_out[seq * state_len + in_state + j] = s[j];
}

#define DECODE(NSG)                                                                                                    \
    kernel void gated_delta_net_decode_f32_##NSG(                                                                      \
        device const float* q [[buffer(0)]], device const float* k [[buffer(1)]],                                      \
        device const float* v [[buffer(2)]], device const float* g [[buffer(3)]],                                      \
        device const float* beta [[buffer(4)]], device const float* state_in [[buffer(5)]],                            \
        device float* output [[buffer(6)]], device float* state_out [[buffer(7)]],                                     \
        device const uint* params [[buffer(8)]], uint3 thread_at [[thread_position_in_threadgroup]],                   \
        uint3 group_at [[threadgroup_position_in_grid]]) {                                                             \
        gated_delta_net_decode<NSG, false>(q, k, v, g, beta, state_in, output, state_out, params, nullptr, thread_at,  \
                                           group_at);                                                                  \
    }                                                                                                                  \
    kernel void gated_delta_net_decode_capture_f32_##NSG(                                                              \
        device const float* q [[buffer(0)]], device const float* k [[buffer(1)]],                                      \
        device const float* v [[buffer(2)]], device const float* g [[buffer(3)]],                                      \
        device const float* beta [[buffer(4)]], device const float* state_in [[buffer(5)]],                            \
        device float* output [[buffer(6)]], device float* state_out [[buffer(7)]],                                     \
        device const uint* params [[buffer(8)]], device float* state_capture [[buffer(9)]],                            \
        uint3 thread_at [[thread_position_in_threadgroup]], uint3 group_at [[threadgroup_position_in_grid]]) {         \
        gated_delta_net_decode<NSG, true>(q, k, v, g, beta, state_in, output, state_out, params, state_capture,        \
                                          thread_at, group_at);                                                        \
    }
DECODE(1)
DECODE(2)
DECODE(4)
