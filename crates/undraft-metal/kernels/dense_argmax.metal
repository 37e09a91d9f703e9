// dense_argmax: the largest of every row, of equal ones the first; in two launches, of PART elements each, then of the parts.
//
// | slot | name | shape | dtype | direction |
// | --- | --- | --- | --- | --- |
// | 0 | x | [num_rows, len] | f32 | in |
// | 1 | parts | [num_rows, num_parts, 2]: order and index | u32 | out, then in |
// | 2 | out | [num_rows]; 2^32 - 1 for a row with NaN or plus infinity, or of minus infinity alone | u32 | out |
// | 3 | params | ArgmaxParams | | in |
//
// Threadgroups: (num_parts, num_rows), of 256 threads; then num_rows, of 32 threads.
#include "dense.h"

#define PART 4096
#define THREADS 256

struct ArgmaxParams {
    long len;
    int num_parts;
};

kernel void dense_argmax_parts(
    device const float* rows [[buffer(0)]], device uint* parts [[buffer(1)]], constant ArgmaxParams& p [[buffer(3)]],
    threadgroup uint* shared [[threadgroup(0)]], uint3 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simd [[simdgroup_index_in_threadgroup]]) {
    long row = at.y, first = (long)at.x * PART, end = first + PART < p.len ? first + PART : p.len;
    device const float* x = rows + row * p.len;
    Ranked best = ranked_none();
    for (long i = first + tid; i < end; i += THREADS) {
        Ranked candidate = {order_of(x[i]), (int)i};
        if (above(candidate, best)) best = candidate;
    }
    best = lanes_best(best);
    if (lane == 0) shared[2 * simd] = best.order, shared[2 * simd + 1] = (uint)best.index;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid > 0) return;
    for (int i = 1; i < THREADS / 32; ++i) {
        Ranked candidate = {shared[2 * i], (int)shared[2 * i + 1]};
        if (above(candidate, best)) best = candidate;
    }
    device uint* part = parts + 2 * (row * p.num_parts + at.x);
    part[0] = best.order, part[1] = (uint)best.index;
}

kernel void dense_argmax(
    device const uint* parts [[buffer(1)]], device uint* out [[buffer(2)]], constant ArgmaxParams& p [[buffer(3)]],
    uint3 at [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    Ranked best = ranked_none();
    for (int i = (int)lane; i < p.num_parts; i += 32) {
        device const uint* part = parts + 2 * ((long)at.x * p.num_parts + i);
        Ranked candidate = {part[0], (int)part[1]};
        if (above(candidate, best)) best = candidate;
    }
    best = lanes_best(best);
    bool valid = best.order != ORDER_INVALID && best.order > ORDER_MINUS_INFINITY;
    if (lane == 0) out[at.x] = valid ? (uint)best.index : 0xffffffffu;
}
