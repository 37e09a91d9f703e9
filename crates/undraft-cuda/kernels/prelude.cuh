// What the kernels share: element types, loads and stores, reductions. No headers of others, so that nvcc and NVRTC compile
// the same text; with UNDRAFT_WITHOUT_PTX a C++ compiler does, for runs in emulation on the CPU. Built with -fmad=false: a multiplication and an addition are fused where __fmaf_rn says so, and only there.
#pragma once

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;
typedef long long i64;

// Dtypes of tensors that are told apart at run time (they are read once a token, not once a state element).
enum DType { F32 = 0, BF16 = 1, F16 = 2 };
// How the decay is given.
enum DecayForm { DECAY_LOG = 0, DECAY_LINEAR = 1, DECAY_NEG_LOG = 2, DECAY_GATE = 3 };
// What a window leaves.
enum Capture { CAPTURE_FINAL = 0, CAPTURE_PER_TOKEN = 1, CAPTURE_DELTA_LOG = 2 };

struct Bf16 {
    u16 bits;
};
struct F16s {
    u16 bits;
};

__device__ __forceinline__ float from_bf16(u16 x) { return __uint_as_float((u32)x << 16); }

#ifndef UNDRAFT_WITHOUT_PTX
__device__ __forceinline__ float from_f16(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
// Nearest even; beyond the largest number lies infinity; every NaN becomes 0x7fff.
__device__ __forceinline__ u16 to_f16(float x) {
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
// Two neighbours, the first in the lower half.
__device__ __forceinline__ u32 to_f16x2(float x, float y) {
    u32 z;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(z) : "f"(y), "f"(x));
    return z;
}
__device__ __forceinline__ u32 to_bf16x2(float x, float y) {
    u32 z;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(z) : "f"(y), "f"(x));
    return z;
}
// threadIdx.x, read anew.
__device__ __forceinline__ int thread_index() {
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}

// Asynchronous copies to shared memory, each thread its own: what a thread copied it may read after `copies_done`.
__device__ __forceinline__ void copy_async(float4* to, const float4* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from));
}
__device__ __forceinline__ void copy_async(uint2* to, const uint2* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from));
}
__device__ __forceinline__ void copy_async(float* to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from));
}
__device__ __forceinline__ void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Waits for as many threads at a barrier; 0 is that of __syncthreads. Every part of the block must come here alike.
__device__ __forceinline__ void join_threads(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Begins to bring a line to the L2 cache; reads nothing.
__device__ __forceinline__ void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
#else
#include "without_ptx.cuh"
#endif
__device__ __forceinline__ u16 to_bf16(float x) { return (u16)to_bf16x2(x, 0.0f); }

__device__ __forceinline__ float load_as_f32(const void* p, int dtype, i64 i) {
    if (dtype == F32) return ((const float*)p)[i];
    u16 x = ((const u16*)p)[i];
    return dtype == BF16 ? from_bf16(x) : from_f16(x);
}
__device__ __forceinline__ const void* element(const void* p, int dtype, i64 i) {
    return (const char*)p + i * (dtype == F32 ? 4 : 2);
}
// The two halves of `load_as_f32`: loads of many elements go out before the first is waited for.
__device__ __forceinline__ u32 load_raw(const void* p, int dtype, i64 i) {
    return dtype == F32 ? ((const u32*)p)[i] : ((const u16*)p)[i];
}
__device__ __forceinline__ float raw_to_f32(u32 x, int dtype) {
    return dtype == F32 ? __uint_as_float(x) : dtype == BF16 ? from_bf16((u16)x) : from_f16((u16)x);
}
__device__ __forceinline__ void store_from_f32(void* p, int dtype, i64 i, float x) {
    if (dtype == F32)
        ((float*)p)[i] = x;
    else
        ((u16*)p)[i] = dtype == BF16 ? to_bf16(x) : to_f16(x);
}
__device__ __forceinline__ float round_to(float x, int dtype) {
    if (dtype == BF16) return from_bf16(to_bf16(x));
    if (dtype == F16) return from_f16(to_f16(x));
    return x;
}

// Element types of states. `Four` is four neighbours as they lie in memory.
template <typename S>
struct StateOf;
template <>
struct StateOf<float> {
    typedef float4 Four;
    static __device__ __forceinline__ float get(const float* p) { return *p; }
    static __device__ __forceinline__ void put(float* p, float x) { *p = x; }
    static __device__ __forceinline__ float round(float x) { return x; }
    static __device__ __forceinline__ void round4(float (&)[4]) {}
    static __device__ __forceinline__ void unpack(float4 f, float (&x)[4]) { x[0] = f.x, x[1] = f.y, x[2] = f.z, x[3] = f.w; }
    static __device__ __forceinline__ float4 pack(const float (&x)[4]) { return make_float4(x[0], x[1], x[2], x[3]); }
};
template <>
struct StateOf<Bf16> {
    typedef uint2 Four;
    static __device__ __forceinline__ float get(const Bf16* p) { return from_bf16(p->bits); }
    static __device__ __forceinline__ void put(Bf16* p, float x) { p->bits = to_bf16(x); }
    static __device__ __forceinline__ float round(float x) { return from_bf16(to_bf16(x)); }
    // An upper half above zeros is the number itself.
    static __device__ __forceinline__ void round4(float (&x)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = __uint_as_float(to_bf16x2(0.0f, x[i]));
    }
    static __device__ __forceinline__ void unpack(uint2 f, float (&x)[4]) {
        x[0] = __uint_as_float(f.x << 16), x[1] = __uint_as_float(f.x & 0xffff0000u);
        x[2] = __uint_as_float(f.y << 16), x[3] = __uint_as_float(f.y & 0xffff0000u);
    }
    static __device__ __forceinline__ uint2 pack(const float (&x)[4]) {
        return make_uint2(to_bf16x2(x[0], x[1]), to_bf16x2(x[2], x[3]));
    }
};
template <>
struct StateOf<F16s> {
    typedef uint2 Four;
    static __device__ __forceinline__ float get(const F16s* p) { return from_f16(p->bits); }
    static __device__ __forceinline__ void put(F16s* p, float x) { p->bits = to_f16(x); }
    static __device__ __forceinline__ float round(float x) { return from_f16(to_f16(x)); }
    static __device__ __forceinline__ void round4(float (&x)[4]) { unpack(pack(x), x); }
    static __device__ __forceinline__ void unpack(uint2 f, float (&x)[4]) {
        x[0] = from_f16((u16)f.x), x[1] = from_f16((u16)(f.x >> 16));
        x[2] = from_f16((u16)f.y), x[3] = from_f16((u16)(f.y >> 16));
    }
    static __device__ __forceinline__ uint2 pack(const float (&x)[4]) {
        return make_uint2(to_f16x2(x[0], x[1]), to_f16x2(x[2], x[3]));
    }
};

// Launches that overlap (sm_90 and up): what was launched before on the stream is complete after `wait_for_previous`; the
// next launch may begin once every block has called `let_next_begin`.
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Sum over the 32 lanes of a warp, the same bits in each.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int o = 16; o; o >>= 1) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, o));
    return x;
}

// e^x and log(1 + y) for 0 <= y <= 1 in f64, to some units in the last place. Their terms are added in pairs, pairs of pairs and
// so on, since a block of few tokens waits for each gate.
__device__ __forceinline__ double exp64(double x) {
    // x = n log 2 + r; n lies in the low bits of a sum that has no bits behind the point.
    const double shift = 6755399441055744.0;
    double sum = __fma_rn(x, 1.4426950408889634, shift), n = sum - shift;
    double r = __fma_rn(n, -1.9082149292705877e-10, __fma_rn(n, -6.93147180369123816490e-01, x));
    double r2 = r * r, r4 = r2 * r2, r8 = r4 * r4;
    double p0 = __fma_rn(r2, __fma_rn(r, 1.0 / 6.0, 0.5), 1.0 + r);
    double p4 = __fma_rn(r2, __fma_rn(r, 1.0 / 5040.0, 1.0 / 720.0), __fma_rn(r, 1.0 / 120.0, 1.0 / 24.0));
    double p8 = __fma_rn(r2, __fma_rn(r, 1.0 / 39916800.0, 1.0 / 3628800.0), __fma_rn(r, 1.0 / 362880.0, 1.0 / 40320.0));
    double p12 = __fma_rn(r, 1.0 / 6227020800.0, 1.0 / 479001600.0);
    double power = __fma_rn(r8, __fma_rn(r4, p12, p8), __fma_rn(r4, p4, p0));
    double y = power * __longlong_as_double((i64)((u64)(__double_as_longlong(sum) + 1023) << 52));
    // Beyond these n has more bits than an exponent.
    return x < -708.0 ? 0.0 : x > 709.0 ? __longlong_as_double(0x7ff0000000000000ll) : y;
}
__device__ __forceinline__ double log_of_one_and(double y) {
    // 2 artanh(s).
    double s = y / (2.0 + y), z = s * s, z2 = z * z, z4 = z2 * z2, z8 = z4 * z4;
    double p0 = __fma_rn(z2, __fma_rn(z, 1.0 / 7.0, 1.0 / 5.0), __fma_rn(z, 1.0 / 3.0, 1.0));
    double p4 = __fma_rn(z2, __fma_rn(z, 1.0 / 15.0, 1.0 / 13.0), __fma_rn(z, 1.0 / 11.0, 1.0 / 9.0));
    double p8 = __fma_rn(z2, __fma_rn(z, 1.0 / 23.0, 1.0 / 21.0), __fma_rn(z, 1.0 / 19.0, 1.0 / 17.0));
    double p12 = __fma_rn(z2, __fma_rn(z, 1.0 / 31.0, 1.0 / 29.0), __fma_rn(z, 1.0 / 27.0, 1.0 / 25.0));
    return (s + s) * __fma_rn(z8, __fma_rn(z4, p12, p8), __fma_rn(z4, p4, p0));
}

// softplus, the gate's log decay and sigmoid in f64, as the CPU has them.
struct Gate {
    double rate, bias;  // -e^a_log, dt_bias
    Gate() = default;
    __device__ __forceinline__ Gate(float a_log, float dt_bias) : rate(-exp64((double)a_log)), bias((double)dt_bias) {}
    __device__ __forceinline__ double log_decay(float a) const {
        double x = (double)a + bias;
        return rate * (fmax(x, 0.0) + log_of_one_and(exp64(-fabs(x))));
    }
};
__device__ __forceinline__ double sigmoid64(float x) { return 1.0 / (1.0 + exp64(-(double)x)); }
__device__ __forceinline__ float sigmoid32(float x) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x))); }
