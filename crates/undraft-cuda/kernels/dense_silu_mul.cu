// dense_silu_mul: out = silu(gate) * up.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | gate_up | [num_rows, 2, len]: the gates of a row, then what they gate | f32 | in |
// | out | [num_rows, len] | f32 | out |
#include "dense.cuh"

struct SiluMulParams {
    const float* gate_up;
    float* out;
    i64 len;
    int num_rows;
};

extern "C" __global__ void __launch_bounds__(128) dense_silu_mul(const __grid_constant__ SiluMulParams p) {
    i64 j = (i64)blockIdx.x * 128 + threadIdx.x;
    if (j >= p.len) return;
    const float* row = p.gate_up + blockIdx.y * 2 * p.len;
    float gate = row[j];
    p.out[blockIdx.y * p.len + j] = __fmul_rn(__fmul_rn(gate, sigmoid32(gate)), row[p.len + j]);
}
