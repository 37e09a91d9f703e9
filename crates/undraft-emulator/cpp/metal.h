// The Metal Shading Language in C++, as far as the kernels use it; comes before their first line.
//
// Address spaces vanish, a kernel is a function of its unit, and its arguments come from a table by their attributes, which the
// build reads. Build with -ffp-contract=off. Functions of a simdgroup take the source line of their call, by which lanes that
// meet in different calls are told apart.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "lockstep.h"

typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;

// ---- vectors ----------------------------------------------------------------------------------------------------

struct uint3 {
    uint x, y, z;
};
struct alignas(8) ushort4 {
    ushort element[4];
    ushort4() = default;
    ushort4(ushort a, ushort b, ushort c, ushort d) : element{a, b, c, d} {}
    ushort& operator[](int i) { return element[i]; }
    ushort operator[](int i) const { return element[i]; }
};
struct float4 {
    typedef float Lanes __attribute__((vector_size(16)));
    Lanes lanes;
    float4() = default;
    float4(Lanes x) : lanes(x) {}
    explicit float4(float x) : lanes{x, x, x, x} {}
    float4(float a, float b, float c, float d) : lanes{a, b, c, d} {}
    float& operator[](int i) { return ((float*)&lanes)[i]; }
    float operator[](int i) const { return lanes[i]; }
};
inline float4 operator+(float4 a, float4 b) { return a.lanes + b.lanes; }
inline float4 operator-(float4 a, float4 b) { return a.lanes - b.lanes; }
inline float4 operator*(float4 a, float4 b) { return a.lanes * b.lanes; }

namespace metal {

// ---- arithmetic -------------------------------------------------------------------------------------------------

template <typename To, typename From>
inline To as_type(From from) {
    static_assert(sizeof(To) == sizeof(From), "as_type of as many bytes");
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float4 fma(float4 a, float4 b, float4 c) {
    float4 x;
    for (int i = 0; i < 4; ++i) x.lanes[i] = __builtin_fmaf(a.lanes[i], b.lanes[i], c.lanes[i]);
    return x;
}
inline float fabs(float x) { return __builtin_fabsf(x); }
inline float rint(float x) { return __builtin_rintf(x); }
namespace precise {
inline float sqrt(float x) { return __builtin_sqrtf(x); }
}  // namespace precise
template <typename T>
inline T min(T a, T b) { return b < a ? b : a; }
template <typename T>
inline T max(T a, T b) { return a < b ? b : a; }

// ---- simdgroups and threadgroups --------------------------------------------------------------------------------

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }

// Where a call is, as default arguments see it.
#define LOCKSTEP_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

template <typename T>
inline T lockstep_gather(T x, unsigned from, ::lockstep::Site site) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    std::memcpy(&bits, &x, sizeof(T));
    bits = ::lockstep::collective(::lockstep::gather, ~0u, bits, from, site);
    std::memcpy(&x, &bits, sizeof(T));
    return x;
}
template <typename T>
inline T simd_shuffle(T x, ushort from, LOCKSTEP_HERE) {
    return lockstep_gather(x, from, {"simd_shuffle", file, line});
}
template <typename T>
inline T simd_shuffle_xor(T x, ushort bits, LOCKSTEP_HERE) {
    return lockstep_gather(x, ::lockstep::lane->index ^ bits, {"simd_shuffle_xor", file, line});
}
template <typename T>
inline T simd_broadcast(T x, ushort from, LOCKSTEP_HERE) {
    return lockstep_gather(x, from, {"simd_broadcast", file, line});
}
inline bool simd_any(bool x, LOCKSTEP_HERE) {
    return ::lockstep::collective(::lockstep::ballot, ~0u, x, 0, {"simd_any", file, line}) != 0;
}
inline bool simd_all(bool x, LOCKSTEP_HERE) {
    return ::lockstep::collective(::lockstep::ballot, ~0u, !x, 0, {"simd_all", file, line}) == 0;
}
inline void simdgroup_barrier(mem_flags, LOCKSTEP_HERE) {
    ::lockstep::collective(nullptr, ~0u, 0, 0, {"simdgroup_barrier", file, line});
}
inline void threadgroup_barrier(mem_flags, LOCKSTEP_HERE) {
    ::lockstep::barrier({"threadgroup_barrier", file, line});
}
#undef LOCKSTEP_HERE

}  // namespace metal

// ---- kernels ----------------------------------------------------------------------------------------------------

// What the host gives to a launch, as `Arguments` of src/metal/engine.rs has it.
struct MetalArguments {
    void* buffers[31];
};
// One memory for all kernels of a thread of the host.
extern "C" unsigned char* lockstep_metal_shared();
constexpr size_t LOCKSTEP_METAL_SHARED = 32768 + 256;

// An attribute and its index.
enum MetalAttribute : unsigned {
    METAL_BUFFER,
    METAL_THREADGROUP,
    METAL_THREAD_POSITION_IN_THREADGROUP,
    METAL_THREAD_POSITION_IN_GRID,
    METAL_THREADGROUP_POSITION_IN_GRID,
    METAL_THREADGROUPS_PER_GRID,
    METAL_THREADS_PER_THREADGROUP,
    METAL_THREAD_INDEX_IN_THREADGROUP,
    METAL_THREAD_INDEX_IN_SIMDGROUP,
    METAL_SIMDGROUP_INDEX_IN_THREADGROUP,
};
template <typename T, unsigned ATTRIBUTE, unsigned INDEX>
inline T metal_argument(const MetalArguments& arguments) {
    const ::lockstep::Index thread = ::lockstep::lane->thread, group = ::lockstep::block->index,
                            groups = ::lockstep::block->grid, threads = ::lockstep::block->threads;
    const uint linear = thread.x + threads.x * (thread.y + threads.y * thread.z);
    if constexpr (ATTRIBUTE == METAL_BUFFER && std::is_reference_v<T>)
        return *(std::remove_reference_t<T>*)arguments.buffers[INDEX];
    else if constexpr (ATTRIBUTE == METAL_BUFFER)
        return (T)arguments.buffers[INDEX];
    else if constexpr (ATTRIBUTE == METAL_THREADGROUP)
        return (T)lockstep_metal_shared();
    else if constexpr (ATTRIBUTE == METAL_THREAD_POSITION_IN_THREADGROUP)
        return T{thread.x, thread.y, thread.z};
    else if constexpr (ATTRIBUTE == METAL_THREAD_POSITION_IN_GRID)
        return T{group.x * threads.x + thread.x, group.y * threads.y + thread.y, group.z * threads.z + thread.z};
    else if constexpr (ATTRIBUTE == METAL_THREADGROUP_POSITION_IN_GRID)
        return T{group.x, group.y, group.z};
    else if constexpr (ATTRIBUTE == METAL_THREADGROUPS_PER_GRID)
        return T{groups.x, groups.y, groups.z};
    else if constexpr (ATTRIBUTE == METAL_THREADS_PER_THREADGROUP)
        return T{threads.x, threads.y, threads.z};
    else if constexpr (ATTRIBUTE == METAL_THREAD_INDEX_IN_THREADGROUP)
        return (T)linear;
    else if constexpr (ATTRIBUTE == METAL_THREAD_INDEX_IN_SIMDGROUP)
        return (T)::lockstep::lane->index;
    else
        return (T)(linear / ::lockstep::LANES);
}
// A kernel as a function of its arguments in memory; each of `PLACES` is 256 times an attribute plus an index.
template <auto Function, unsigned... PLACES>
struct MetalEntry;
template <typename... T, void (*Function)(T...), unsigned... PLACES>
struct MetalEntry<Function, PLACES...> {
    static_assert(sizeof...(T) == sizeof...(PLACES), "an attribute for each argument");
    static void run(const void* param) {
        const MetalArguments& arguments = *static_cast<const MetalArguments*>(param);
        Function(metal_argument<T, PLACES / 256, PLACES % 256>(arguments)...);
    }
};

// ---- words of the language: last, so that no header meets them -----------------------------------------------------

// The build looks for another word in the preprocessed source, to find the kernels.
#ifndef LOCKSTEP_METAL_KERNEL
#define LOCKSTEP_METAL_KERNEL static
#endif
#define kernel LOCKSTEP_METAL_KERNEL
#define device
#define constant const
#define thread
#define threadgroup
