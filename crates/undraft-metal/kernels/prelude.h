// What the kernels share: element types, loads and stores, sums over a simdgroup.
//
// A multiplication and an addition are fused where `fma` says so, and only there. Every function below is made of operations
// that round as IEEE 754 says and of integer ones, so that results are the same wherever the kernels run.
#pragma once
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp contract(off)

#define UNROLL _Pragma("clang loop unroll(full)")

// Dtypes of tensors that are told apart at run time (they are read once a token, not once a state element).
enum DType { F32 = 0, BF16 = 1, F16 = 2 };
// How the decay is given.
enum DecayForm { DECAY_LOG = 0, DECAY_LINEAR = 1, DECAY_NEG_LOG = 2, DECAY_GATE = 3 };
// What a window leaves.
enum Capture { CAPTURE_FINAL = 0, CAPTURE_PER_TOKEN = 1, CAPTURE_DELTA_LOG = 2 };

inline float from_bf16(ushort x) { return as_type<float>((uint)x << 16); }
// Nearest even; beyond the largest number lies infinity; NaN stays NaN.
inline ushort to_bf16(float x) {
    uint bits = as_type<uint>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (ushort)(bits >> 16 | 0x40u);
    return (ushort)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// The language leaves to the GPU how a conversion to `half` rounds and whether it keeps subnormal numbers; these do not.
inline float from_f16(ushort x) {
    uint sign = (uint)(x & 0x8000u) << 16, exponent = x & 0x7c00u, rest = x & 0x7fffu;
    if (exponent == 0x7c00u) return as_type<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (exponent == 0u) return as_type<float>(sign | as_type<uint>((float)rest * 5.9604644775390625e-8f));
    return as_type<float>(sign | ((rest << 13) + 0x38000000u));
}
inline ushort to_f16(float x) {
    uint bits = as_type<uint>(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return (ushort)(sign | 0x7e00u);
    if (rest >= 0x477ff000u) return (ushort)(sign | 0x7c00u);
    if (rest >= 0x38800000u) {
        rest -= 0x38000000u;
        return (ushort)(sign | (rest + 0xfffu + (rest >> 13 & 1u)) >> 13);
    }
    // Subnormal: a multiple of 2^-24.
    uint exponent = rest >> 23;
    if (exponent < 102u) return (ushort)sign;
    uint shift = 126u - exponent, digits = (rest & 0x7fffffu) | 0x800000u;
    uint half_way = 1u << (shift - 1u), below = digits & ((1u << shift) - 1u), whole = digits >> shift;
    whole += below > half_way || (below == half_way && (whole & 1u)) ? 1u : 0u;
    return (ushort)(sign | whole);
}

inline float load_as_f32(device const uchar* p, int dtype, long i) {
    if (dtype == F32) return ((device const float*)p)[i];
    ushort x = ((device const ushort*)p)[i];
    return dtype == BF16 ? from_bf16(x) : from_f16(x);
}
inline void store_from_f32(device uchar* p, int dtype, long i, float x) {
    if (dtype == F32)
        ((device float*)p)[i] = x;
    else
        ((device ushort*)p)[i] = dtype == BF16 ? to_bf16(x) : to_f16(x);
}
inline float round_to(float x, int dtype) {
    if (dtype == BF16) return from_bf16(to_bf16(x));
    if (dtype == F16) return from_f16(to_f16(x));
    return x;
}

// Element types of states. `Four` is four neighbours as they lie in memory.
struct F32State {
    typedef float Element;
    typedef float4 Four;
    static float get(float x) { return x; }
    static float put(float x) { return x; }
};
struct Bf16State {
    typedef ushort Element;
    typedef ushort4 Four;
    static float get(ushort x) { return from_bf16(x); }
    static ushort put(float x) { return to_bf16(x); }
};
struct F16State {
    typedef ushort Element;
    typedef ushort4 Four;
    static float get(ushort x) { return from_f16(x); }
    static ushort put(float x) { return to_f16(x); }
};

template <typename S>
inline float4 load_four(device const typename S::Element* from) {
    typename S::Four four = *(device const typename S::Four*)from;
    return float4(S::get(four[0]), S::get(four[1]), S::get(four[2]), S::get(four[3]));
}
template <typename S>
inline void store_four(device typename S::Element* to, float4 x) {
    *(device typename S::Four*)to = typename S::Four(S::put(x[0]), S::put(x[1]), S::put(x[2]), S::put(x[3]));
}
template <typename S>
inline float4 round_four(float4 x) {
    return float4(S::get(S::put(x[0])), S::get(S::put(x[1])), S::get(S::put(x[2])), S::get(S::put(x[3])));
}

// Sum over the 32 lanes of a simdgroup, the same bits in each: lanes l and l ^ 16, then l ^ 8, .., l ^ 1. The order of `simd_sum`
// is the GPU's own.
inline float lanes_sum(float x) {
    UNROLL
    for (ushort o = 16; o; o >>= 1) x = x + simd_shuffle_xor(x, o);
    return x;
}
