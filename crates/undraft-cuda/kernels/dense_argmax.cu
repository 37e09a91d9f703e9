// dense_argmax: the largest of every row, of equal ones the first; in two launches, of PART elements each, then of the parts.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | x | [num_rows, len] | f32 | in |
// | parts | [num_rows, num_parts]: order and index | u64 | out, then in |
// | out | [num_rows]; 2^32 - 1 for a row with NaN or plus infinity, or of minus infinity alone | u32 | out |
#include "dense.cuh"

#define ARGMAX_THREADS 256
#define ARGMAX_PART 4096

struct ArgmaxParams {
    const float* x;
    u64* parts;
    u32* out;
    i64 len;
    int num_rows, num_parts;
};

// One block a (part, row).
extern "C" __global__ void __launch_bounds__(ARGMAX_THREADS) dense_argmax_parts(const __grid_constant__ ArgmaxParams p) {
    constexpr int WARPS = ARGMAX_THREADS / 32;
    i64 first = (i64)blockIdx.x * ARGMAX_PART, end = min(first + ARGMAX_PART, p.len);
    const float* x = p.x + blockIdx.y * p.len;
    u64 best = 0;
    for (i64 i = first + threadIdx.x; i < end; i += ARGMAX_THREADS) {
        u64 order = order_with_index(x[i], (u32)i);
        best = order > best ? order : best;
    }
    best = warp_max(best);
    u64* warps = dense_shared<u64>();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int w = 1; w < WARPS; ++w) best = warps[w] > best ? warps[w] : best;
    p.parts[(i64)blockIdx.y * p.num_parts + blockIdx.x] = best;
}

// One warp a row.
extern "C" __global__ void __launch_bounds__(32) dense_argmax(const __grid_constant__ ArgmaxParams p) {
    u64 best = 0;
    for (int i = threadIdx.x; i < p.num_parts; i += 32) {
        u64 order = p.parts[(i64)blockIdx.x * p.num_parts + i];
        best = order > best ? order : best;
    }
    best = warp_max(best);
    u32 order = (u32)(best >> 32);
    bool valid = order != ORDER_INVALID && order != ORDER_MINUS_INFINITY;
    if (threadIdx.x == 0) p.out[blockIdx.x] = valid ? index_of(best) : 0xffffffffu;
}
