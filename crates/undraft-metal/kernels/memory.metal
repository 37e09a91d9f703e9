// memory: words that are written in their turn among launches, where the host would have to wait.
//
// | kernel | slot | name | shape | dtype | direction |
// | --- | --- | --- | --- | --- | --- |
// | write_words | 0 | to | [n] | u32 | out |
// | write_words | 1 | words | [1 + n]: n, at most 1,023, then what is written | u32 | in |
// | clear_words | 0 | to | [n] | u32 | out |
// | clear_words | 1 | params | ClearParams | | in |
//
// One thread a word. Threadgroups: n / 128 rounded up, of 128 threads.
#include "prelude.h"

kernel void write_words(
    device uint* to [[buffer(0)]], constant uint* words [[buffer(1)]], uint3 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
    uint i = at.x * 128 + tid;
    if (i < words[0]) to[i] = words[1 + i];
}

struct ClearParams {
    long num_words;
};

kernel void clear_words(
    device uint* to [[buffer(0)]], constant ClearParams& p [[buffer(1)]], uint3 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
    long i = (long)at.x * 128 + tid;
    if (i < p.num_words) to[i] = 0u;
}
