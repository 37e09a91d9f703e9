// dense_rms_norm: x += delta, then out = x / sqrt(mean(x^2) + eps) * factor, row by row.
//
// | slot | name | shape | dtype | direction |
// | --- | --- | --- | --- | --- |
// | 0 | x | [num_rows, len], rows x_stride elements apart | f32 | in, with delta out |
// | 1 | delta | [num_rows, len] or absent, rows delta_stride apart | f32 | in |
// | 2 | factor | [len] | f32 | in |
// | 3 | out | [num_rows, len], rows out_stride apart; not x | f32 | out |
// | 4 | params | DenseNormParams | | in |
//
// One threadgroup a row; thread t sums the squares of elements t, t + 256, .., then the threads are added as threadgroup_sum does.
// Threadgroups: num_rows, of 256 threads.
#include "dense.h"

#define THREADS 256
#define HAS_DELTA (1u << 1)

struct DenseNormParams {
    long x_stride, delta_stride, out_stride;
    int len;
    float eps;
    uint present;
};

kernel void dense_rms_norm(
    device float* rows [[buffer(0)]], device const float* deltas [[buffer(1)]], device const float* factor [[buffer(2)]],
    device float* outs [[buffer(3)]], constant DenseNormParams& p [[buffer(4)]], threadgroup float* shared [[threadgroup(0)]],
    uint3 at [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    long row = at.x;
    device float* x = rows + row * p.x_stride;
    device const float* delta = deltas + row * p.delta_stride;
    device float* out = outs + row * p.out_stride;
    float sum = 0.0f;
    for (int j = (int)tid; j < p.len; j += THREADS) {
        float xj = x[j];
        if (p.present & HAS_DELTA) {
            xj = xj + delta[j];
            x[j] = xj;
        }
        sum = metal::fma(xj, xj, sum);
    }
    float mean = threadgroup_sum<THREADS / 32>(sum, shared, lane, simd) / (float)p.len;
    float scale = 1.0f / metal::precise::sqrt(mean + p.eps);
    // Every thread reads what it has written itself.
    for (int j = (int)tid; j < p.len; j += THREADS) out[j] = x[j] * scale * factor[j];
}
