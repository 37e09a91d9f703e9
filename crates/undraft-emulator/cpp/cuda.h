// The CUDA device language in C++, as far as the kernels use it; comes before their first line.
//
// Arithmetic with a rounding in its name rounds as IEEE 754 says; build with -ffp-contract=off. Warp functions take the
// source line of their call, by which lanes that meet in different calls are told apart.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lockstep.h"

#define UNDRAFT_WITHOUT_PTX 1

// The build looks for this word in the preprocessed source, to find the kernels' names.
#ifndef __global__
#define __global__
#endif
#define __device__
#define __host__
#define __constant__ static const
// Always, so that a file that changes a function for itself does not share it with others.
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
// Of the thread of the host that runs the block.
#ifndef __shared__
#define __shared__ thread_local
#endif

#define threadIdx (::lockstep::lane->thread)
#define blockIdx (::lockstep::block->index)
#define gridDim (::lockstep::block->grid)
#define blockDim (::lockstep::block->threads)
constexpr int warpSize = 32;

// ---- vectors ----------------------------------------------------------------------------------------------------

#define LOCKSTEP_VECTORS(T, name)                                        \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; };                   \
    struct name##3 { T x, y, z; };                                       \
    struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; }; \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }           \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }   \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
LOCKSTEP_VECTORS(float, float)
LOCKSTEP_VECTORS(double, double)
LOCKSTEP_VECTORS(int, int)
LOCKSTEP_VECTORS(unsigned int, uint)
LOCKSTEP_VECTORS(short, short)
LOCKSTEP_VECTORS(unsigned short, ushort)
LOCKSTEP_VECTORS(signed char, char)
LOCKSTEP_VECTORS(unsigned char, uchar)
LOCKSTEP_VECTORS(long long, longlong)
LOCKSTEP_VECTORS(unsigned long long, ulonglong)
#undef LOCKSTEP_VECTORS

// ---- arithmetic -------------------------------------------------------------------------------------------------

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return __builtin_sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float rsqrtf(float a) { return (float)(1.0 / __builtin_sqrt((double)a)); }

template <typename To, typename From>
inline To lockstep_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits of as many");
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}
inline float __uint_as_float(unsigned x) { return lockstep_bits<float>(x); }
inline float __int_as_float(int x) { return lockstep_bits<float>(x); }
inline unsigned __float_as_uint(float x) { return lockstep_bits<unsigned>(x); }
inline int __float_as_int(float x) { return lockstep_bits<int>(x); }
inline double __longlong_as_double(long long x) { return lockstep_bits<double>(x); }
inline long long __double_as_longlong(double x) { return lockstep_bits<long long>(x); }

template <typename A, typename B, typename = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
inline std::common_type_t<A, B> min(A a, B b) {
    typedef std::common_type_t<A, B> T;
    return (T)b < (T)a ? (T)b : (T)a;
}
template <typename A, typename B, typename = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
inline std::common_type_t<A, B> max(A a, B b) {
    typedef std::common_type_t<A, B> T;
    return (T)a < (T)b ? (T)b : (T)a;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
template <typename T>
inline T __ldg(const T* p) { return *p; }
template <typename T>
inline T __ldcs(const T* p) { return *p; }
template <typename T>
inline void __stcs(T* p, T x) { *p = x; }

// ---- warps and blocks -------------------------------------------------------------------------------------------

// Where a call is, as default arguments see it.
#define LOCKSTEP_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

template <typename T>
inline T lockstep_gather(unsigned mask, T x, unsigned from, ::lockstep::Site site) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    std::memcpy(&bits, &x, sizeof(T));
    bits = ::lockstep::collective(::lockstep::gather, mask, bits, from, site);
    std::memcpy(&x, &bits, sizeof(T));
    return x;
}
inline unsigned lockstep_lane() { return ::lockstep::lane->index; }

// Of lane `from` of the own segment of `width` lanes.
template <typename T>
inline T __shfl_sync(unsigned mask, T x, int from, int width = 32, LOCKSTEP_HERE) {
    unsigned first = lockstep_lane() & ~(unsigned)(width - 1);
    return lockstep_gather(mask, x, first | ((unsigned)from & (unsigned)(width - 1)), {"__shfl_sync", file, line});
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T x, int bits, int width = 32, LOCKSTEP_HERE) {
    unsigned me = lockstep_lane(), from = me ^ (unsigned)bits;
    if (from >= (me & ~(unsigned)(width - 1)) + (unsigned)width) from = me;
    return lockstep_gather(mask, x, from, {"__shfl_xor_sync", file, line});
}
template <typename T>
inline T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32, LOCKSTEP_HERE) {
    unsigned me = lockstep_lane(), first = me & ~(unsigned)(width - 1);
    return lockstep_gather(mask, x, me >= first + by ? me - by : me, {"__shfl_up_sync", file, line});
}
template <typename T>
inline T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32, LOCKSTEP_HERE) {
    unsigned me = lockstep_lane(), end = (me & ~(unsigned)(width - 1)) + (unsigned)width;
    return lockstep_gather(mask, x, me + by < end ? me + by : me, {"__shfl_down_sync", file, line});
}
inline unsigned __ballot_sync(unsigned mask, int x, LOCKSTEP_HERE) {
    return (unsigned)::lockstep::collective(::lockstep::ballot, mask, x != 0, 0, {"__ballot_sync", file, line});
}
inline int __any_sync(unsigned mask, int x, LOCKSTEP_HERE) {
    return ::lockstep::collective(::lockstep::ballot, mask, x != 0, 0, {"__any_sync", file, line}) != 0;
}
inline int __all_sync(unsigned mask, int x, LOCKSTEP_HERE) {
    return ::lockstep::collective(::lockstep::ballot, mask, x == 0, 0, {"__all_sync", file, line}) == 0;
}
inline void __syncwarp(unsigned mask = ~0u, LOCKSTEP_HERE) {
    ::lockstep::collective(nullptr, mask, 0, 0, {"__syncwarp", file, line});
}
inline void __syncthreads(LOCKSTEP_HERE) { ::lockstep::barrier({"__syncthreads", file, line}); }
#undef LOCKSTEP_HERE

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// ---- atomics: blocks run on several threads of the host -----------------------------------------------------------

template <typename T>
inline T atomicAdd(T* p, std::common_type_t<T> x) {
    if constexpr (std::is_integral_v<T>) {
        return __atomic_fetch_add(p, x, __ATOMIC_RELAXED);
    } else {
        T before, after;
        __atomic_load(p, &before, __ATOMIC_RELAXED);
        do after = before + x;
        while (!__atomic_compare_exchange(p, &before, &after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
        return before;
    }
}
template <typename T>
inline T atomicExch(T* p, std::common_type_t<T> x) {
    T before;
    __atomic_exchange(p, &x, &before, __ATOMIC_RELAXED);
    return before;
}
template <typename T>
inline T atomicCAS(T* p, std::common_type_t<T> expected, std::common_type_t<T> x) {
    __atomic_compare_exchange(p, &expected, &x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
template <typename T>
inline T atomicMax(T* p, std::common_type_t<T> x) {
    T before;
    __atomic_load(p, &before, __ATOMIC_RELAXED);
    while (before < x && !__atomic_compare_exchange(p, &before, &x, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return before;
}

// ---- what prelude.cuh asks for instead of PTX -------------------------------------------------------------------

inline void emulated_copy_async(void* to, const void* from, size_t bytes) { ::lockstep::copy_async(to, from, bytes); }
inline void emulated_copies_done() { ::lockstep::copies_done(); }

// ---- tables of kernels ------------------------------------------------------------------------------------------

// A kernel as a function of its parameter in memory.
template <auto Function>
struct LockstepEntry;
template <typename P, void (*Function)(P)>
struct LockstepEntry<Function> {
    typedef std::remove_cv_t<P> Param;
    static void run(const void* param) { Function(*static_cast<const Param*>(param)); }
    static constexpr size_t bytes = sizeof(Param);
};
