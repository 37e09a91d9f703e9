// causal_conv1d_fn: whole prompts.
//
// | slot | name | shape | dtype | direction |
// | --- | --- | --- | --- | --- |
// | 0 | x | [num_tokens, C], rows x_stride elements apart | f32, bf16, f16 | in |
// | 1, 2 | weight, bias | [W, C] (last tap = the present token), [C] or absent | f32 | in |
// | 3 | state | [num_slots, W - 1, C], oldest first, slots state_stride elements apart | f32 | in, out |
// | 4, 5 | cu_seqlens, state_indices | [num_seqs + 1], [num_seqs], -1 = padding | i32 | in |
// | 6 | out | [num_tokens, C], rows out_stride apart | f32, bf16, f16 | out |
// | 7 | params | ConvFnParams | | in |
//
// One thread a (channel, sequence, block of TOKENS tokens). The thread of block 0 reads the state and, as the only one, writes
// the new one: the last W - 1 inputs, which lie in x or in the old state. Threadgroups: (channels / 128 rounded up, num_seqs,
// any number of token blocks), of 128 threads.
#include "causal_conv1d.h"

#define TOKENS 64

struct ConvFnParams {
    long x_stride, out_stride, state_stride, channels;
    int num_seqs, width, x_dtype, out_dtype, silu;
    uint present;
};
#define HAS_BIAS (1u << 2)

kernel void causal_conv1d_fn(
    device const uchar* input [[buffer(0)]], device const float* weight [[buffer(1)]],
    device const float* bias [[buffer(2)]], device float* states [[buffer(3)]],
    device const int* cu_seqlens [[buffer(4)]], device const int* state_indices [[buffer(5)]],
    device uchar* out [[buffer(6)]], constant ConvFnParams& p [[buffer(7)]],
    uint3 at [[threadgroup_position_in_grid]], uint3 grid [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
    int seq = (int)at.y;
    long c = (long)at.x * 128 + tid;
    if (c >= p.channels) return;
    int start = cu_seqlens[seq], tokens = cu_seqlens[seq + 1] - start, slot = state_indices[seq];
    Taps taps;
    taps.load(weight, p.present & HAS_BIAS ? bias : nullptr, p.width, p.channels, c, p.silu);
    device float* state = states + (slot < 0 ? 0 : slot * p.state_stride + c);
    for (int first = (int)at.z * TOKENS; first < tokens; first += (int)grid.z * TOKENS) {
        int end = metal::min(first + TOKENS, tokens);
        if (slot < 0) {
            for (int t = first; t < end; ++t) store_from_f32(out, p.out_dtype, (start + (long)t) * p.out_stride + c, 0.0f);
            continue;
        }
        float x[MAX_WIDTH];
        UNROLL
        for (int j = 0; j < MAX_WIDTH; ++j) {
            // Input of time first - (MAX_WIDTH - j); times below 0 lie in the state, which block 0 alone reads.
            int t = first - (MAX_WIDTH - j);
            if (j <= taps.first)
                x[j] = 0.0f;
            else if (t < 0)
                x[j] = state[(t + p.width - 1) * p.channels];
            else
                x[j] = load_as_f32(input, p.x_dtype, (start + (long)t) * p.x_stride + c);
        }
        if (first == 0) {
            // Row r of the new state is the input of time tokens - (W - 1) + r.
            float before[MAX_WIDTH];
            UNROLL
            for (int j = 0; j < MAX_WIDTH; ++j) before[j] = j > taps.first ? state[(j - taps.first - 1) * p.channels] : 0.0f;
            for (int t = metal::max(0, tokens - MAX_WIDTH); t < tokens; ++t)
                shift_in(before, load_as_f32(input, p.x_dtype, (start + (long)t) * p.x_stride + c));
            UNROLL
            for (int j = 0; j < MAX_WIDTH; ++j)
                if (j > taps.first) state[(j - taps.first - 1) * p.channels] = before[j];
        }
        for (int t = first; t < end; ++t) {
            shift_in(x, load_as_f32(input, p.x_dtype, (start + (long)t) * p.x_stride + c));
            store_from_f32(out, p.out_dtype, (start + (long)t) * p.out_stride + c, taps.apply(x));
        }
    }
}
