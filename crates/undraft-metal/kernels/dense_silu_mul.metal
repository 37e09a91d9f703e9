// dense_silu_mul: out = silu(gate) * up.
//
// | slot | name | shape | dtype | direction |
// | --- | --- | --- | --- | --- |
// | 0 | gate_up | [num_rows, 2, len]: the gates of a row, then what they gate | f32 | in |
// | 1 | out | [num_rows, len] | f32 | out |
// | 2 | params | SiluMulParams | | in |
//
// One thread an element. Threadgroups: (len / 128 rounded up, num_rows), of 128 threads.
#include "gates.h"

struct SiluMulParams {
    long len;
};

kernel void dense_silu_mul(
    device const float* gate_up [[buffer(0)]], device float* out [[buffer(1)]], constant SiluMulParams& p [[buffer(2)]],
    uint3 at [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    long j = (long)at.x * 128 + tid, row = at.y;
    if (j >= p.len) return;
    float gate = gate_up[2 * row * p.len + j];
    out[row * p.len + j] = gate * quick_sigmoid(gate) * gate_up[(2 * row + 1) * p.len + j];
}
