// dense_rotate: norm of each query and key head and rotation of its first values; keys and values go into the cache.
//
// | slot | name | shape | dtype | direction |
// | --- | --- | --- | --- | --- |
// | 0 | qkv | [num_tokens] of [num_heads, 2, D] (query, gate), [num_kv_heads, D] keys, [num_kv_heads, D] values, rows qkv_stride elements apart | f32 | in |
// | 1, 2 | q_factor, k_factor | [D] | f32 | in |
// | 3 | rope | [capacity, rotary_dim]: cosines, then sines of a position | f32 | in |
// | 4 | len | one: positions held; token t stands at len + offset + t, below the capacity | u32 | in |
// | 5 | query | [num_tokens, num_heads, D], scaled | f32 | out |
// | 6, 7 | keys, values | [capacity, num_kv_heads, D] | f32 | out, rows of the tokens |
// | 8 | params | RotateParams | | in |
//
// One simdgroup a head; lane l sums the squares of elements l, l + 32, .., then the lanes are added pairwise. Value i turns with
// i + rotary_dim / 2. Threadgroups: ((num_heads + 2 num_kv_heads) / 4 rounded up, num_tokens), of 128 threads.
#include "dense.h"

struct RotateParams {
    long qkv_stride;
    int num_heads, num_kv_heads, head_dim, rotary_dim, offset;
    float eps, scale;
};

kernel void dense_rotate(
    device const float* qkv [[buffer(0)]], device const float* q_factor [[buffer(1)]],
    device const float* k_factor [[buffer(2)]], device const float* rope [[buffer(3)]],
    device const uint* len [[buffer(4)]], device float* query [[buffer(5)]], device float* keys [[buffer(6)]],
    device float* values [[buffer(7)]], constant RotateParams& p [[buffer(8)]],
    uint3 at [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
    int head = (int)(at.x * 4 + simd), D = p.head_dim;
    if (head >= p.num_heads + 2 * p.num_kv_heads) return;
    long t = at.y, position = (long)*len + p.offset + t;
    int k_head = head - p.num_heads, v_head = k_head - p.num_kv_heads;
    bool is_query = k_head < 0;
    device const float* x = qkv + t * p.qkv_stride + (long)(is_query ? 2 * head : 2 * p.num_heads + k_head) * D;
    if (v_head >= 0) {
        for (int i = (int)lane; i < D; i += 32) values[(position * p.num_kv_heads + v_head) * D + i] = x[i];
        return;
    }
    device const float* factor = is_query ? q_factor : k_factor;
    device float* out = is_query ? query + (t * p.num_heads + head) * D : keys + (position * p.num_kv_heads + k_head) * D;
    float sum = 0.0f;
    for (int i = (int)lane; i < D; i += 32) sum = metal::fma(x[i], x[i], sum);
    float norm = 1.0f / metal::precise::sqrt(lanes_sum(sum) / (float)D + p.eps);
    device const float* cosines = rope + position * p.rotary_dim;
    int pairs = p.rotary_dim / 2;
    device const float* sines = cosines + pairs;
    for (int i = (int)lane; i < D; i += 32) {
        float y = x[i] * norm * factor[i];
        if (i < p.rotary_dim) {
            bool first = i < pairs;
            int other = first ? i + pairs : i - pairs, angle = first ? i : other;
            float along = y * cosines[angle], across = x[other] * norm * factor[other] * sines[angle];
            y = first ? along - across : along + across;
        }
        out[i] = is_query ? y * p.scale : y;
    }
}
