// Products of 16-bit matrices by one warp, sums in f32, and f32 numbers as sums of bf16.
//
// mma.m16n8k16, D += A B. With row = lane / 4 and pair = 2 (lane % 4), a lane holds of
//
//     D [16 x 8]   d[0], d[1]: row, columns pair, pair + 1;   d[2], d[3]: row + 8, the same
//     A [16 x 16]  a[0]: row, columns pair, pair + 1;  a[1]: row + 8;  a[2], a[3]: the same, columns + 8
//     B [16 x 8]   b0: rows pair, pair + 1 of column `row`;  b1: rows + 8
//
// so that two neighbouring D make an A. The tensor cores cut partial sums off, toward zero: long sums are cut in pieces, which
// ordinary additions join.
#pragma once
#include "prelude.cuh"

namespace mma {

#ifndef UNDRAFT_WITHOUT_PTX
__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Four 8 x 8 matrices of 16-bit elements in shared memory: lane i gives row i % 8 (16 bytes) of matrix i / 8 and gets of each
// matrix the elements pair and pair + 1 of row `row`.
__device__ __forceinline__ void load_matrices(u32 (&x)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"((u32)__cvta_generic_to_shared(row)));
}
// The same transposed: rows pair and pair + 1 of column `row`.
__device__ __forceinline__ void load_matrices_transposed(u32 (&x)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"((u32)__cvta_generic_to_shared(row)));
}
#else
// What the lanes of a warp bring to a product, in C++.
struct Product {
    float* d;
    const u32* a;
    u32 b[2];
};
__device__ __forceinline__ float half_of(u32 x, int upper) { return from_bf16((u16)(upper ? x >> 16 : x)); }
inline void multiply_all(lockstep::Exchange& e, uint32_t) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane) {
        const Product& from = *(const Product*)e.value[lane];
        int row = lane / 4, pair = 2 * (lane % 4);
        for (int i = 0; i < 8; ++i) a[row + i / 2 % 2 * 8][pair + i / 4 * 8 + i % 2] = half_of(from.a[i / 2], i % 2);
        for (int i = 0; i < 4; ++i) b[pair + i / 2 * 8 + i % 2][row] = half_of(from.b[i / 2], i % 2);
    }
    for (int row = 0; row < 16; ++row) {
        float sum[8] = {};
        for (int k = 0; k < 16; ++k)
            for (int column = 0; column < 8; ++column) sum[column] = __fmaf_rn(a[row][k], b[k][column], sum[column]);
        for (int column = 0; column < 8; ++column) {
            float& d = ((const Product*)e.value[row % 8 * 4 + column / 2])->d[row / 8 * 2 + column % 2];
            d = __fadd_rn(d, sum[column]);
        }
    }
}
__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    Product product = {d, a, {b0, b1}};
    lockstep::collective(multiply_all, ~0u, (uint64_t)&product, 0, {"mma", __FILE__, __LINE__});
}
__device__ __forceinline__ u16 element(const void* row, int i) { return ((const u16*)row)[i]; }
__device__ __forceinline__ const void* row_of(const void* row, int lane) {
    return (const void*)__shfl_sync(~0u, (u64)row, lane);
}
__device__ __forceinline__ void load_matrices(u32 (&x)[4], const void* row) {
    int lane = thread_index() % 32, pair = 2 * (lane % 4);
    for (int i = 0; i < 4; ++i) {
        const void* from = row_of(row, 8 * i + lane / 4);
        x[i] = (u32)element(from, pair + 1) << 16 | element(from, pair);
    }
}
__device__ __forceinline__ void load_matrices_transposed(u32 (&x)[4], const void* row) {
    int lane = thread_index() % 32, pair = 2 * (lane % 4);
    for (int i = 0; i < 4; ++i) {
        const void *first = row_of(row, 8 * i + pair), *second = row_of(row, 8 * i + pair + 1);
        x[i] = (u32)element(second, lane / 4) << 16 | element(first, lane / 4);
    }
}
#endif

__device__ __forceinline__ float lower_bf16(u32 x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float upper_bf16(u32 x) { return __uint_as_float(x & 0xffff0000u); }

// x and y as sums of N bf16, the largest first: within 2^-9, 2^-18, 2^-27 of them.
template <int N>
__device__ __forceinline__ void split(float x, float y, u32 (&parts)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        parts[i] = to_bf16x2(x, y);
        x = __fsub_rn(x, lower_bf16(parts[i])), y = __fsub_rn(y, upper_bf16(parts[i]));
    }
}
// Two neighbouring D as N summands of an A.
template <int N>
__device__ __forceinline__ void split(const float (&left)[4], const float (&right)[4], u32 (&a)[N][4]) {
    u32 parts[N];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float* d = (i < 2 ? left : right) + 2 * (i % 2);
        split(d[0], d[1], parts);
#pragma unroll
        for (int n = 0; n < N; ++n) a[n][i] = parts[n];
    }
}

}  // namespace mma
