// The kernels of the recurrence as macros, each for the three element types of states.
#pragma once
#include "recurrent_any.cuh"
#include "recurrent_short.cuh"

// BLOCKS share a multiprocessor: at most 128 registers a thread where their warps are 16 together, 80 where 24.
#define SHORT_OF(dtype, S, KP, NR, TREE, EACH, AHEAD, WARPS, BLOCKS, kind)                                 \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)                                       \
        recurrent_##dtype##_k##KP##_r##NR##_##kind(const __grid_constant__ RecurrentParams p) {            \
        Short<S, KP, NR, TREE, EACH, WARPS, AHEAD>::run(p);                                                \
    }
#define ANY_OF(dtype, S, KP, NR, WHOLE, kind)                                                              \
    extern "C" __global__ void __launch_bounds__(128, 4)                                                   \
        recurrent_##dtype##_k##KP##_r##NR##_##kind(const __grid_constant__ RecurrentParams p) {            \
        Any<S, KP, NR, WHOLE>::run(p);                                                                     \
    }

#define SHORT(KP, NR, TREE, EACH, AHEAD, WARPS, BLOCKS, kind)                                              \
    SHORT_OF(f32, float, KP, NR, TREE, EACH, AHEAD, WARPS, BLOCKS, kind)                                   \
    SHORT_OF(bf16, Bf16, KP, NR, TREE, EACH, AHEAD, WARPS, BLOCKS, kind)                                   \
    SHORT_OF(f16, F16s, KP, NR, TREE, EACH, AHEAD, WARPS, BLOCKS, kind)
#define ANY(KP, NR, WHOLE, kind)                                                                           \
    ANY_OF(f32, float, KP, NR, WHOLE, kind) ANY_OF(bf16, Bf16, KP, NR, WHOLE, kind) ANY_OF(f16, F16s, KP, NR, WHOLE, kind)
