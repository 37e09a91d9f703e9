// dense_rms_norm: x += delta, then out = x / sqrt(mean(x^2) + eps) * factor, row by row.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | x | [num_rows, len], rows x_stride elements apart | f32 | in, with delta out |
// | delta | [num_rows, len] or null, rows delta_stride apart | f32 | in |
// | factor | [len] | f32 | in |
// | out | [num_rows, len], rows out_stride apart; not x | f32 | out |
//
// One block a row; thread t sums the squares of elements t, t + 256, .., then the threads are added as block_sum does.
#include "dense.cuh"

#define NORM_THREADS 256

struct DenseNormParams {
    float* x;
    const float *delta, *factor;
    float* out;
    i64 x_stride, delta_stride, out_stride;
    int num_rows, len;
    float eps;
};

extern "C" __global__ void __launch_bounds__(NORM_THREADS) dense_rms_norm(const __grid_constant__ DenseNormParams p) {
    float* x = p.x + blockIdx.x * p.x_stride;
    float sum = 0.0f;
    for (int j = threadIdx.x; j < p.len; j += NORM_THREADS) {
        float v = x[j];
        if (p.delta) {
            v = __fadd_rn(v, p.delta[blockIdx.x * p.delta_stride + j]);
            x[j] = v;
        }
        sum = __fmaf_rn(v, v, sum);
    }
    float mean = __fdiv_rn(block_sum<NORM_THREADS / 32>(sum, dense_shared<float>()), (float)p.len);
    float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, p.eps)));
    for (int j = threadIdx.x; j < p.len; j += NORM_THREADS)
        p.out[blockIdx.x * p.out_stride + j] = __fmul_rn(__fmul_rn(x[j], scale), p.factor[j]);
}
