// The functions of prelude.cuh that are PTX, without it: the same bits. The emulator's headers come before this.
#pragma once

__device__ __forceinline__ float from_f16(u16 x) {
    u32 sign = (u32)(x & 0x8000u) << 16, rest = x & 0x7fffu;
    if (rest > 0x7c00u) return __uint_as_float(0x7fffffffu);
    if (rest == 0x7c00u) return __uint_as_float(sign | 0x7f800000u);
    // Exponents 112 apart; what is subnormal counts steps of 2^-24.
    if (rest >= 0x0400u) return __uint_as_float(sign | ((rest << 13) + (112u << 23)));
    float value = __fmul_rn((float)rest, 1.0f / 16777216.0f);
    return __uint_as_float(sign | __float_as_uint(value));
}
// Drops `shift` bits, to nearest even; shift >= 1.
__device__ __forceinline__ u32 drop_bits(u32 x, int shift) {
    u32 half = (1u << (shift - 1)) - 1u;
    return (x + half + ((x >> shift) & 1u)) >> shift;
}
__device__ __forceinline__ u16 to_f16(float x) {
    u32 bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return 0x7fff;
    // From 65520 on, half a step beyond the largest number, lies infinity.
    if (rest >= 0x477ff000u) return (u16)(sign | 0x7c00u);
    // From 2^-14 on numbers are normal.
    if (rest >= 0x38800000u) return (u16)(sign | drop_bits(rest - (112u << 23), 13));
    // Below 2^-25 they are nearer to 0 than to the smallest.
    if (rest < 0x33000000u) return (u16)sign;
    int exponent = (int)(rest >> 23);
    u32 mantissa = (rest & 0x7fffffu) | 0x800000u;
    return (u16)(sign | drop_bits(mantissa, 126 - exponent));
}
__device__ __forceinline__ u32 to_f16x2(float x, float y) { return (u32)to_f16(y) << 16 | to_f16(x); }

__device__ __forceinline__ u32 bf16_bits(float x) {
    u32 bits = __float_as_uint(x);
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : drop_bits(bits, 16);
}
__device__ __forceinline__ u32 to_bf16x2(float x, float y) { return bf16_bits(y) << 16 | bf16_bits(x); }

__device__ __forceinline__ int thread_index() { return (int)threadIdx.x; }

// Not there before `copies_done`: until then the emulator shows other bits in their place.
template <typename T>
__device__ __forceinline__ void copy_async(T* to, const T* from) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "sizes of cp.async");
    emulated_copy_async(to, from, sizeof(T));
}
__device__ __forceinline__ void copies_done() { emulated_copies_done(); }
// Waits for the whole block.
__device__ __forceinline__ void join_threads(int, int) { __syncthreads(); }
__device__ __forceinline__ void prefetch(const void*) {}
