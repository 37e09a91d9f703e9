// dense_embed: rows of an embedding, widened.
//
// | slot | name | shape | dtype | direction |
// | --- | --- | --- | --- | --- |
// | 0 | table | [vocab_size, len] | f32, bf16, f16 | in |
// | 1 | tokens | [num_tokens], ids beyond the table read its last row | u32 | in |
// | 2 | out | [num_tokens, len] | f32 | out |
// | 3 | params | EmbedParams | | in |
//
// One thread an element. Threadgroups: (len / 128 rounded up, num_tokens), of 128 threads.
#include "prelude.h"

struct EmbedParams {
    long len;
    int vocab_size, dtype;
};

kernel void dense_embed(
    device const uchar* table [[buffer(0)]], device const uint* tokens [[buffer(1)]], device float* out [[buffer(2)]],
    constant EmbedParams& p [[buffer(3)]], uint3 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
    long j = (long)at.x * 128 + tid, t = at.y;
    if (j >= p.len) return;
    long token = metal::min(tokens[t], (uint)p.vocab_size - 1u);
    out[t * p.len + j] = load_as_f32(table, p.dtype, token * p.len + j);
}
