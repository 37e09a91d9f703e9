// dense_rms_norm: x += delta, then out = x / sqrt(mean(x^2) + eps) * factor, row by row.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | x | [num_rows, len], rows x_stride elements apart | f32 | in, with delta out |
// | delta | [num_rows, len] or null, rows delta_stride apart | f32 | in |
// | factor | [len] | f32 | in |
// | out | [num_rows, len], rows out_stride apart; not x | f32 | out |
//
// One block a row; thread t sums the squares of elements t, t + 512, .., then the threads are added as block_sum does.
#include "dense.cuh"

#define NORM_THREADS 512
// Elements of a thread whose loads are on their way together.
#define NORM_AHEAD 8

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
    const float* delta = p.delta ? p.delta + blockIdx.x * p.delta_stride : nullptr;
    float sum = 0.0f;
    for (int first = threadIdx.x; first < p.len; first += NORM_AHEAD * NORM_THREADS) {
        float v[NORM_AHEAD], d[NORM_AHEAD];
#pragma unroll
        for (int i = 0; i < NORM_AHEAD; ++i) {
            int j = first + i * NORM_THREADS;
            v[i] = j < p.len ? x[j] : 0.0f;
            d[i] = j < p.len && delta ? delta[j] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < NORM_AHEAD; ++i) {
            int j = first + i * NORM_THREADS;
            if (j >= p.len) continue;
            if (delta) x[j] = v[i] = __fadd_rn(v[i], d[i]);
            sum = __fmaf_rn(v[i], v[i], sum);
        }
    }
    float mean = __fdiv_rn(block_sum<NORM_THREADS / 32>(sum, dense_shared<float>()), (float)p.len);
    float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, p.eps)));
    float* out = p.out + blockIdx.x * p.out_stride;
    for (int first = threadIdx.x; first < p.len; first += NORM_AHEAD * NORM_THREADS) {
        float v[NORM_AHEAD], factor[NORM_AHEAD];
#pragma unroll
        for (int i = 0; i < NORM_AHEAD; ++i) {
            int j = min(first + i * NORM_THREADS, p.len - 1);
            v[i] = x[j], factor[i] = p.factor[j];
        }
#pragma unroll
        for (int i = 0; i < NORM_AHEAD; ++i) {
            int j = first + i * NORM_THREADS;
            if (j < p.len) out[j] = __fmul_rn(__fmul_rn(v[i], scale), factor[i]);
        }
    }
}
