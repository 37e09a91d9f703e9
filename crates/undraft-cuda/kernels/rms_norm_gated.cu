// rms_norm_gated: out = x / sqrt(mean(x^2) + eps) * weight * act(z), per head.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | x, z | [num_rows, num_heads, D], rows x_stride, z_stride elements apart | f32, bf16, f16 | in |
// | weight | [D] | f32 | in |
// | out | [num_rows, num_heads, D], rows out_stride apart | f32, bf16, f16 | out |
//
// One warp a head; lane l sums the squares of elements l, l + 32, .., then the lanes are added pairwise.
#include "prelude.cuh"

struct NormParams {
    const void *x, *z;
    const float* weight;
    void* out;
    i64 x_stride, z_stride, out_stride, num_rows;
    int num_heads, head_dim, x_dtype, z_dtype, out_dtype, sigmoid;
    float eps;
};

extern "C" __global__ void __launch_bounds__(128) rms_norm_gated(const __grid_constant__ NormParams p) {
    i64 unit = (i64)blockIdx.x * 4 + threadIdx.x / 32;
    if (unit >= p.num_rows * p.num_heads) return;
    int lane = threadIdx.x % 32;
    i64 row = unit / p.num_heads, column = unit % p.num_heads * p.head_dim;
    float sum = 0.0f;
    for (int j = lane; j < p.head_dim; j += 32) {
        float x = load_as_f32(p.x, p.x_dtype, row * p.x_stride + column + j);
        sum = __fmaf_rn(x, x, sum);
    }
    float mean = __fdiv_rn(warp_sum(sum), (float)p.head_dim);
    float factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, p.eps)));
    for (int j = lane; j < p.head_dim; j += 32) {
        float x = load_as_f32(p.x, p.x_dtype, row * p.x_stride + column + j);
        float z = load_as_f32(p.z, p.z_dtype, row * p.z_stride + column + j);
        float gate = sigmoid32(z);
        if (!p.sigmoid) gate = __fmul_rn(z, gate);
        x = __fmul_rn(__fmul_rn(__fmul_rn(x, factor), p.weight[j]), gate);
        store_from_f32(p.out, p.out_dtype, row * p.out_stride + column + j, x);
    }
}
