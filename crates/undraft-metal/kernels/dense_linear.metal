// dense_linear: y = W x for every row of x; each weight is read once for up to T rows.
//
// | slot | name | shape | dtype | direction |
// | --- | --- | --- | --- | --- |
// | 0 | weight | [out_features, in_features], in_features a multiple of 4, four neighbours aligned; of every expert, expert_stride elements apart | W | in |
// | 1 | x | [num_rows / rows_per_x, in_features], rows x_stride elements apart (a multiple of 4), 16-byte aligned | f32 | in |
// | 2 | experts | [num_rows] or absent: which weight row t takes; T is 1 then | u32 | in |
// | 3 | y | [num_rows, out_features], rows y_stride apart | f32 | out |
// | 4 | params | LinearParams | | in |
//
// One simdgroup computes OUTPUTS outputs of T rows: lane l has elements 4 (l + 32 j) .. 4 (l + 32 j) + 3, added by FMAs in rising
// order; then the lanes are added pairwise. So the order depends on in_features alone, and weights of equal value give equal
// bits whatever their dtype. Threadgroups of the same outputs are neighbours, so that weights that more rows need come from the
// cache: (num_rows / T rounded up, out_features / 16 rounded up), of 128 threads.
#include "dense.h"

#define SIMDS 4
#define OUTPUTS 4
#define HAS_EXPERTS (1u << 2)

struct LinearParams {
    long x_stride, y_stride, expert_stride;
    int num_rows, in_features, out_features, rows_per_x;
    uint present;
};

struct LinearBuffers {
    device const uchar* weight;
    device const float* x;
    device const uint* experts;
    device float* y;
};

template <typename W, int T>
inline void products(LinearBuffers b, constant LinearParams* p, uint3 at, uint lane, uint simd) {
    typedef typename W::Element Element;
    enum { SUMS = OUTPUTS * T };
    int first_out = (int)(at.y * SIMDS + simd) * OUTPUTS, first_row = (int)at.x * T;
    if (first_out >= p->out_features) return;
    device const Element* weight = (device const Element*)b.weight;
    if (T == 1 && p->present & HAS_EXPERTS) weight += (long)b.experts[first_row] * p->expert_stride;
    // Beyond the ends lie the last output and row, again.
    device const Element* w[OUTPUTS];
    device const float* x[T];
    UNROLL
    for (int r = 0; r < OUTPUTS; ++r)
        w[r] = weight + (long)metal::min(first_out + r, p->out_features - 1) * p->in_features;
    UNROLL
    for (int t = 0; t < T; ++t)
        x[t] = b.x + (long)(metal::min(first_row + t, p->num_rows - 1) / p->rows_per_x) * p->x_stride;
    float sums[SUMS];
    UNROLL
    for (int i = 0; i < SUMS; ++i) sums[i] = 0.0f;
    for (int j = 4 * (int)lane; j < p->in_features; j += 128) {
        float4 v[OUTPUTS];
        UNROLL
        for (int r = 0; r < OUTPUTS; ++r) v[r] = load_four<W>(w[r] + j);
        UNROLL
        for (int t = 0; t < T; ++t) {
            float4 u = *(device const float4*)(x[t] + j);
            UNROLL
            for (int r = 0; r < OUTPUTS; ++r) {
                float sum = metal::fma(v[r][0], u[0], sums[r * T + t]);
                sum = metal::fma(v[r][1], u[1], sum);
                sum = metal::fma(v[r][2], u[2], sum);
                sums[r * T + t] = metal::fma(v[r][3], u[3], sum);
            }
        }
    }
    int index;
    float sum = lanes_sums<SUMS>(sums, lane, index);
    int out = first_out + index / T, row = first_row + index % T;
    if (lane % (32 / SUMS) == 0 && row < p->num_rows && out < p->out_features) b.y[row * p->y_stride + out] = sum;
}

#define LINEAR(name, W, T)                                                                                       \
    kernel void name(device const uchar* weight [[buffer(0)]], device const float* x [[buffer(1)]],              \
                     device const uint* experts [[buffer(2)]], device float* y [[buffer(3)]],                    \
                     constant LinearParams& params [[buffer(4)]], uint3 at [[threadgroup_position_in_grid]],     \
                     uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {    \
        LinearBuffers buffers = {weight, x, experts, y};                                                         \
        products<W, T>(buffers, &params, at, lane, simd);                                                        \
    }
#define LINEAR_OF(W, dtype)                  \
    LINEAR(dense_linear_##dtype##_t1, W, 1)  \
    LINEAR(dense_linear_##dtype##_t4, W, 4)  \
    LINEAR(dense_linear_##dtype##_t8, W, 8)

// Element types of weights are those of states.
LINEAR_OF(F32State, f32)
LINEAR_OF(Bf16State, bf16)
LINEAR_OF(F16State, f16)
