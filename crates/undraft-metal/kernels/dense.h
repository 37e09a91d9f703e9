// What the kernels of the dense parts share. Every sum runs in an order that follows from the sizes of the layer and from
// positions, never from the number of tokens of a call.
#pragma once
#include "gates.h"

// Sum over a threadgroup of SIMDS simdgroups, the same bits in each thread: lanes pairwise, then the simdgroups in order. `shared`
// holds SIMDS values and may be written again behind the next barrier.
template <int SIMDS>
inline float threadgroup_sum(float x, threadgroup float* shared, uint lane, uint simd) {
    x = lanes_sum(x);
    if (lane == 0) shared[simd] = x;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float sum = 0.0f;
    UNROLL
    for (int i = 0; i < SIMDS; ++i) sum = sum + shared[i];
    return sum;
}

// Sums over the lanes of N values (a power of two, at most 32), added as lanes_sum adds them. A lane gets one of them, that of
// value `index`; the first of every 32 / N lanes has one that no lane before it has.
template <int N>
inline float lanes_sums(thread float (&x)[N], uint lane, thread int& index) {
    index = 0;
    UNROLL
    for (int step = 0; step < 5; ++step) {
        int n = N >> (step + 1);
        ushort o = (ushort)(16 >> step);
        // A lane keeps one part of the values, and gives the other part to its partner.
        bool upper = (lane & o) != 0;
        UNROLL
        for (int i = 0; i < N / 2; ++i)
            if (i < n) {
                float kept = upper ? x[i + n] : x[i], given = upper ? x[i] : x[i + n];
                x[i] = kept + simd_shuffle_xor(given, o);
            }
        if (n == 0) x[0] = x[0] + simd_shuffle_xor(x[0], o);
        index += upper ? n : 0;
    }
    return x[0];
}

// The largest of the lanes, in each; a NaN is never the largest.
inline float lanes_max(float x) {
    UNROLL
    for (ushort o = 16; o; o >>= 1) {
        float other = simd_shuffle_xor(x, o);
        x = other > x ? other : x;
    }
    return x;
}

// Numbers of floats that order as they do; both zeros are the same, NaN of either sign and infinity are above all.
#define ORDER_INVALID 0xffffffffu
#define ORDER_MINUS_INFINITY 0x007fffffu
inline uint order_of(float x) {
    uint bits = as_type<uint>(x), magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u || bits == 0x7f800000u) return ORDER_INVALID;
    if (magnitude == 0u) return 0x80000000u;
    return bits != magnitude ? ~bits : bits | 0x80000000u;
}

// The order of an element and its index, of equal orders the lower index above.
struct Ranked {
    uint order;
    int index;
};
// Below everything.
inline Ranked ranked_none() {
    Ranked none = {0u, 0x7fffffff};
    return none;
}
inline bool above(Ranked a, Ranked b) { return a.order > b.order || (a.order == b.order && a.index < b.index); }
inline Ranked lanes_best(Ranked x) {
    UNROLL
    for (ushort o = 16; o; o >>= 1) {
        Ranked other = {simd_shuffle_xor(x.order, o), simd_shuffle_xor(x.index, o)};
        if (above(other, x)) x = other;
    }
    return x;
}
