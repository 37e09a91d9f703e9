// dense_embed: rows of an embedding, widened.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | table | [vocab_size, len] | f32, bf16, f16 | in |
// | tokens | [num_tokens], ids beyond the table read its last row | u32 | in |
// | out | [num_tokens, len] | f32 | out |
#include "prelude.cuh"

struct EmbedParams {
    const void* table;
    const u32* tokens;
    float* out;
    i64 len;
    int num_tokens, vocab_size, dtype;
};

// One thread an element.
extern "C" __global__ void __launch_bounds__(128) dense_embed(const __grid_constant__ EmbedParams p) {
    i64 j = (i64)blockIdx.y * 128 + threadIdx.x;
    if (j >= p.len) return;
    u32 token = min(p.tokens[blockIdx.x], (u32)p.vocab_size - 1);
    p.out[blockIdx.x * p.len + j] = load_as_f32(p.table, p.dtype, token * p.len + j);
}
