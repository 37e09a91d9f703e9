// dense_linear: y = W x for every row of x; each weight is read once for up to T rows.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | weight | [out_features, in_features], in_features a multiple of 4, 16-byte aligned; of every expert, expert_stride elements apart | W | in |
// | x | [num_rows / rows_per_x, in_features], rows x_stride elements apart (a multiple of 4), 16-byte aligned | f32 | in |
// | experts | [num_rows] or null: which weight row t takes | u32 | in |
// | y | [num_rows, out_features], rows y_stride apart | f32 | out |
//
// A block computes OUTPUTS outputs of T rows. Its warps take pieces of 128 columns in turn, of which lane l has elements 4 l ..
// 4 l + 3; a lane adds by FMAs in rising order. Then the lanes are added pairwise, then the warps in order. So the order
// depends on in_features alone, and weights of equal value give equal bits whatever their dtype. Blocks of the same outputs
// are neighbours, so that weights that more rows need come from the cache.
#include "dense.cuh"

#define LINEAR_WARPS 4
#define OUTPUTS 4

struct LinearParams {
    const void* weight;
    const float* x;
    const u32* experts;
    float* y;
    i64 x_stride, y_stride, expert_stride;
    int num_rows, in_features, out_features, rows_per_x;
};

template <typename W, int T>
__device__ __forceinline__ void linear(const LinearParams& p) {
    typedef StateOf<W> Of;
    constexpr int SUMS = OUTPUTS * T;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int first_out = blockIdx.y * OUTPUTS, first_row = blockIdx.x * T;
    const W* weight = (const W*)p.weight;
    if (T == 1 && p.experts) weight += p.experts[first_row] * p.expert_stride;
    // Beyond the ends lie the last output and row, again.
    const W* w[OUTPUTS];
    const float* x[T];
#pragma unroll
    for (int r = 0; r < OUTPUTS; ++r) w[r] = weight + (i64)min(first_out + r, p.out_features - 1) * p.in_features;
#pragma unroll
    for (int t = 0; t < T; ++t) x[t] = p.x + (i64)(min(first_row + t, p.num_rows - 1) / p.rows_per_x) * p.x_stride;
    float acc[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; ++i) acc[i] = 0.0f;
#pragma unroll(T == 1 ? 4 : T == 4 ? 2 : 1)
    for (int j = 4 * threadIdx.x; j < p.in_features; j += 128 * LINEAR_WARPS) {
        float v[OUTPUTS][4];
#pragma unroll
        for (int r = 0; r < OUTPUTS; ++r) Of::unpack(*(const typename Of::Four*)(w[r] + j), v[r]);
#pragma unroll
        for (int t = 0; t < T; ++t) {
            float4 u = *(const float4*)(x[t] + j);
#pragma unroll
            for (int r = 0; r < OUTPUTS; ++r) {
                float a = __fmaf_rn(v[r][0], u.x, acc[r * T + t]);
                a = __fmaf_rn(v[r][1], u.y, a);
                a = __fmaf_rn(v[r][2], u.z, a);
                acc[r * T + t] = __fmaf_rn(v[r][3], u.w, a);
            }
        }
    }
    float* sums = dense_shared<float>();  // [LINEAR_WARPS, SUMS]
    int index;
    float sum = warp_sums(acc, lane, index);
    if (lane % (32 / SUMS) == 0) sums[warp * SUMS + index] = sum;
    __syncthreads();
    int t = threadIdx.x % T, out = first_out + threadIdx.x / T;
    if (threadIdx.x >= SUMS || first_row + t >= p.num_rows || out >= p.out_features) return;
    float y = 0.0f;
#pragma unroll
    for (int i = 0; i < LINEAR_WARPS; ++i) y = __fadd_rn(y, sums[i * SUMS + threadIdx.x]);
    p.y[(first_row + t) * p.y_stride + out] = y;
}

#define LINEAR(name, W, T)                                                                                         \
    extern "C" __global__ void __launch_bounds__(32 * LINEAR_WARPS) dense_linear_##name##_t##T(                    \
        const __grid_constant__ LinearParams p) {                                                                  \
        linear<W, T>(p);                                                                                           \
    }
LINEAR(f32, float, 1)
LINEAR(bf16, Bf16, 1)
LINEAR(f16, F16s, 1)
LINEAR(f32, float, 4)
LINEAR(bf16, Bf16, 4)
LINEAR(f16, F16s, 4)
LINEAR(f32, float, 8)
LINEAR(bf16, Bf16, 8)
LINEAR(f16, F16s, 8)
