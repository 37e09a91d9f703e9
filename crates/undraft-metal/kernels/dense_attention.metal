// dense_attention: causal softmax attention over a cache, in two launches: of every SEGMENT positions on their own, then
// the segments in order, times the sigmoid of the gate.
//
// | slot | name | shape | dtype | direction |
// | --- | --- | --- | --- | --- |
// | 0 | query | [num_tokens, num_heads, D], scaled | f32 | in |
// | 1, 2 | keys, values | [capacity, num_kv_heads, D] | f32 | in |
// | 3 | len | one: positions held; token t stands at len + offset + t and sees all up to itself | u32 | in |
// | 4 | parts | [num_tokens, num_heads, num_segments, D + 2]: weighted values, maximum, sum; num_segments covers all positions | f32 | out, then in |
// | 5 | gate | [num_tokens, num_heads], heads 2 D and tokens gate_stride elements apart | f32 | in |
// | 6 | out | [num_tokens, num_heads, D] | f32 | out |
// | 7 | params | AttentionParams | | in |
//
// Segments begin at multiples of SEGMENT. Of a segment, a score is summed by a simdgroup (lane l has elements l, l + 32, ..; then
// the lanes pairwise), the weights as threadgroup_sum does, and the weighted values key by key. Which tokens come together changes
// nothing. Threadgroups: (num_segments * num_heads, num_tokens), then (num_heads, num_tokens), of 128 threads.
#include "dense.h"

#define SEGMENT 128
#define SIMDS 4

struct AttentionParams {
    long gate_stride;
    int num_heads, num_kv_heads, head_dim, num_segments, offset;
};

kernel void dense_attention_parts(
    device const float* query [[buffer(0)]], device const float* keys [[buffer(1)]],
    device const float* values [[buffer(2)]], device const uint* len [[buffer(3)]], device float* parts [[buffer(4)]],
    constant AttentionParams& p [[buffer(7)]], threadgroup float* scores [[threadgroup(0)]],
    uint3 at [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    int segment = (int)at.x % p.num_segments, head = (int)at.x / p.num_segments, D = p.head_dim, tid = (int)thread_index;
    long t = at.y, position = (long)*len + p.offset + t, first = (long)segment * SEGMENT;
    if (first > position) return;
    int seen = position - first < SEGMENT ? (int)(position - first) + 1 : SEGMENT;
    long unit = t * p.num_heads + head, row = (long)p.num_kv_heads * D;
    long start = first * row + (long)(head / (p.num_heads / p.num_kv_heads)) * D;
    // [SEGMENT], then [SIMDS] twice.
    threadgroup float *maxima = scores + SEGMENT, *sums = maxima + SIMDS;
    device const float* q = query + unit * D;
    for (int j = 4 * (int)simd; j < seen; j += 4 * SIMDS) {
        // Four keys at a time; beyond the end lies the last one, again.
        float dots[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        device const float* k[4];
        UNROLL
        for (int r = 0; r < 4; ++r) k[r] = keys + start + metal::min(j + r, seen - 1) * row;
        for (int i = (int)lane; i < D; i += 32) {
            float qi = q[i];
            UNROLL
            for (int r = 0; r < 4; ++r) dots[r] = metal::fma(qi, k[r][i], dots[r]);
        }
        int index;
        float dot = lanes_sums<4>(dots, lane, index);
        if (lane % 8 == 0 && j + index < seen) scores[j + index] = dot;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // A NaN is lost here, and comes back with its own weight.
    float score = scores[metal::min(tid, seen - 1)], most = lanes_max(is_nan(score) ? -INFINITY : score);
    if (lane == 0) maxima[simd] = most;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    UNROLL
    for (int i = 0; i < SIMDS; ++i) most = maxima[i] > most ? maxima[i] : most;
    float weight = tid < seen ? exp_pair(score - most, 0.0f).hi : 0.0f;
    scores[tid] = weight;
    float sum = threadgroup_sum<SIMDS>(weight, sums, lane, simd);
    device float* part = parts + (unit * p.num_segments + segment) * (D + 2);
    for (int i = tid; i < D; i += SEGMENT) {
        device const float* v = values + start + i;
        float acc = 0.0f;
        for (int j = 0; j < seen; ++j) acc = metal::fma(scores[j], v[j * row], acc);
        part[i] = acc;
    }
    if (tid == 0) part[D] = most, part[D + 1] = sum;
}

kernel void dense_attention(
    device const uint* len [[buffer(3)]], device const float* parts [[buffer(4)]], device const float* gates [[buffer(5)]],
    device float* out [[buffer(6)]], constant AttentionParams& p [[buffer(7)]], uint3 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
    int head = (int)at.x, D = p.head_dim;
    long t = at.y, unit = t * p.num_heads + head, segments = ((long)*len + p.offset + t) / SEGMENT + 1;
    device const float* part = parts + unit * p.num_segments * (D + 2);
    float most = part[D];
    for (long s = 1; s < segments; ++s) {
        float other = part[s * (D + 2) + D];
        most = other > most ? other : most;
    }
    for (int i = (int)tid; i < D; i += 128) {
        float acc = 0.0f, sum = 0.0f;
        for (long s = 0; s < segments; ++s) {
            device const float* of = part + s * (D + 2);
            float factor = exp_pair(of[D] - most, 0.0f).hi;
            acc = metal::fma(of[i], factor, acc);
            sum = metal::fma(of[D + 1], factor, sum);
        }
        out[unit * D + i] = acc / sum * quick_sigmoid(gates[t * p.gate_stride + (long)head * 2 * D + i]);
    }
}
