// What the kernels of the dense parts share. Every sum runs in an order that follows from the sizes of the layer and from
// positions, never from the number of tokens of a call.
#pragma once
#include "prelude.cuh"

template <typename T>
__device__ __forceinline__ T* dense_shared() {
    extern __shared__ __align__(16) unsigned char shared[];
    return (T*)shared;
}

// Sum over a block of WARPS warps, the same bits in each thread: lanes pairwise, then the warps in order. `scratch` holds
// WARPS values and may be written again behind the next __syncthreads.
template <int WARPS>
__device__ __forceinline__ float block_sum(float x, float* scratch) {
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) sum = __fadd_rn(sum, scratch[w]);
    return sum;
}

// Sums over the lanes of N values (a power of two, at most 32), added as warp_sum adds them. A lane gets one of them, that of
// value `index`; the first of every 32 / N lanes has one that no lane before it has.
template <int N>
__device__ __forceinline__ float warp_sums(float (&x)[N], int lane, int& index) {
    index = 0;
#pragma unroll
    for (int step = 0; step < 5; ++step) {
        int n = N >> (step + 1), o = 16 >> step;
        // A lane keeps half of the values, and gives the other half to its partner.
        bool upper = (lane & o) != 0;
#pragma unroll
        for (int i = 0; i < N / 2; ++i)
            if (i < n) {
                float kept = upper ? x[i + n] : x[i], given = upper ? x[i] : x[i + n];
                x[i] = __fadd_rn(kept, __shfl_xor_sync(~0u, given, o));
            }
        if (n == 0) x[0] = __fadd_rn(x[0], __shfl_xor_sync(~0u, x[0], o));
        index += upper ? n : 0;
    }
    return x[0];
}

// Numbers of floats that order as they do; both zeros are the same, NaN of either sign and infinity are above all.
#define ORDER_INVALID 0xffffffffu
#define ORDER_MINUS_INFINITY 0x007fffffu
__device__ __forceinline__ u32 order_of(float x) {
    u32 bits = __float_as_uint(__fadd_rn(x, 0.0f));
    if ((bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u) return ORDER_INVALID;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
// The number of a float and, of equal ones, the lower index above.
__device__ __forceinline__ u64 order_with_index(float x, u32 index) { return (u64)order_of(x) << 32 | (~index & 0xffffffffu); }
__device__ __forceinline__ u32 index_of(u64 order) { return ~(u32)order; }

__device__ __forceinline__ u64 warp_max(u64 x) {
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        u64 other = __shfl_xor_sync(~0u, x, o);
        x = other > x ? other : x;
    }
    return x;
}
