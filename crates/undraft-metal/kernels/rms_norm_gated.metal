// rms_norm_gated: out = x / sqrt(mean(x^2) + eps) * weight * act(z), per head.
//
// | slot | name | shape | dtype | direction |
// | --- | --- | --- | --- | --- |
// | 0, 1 | x, z | [num_rows, num_heads, D], rows x_stride, z_stride elements apart | f32, bf16, f16 | in |
// | 2 | weight | [D] | f32 | in |
// | 3 | out | [num_rows, num_heads, D], rows out_stride apart | f32, bf16, f16 | out |
// | 4 | params | NormParams | | in |
//
// One simdgroup a head; lane l sums the squares of elements l, l + 32, .., then the lanes are added pairwise. Threadgroups:
// (num_heads / 4 rounded up, num_rows), of 128 threads.
#include "gates.h"

struct NormParams {
    long x_stride, z_stride, out_stride;
    int num_heads, head_dim, x_dtype, z_dtype, out_dtype, sigmoid;
    float eps;
};

kernel void rms_norm_gated(
    device const uchar* x [[buffer(0)]], device const uchar* z [[buffer(1)]], device const float* weight [[buffer(2)]],
    device uchar* out [[buffer(3)]], constant NormParams& p [[buffer(4)]], uint3 at [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    int head = (int)(at.x * 4 + simd);
    if (head >= p.num_heads) return;
    long row = at.y, column = (long)head * p.head_dim;
    float sum = 0.0f;
    for (int j = (int)lane; j < p.head_dim; j += 32) {
        float xj = load_as_f32(x, p.x_dtype, row * p.x_stride + column + j);
        sum = metal::fma(xj, xj, sum);
    }
    float mean = lanes_sum(sum) / (float)p.head_dim;
    float factor = 1.0f / metal::precise::sqrt(mean + p.eps);
    for (int j = (int)lane; j < p.head_dim; j += 32) {
        float xj = load_as_f32(x, p.x_dtype, row * p.x_stride + column + j);
        float zj = load_as_f32(z, p.z_dtype, row * p.z_stride + column + j);
        float gate = quick_sigmoid(zj);
        if (!p.sigmoid) gate = zj * gate;
        store_from_f32(out, p.out_dtype, row * p.out_stride + column + j, xj * factor * weight[j] * gate);
    }
}
