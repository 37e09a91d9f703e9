// dense_rotate: norm of each query and key head and rotation of its first values; keys and values go into the cache.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | qkv | [num_tokens] of [num_heads, 2, D] (query, gate), [num_kv_heads, D] keys, [num_kv_heads, D] values, rows qkv_stride apart | f32 | in |
// | q_factor, k_factor | [D] | f32 | in |
// | rope | [capacity, rotary_dim]: cosines, then sines of a position | f32 | in |
// | len | one: positions held; token t stands at len + offset + t < capacity | i32 | in |
// | query | [num_tokens, num_heads, D], scaled | f32 | out |
// | keys, values | [capacity, num_kv_heads, D] | f32 | out, rows of the tokens |
//
// One warp a head; lane l sums the squares of elements l, l + 32, .., then the lanes are added pairwise. Value i turns with
// i + rotary_dim / 2.
#include "dense.cuh"

struct RotateParams {
    const float *qkv, *q_factor, *k_factor, *rope;
    const int* len;
    float *query, *keys, *values;
    i64 qkv_stride;
    int num_tokens, num_heads, num_kv_heads, head_dim, rotary_dim, offset;
    float eps, scale;
};

extern "C" __global__ void __launch_bounds__(128) dense_rotate(const __grid_constant__ RotateParams p) {
    int heads = p.num_heads + 2 * p.num_kv_heads, D = p.head_dim;
    i64 unit = (i64)blockIdx.x * 4 + threadIdx.x / 32;
    if (unit >= (i64)p.num_tokens * heads) return;
    int t = (int)(unit / heads), head = (int)(unit % heads), lane = threadIdx.x % 32;
    i64 position = *p.len + p.offset + t;
    const float* row = p.qkv + t * p.qkv_stride;
    int k_head = head - p.num_heads, v_head = k_head - p.num_kv_heads;
    const float* x = k_head < 0 ? row + (i64)head * 2 * D : row + (i64)(2 * p.num_heads + k_head) * D;
    if (v_head >= 0) {
        for (int i = lane; i < D; i += 32) p.values[(position * p.num_kv_heads + v_head) * D + i] = x[i];
        return;
    }
    const float* factor = k_head < 0 ? p.q_factor : p.k_factor;
    float* out = k_head < 0 ? p.query + ((i64)t * p.num_heads + head) * D
                            : p.keys + (position * p.num_kv_heads + k_head) * D;
    float sum = 0.0f;
    for (int i = lane; i < D; i += 32) sum = __fmaf_rn(x[i], x[i], sum);
    float mean = __fdiv_rn(warp_sum(sum), (float)D);
    float norm = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, p.eps)));
    const float* rope = p.rope + position * p.rotary_dim;
    int half = p.rotary_dim / 2;
    for (int i = lane; i < D; i += 32) {
        float y = __fmul_rn(__fmul_rn(x[i], norm), factor[i]);
        if (i < p.rotary_dim) {
            bool first = i < half;
            int other = first ? i + half : i - half, angle = first ? i : other;
            float z = __fmul_rn(__fmul_rn(x[other], norm), factor[other]);
            float along = __fmul_rn(y, rope[angle]), across = __fmul_rn(z, rope[half + angle]);
            y = first ? __fsub_rn(along, across) : __fadd_rn(along, across);
        }
        out[i] = k_head < 0 ? __fmul_rn(y, p.scale) : y;
    }
}
