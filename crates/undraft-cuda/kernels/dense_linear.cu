// dense_linear: y = W x for every row of x; each weight is read once for up to T rows.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | weight | [out_features, in_features], in_features a multiple of 4, 16-byte aligned; of every expert, expert_stride elements apart | W | in |
// | x | [num_rows / rows_per_x, in_features], rows x_stride elements apart (a multiple of 4), 16-byte aligned | f32 | in |
// | experts | [num_rows] or null: which weight row t takes | u32 | in |
// | y | [num_rows, out_features], rows y_stride apart | f32 | out |
//
// A warp computes R outputs of T rows. Lane l has elements 4 (l + 32 j) .. + 3, which it adds to one accumulator an output
// by FMAs in rising order; then the lanes are added pairwise. So the order depends on in_features alone, and weights of
// equal value give equal bits whatever their dtype. Blocks of the same outputs are neighbours, so that weights that several
// rows need come from the cache.
#include "dense.cuh"

struct LinearParams {
    const void* weight;
    const float* x;
    const u32* experts;
    float* y;
    i64 x_stride, y_stride, expert_stride;
    int num_rows, in_features, out_features, rows_per_x;
};

template <typename W, int R, int T>
__device__ __forceinline__ void linear(const LinearParams& p) {
    typedef StateOf<W> Of;
    int lane = threadIdx.x % 32;
    int first_out = (blockIdx.y * 4 + threadIdx.x / 32) * R, first_row = blockIdx.x * T;
    if (first_out >= p.out_features) return;
    const W* weight = (const W*)p.weight;
    if (T == 1 && p.experts) weight += p.experts[first_row] * p.expert_stride;
    // Beyond the ends lie the last output and row, again.
    const W* w[R];
    const float* x[T];
#pragma unroll
    for (int r = 0; r < R; ++r) w[r] = weight + (i64)min(first_out + r, p.out_features - 1) * p.in_features;
#pragma unroll
    for (int t = 0; t < T; ++t) x[t] = p.x + (i64)(min(first_row + t, p.num_rows - 1) / p.rows_per_x) * p.x_stride;
    float acc[R][T];
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
        for (int t = 0; t < T; ++t) acc[r][t] = 0.0f;
#pragma unroll(T == 1 ? 8 / R : 2)
    for (int j = 4 * lane; j < p.in_features; j += 128) {
        float v[R][4];
#pragma unroll
        for (int r = 0; r < R; ++r) Of::unpack(*(const typename Of::Four*)(w[r] + j), v[r]);
#pragma unroll
        for (int t = 0; t < T; ++t) {
            float4 u = *(const float4*)(x[t] + j);
#pragma unroll
            for (int r = 0; r < R; ++r) {
                float a = __fmaf_rn(v[r][0], u.x, acc[r][t]);
                a = __fmaf_rn(v[r][1], u.y, a);
                a = __fmaf_rn(v[r][2], u.z, a);
                acc[r][t] = __fmaf_rn(v[r][3], u.w, a);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < T; ++t)
#pragma unroll
        for (int r = 0; r < R; ++r) {
            float sum = warp_sum(acc[r][t]);
            if (lane == 0 && first_row + t < p.num_rows && first_out + r < p.out_features)
                p.y[(first_row + t) * p.y_stride + first_out + r] = sum;
        }
}

#define LINEAR(name, W, R, T)                                                                          \
    extern "C" __global__ void __launch_bounds__(128) dense_linear_##name##_r##R##_t##T(               \
        const __grid_constant__ LinearParams p) {                                                      \
        linear<W, R, T>(p);                                                                            \
    }
#define LINEAR_TILES(name, W) \
    LINEAR(name, W, 1, 1)     \
    LINEAR(name, W, 4, 1)     \
    LINEAR(name, W, 1, 4)     \
    LINEAR(name, W, 4, 4)     \
    LINEAR(name, W, 1, 8)     \
    LINEAR(name, W, 4, 8)
LINEAR_TILES(f32, float)
LINEAR_TILES(bf16, Bf16)
LINEAR_TILES(f16, F16s)
