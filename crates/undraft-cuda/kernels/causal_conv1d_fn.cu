// causal_conv1d_fn: whole prompts. Shapes as in causal_conv1d_update, without log, pending entries and trees.
//
// One thread a (sequence, block of TOKENS tokens, channel). The thread of block 0 reads the state and, as the only one,
// writes the new one: the last W - 1 inputs, which lie in x or in the old state.
#include "causal_conv1d.cuh"

#define TOKENS 64

struct ConvFnParams {
    const void* x;
    const float *weight, *bias;
    float* state;
    const int *cu_seqlens, *state_indices;
    void* out;
    i64 x_stride, out_stride, state_stride, channels;
    int num_seqs, width, x_dtype, out_dtype, silu, channel_blocks;
};

extern "C" __global__ void __launch_bounds__(128) causal_conv1d_fn(const __grid_constant__ ConvFnParams p) {
    int seq = blockIdx.x / p.channel_blocks;
    i64 c = (i64)(blockIdx.x % p.channel_blocks) * 128 + threadIdx.x;
    if (c >= p.channels) return;
    int start = p.cu_seqlens[seq], tokens = p.cu_seqlens[seq + 1] - start, slot = p.state_indices[seq];
    Taps taps;
    taps.load(p.weight, p.bias, p.width, p.channels, c, p.silu);
    float* state = slot < 0 ? nullptr : p.state + slot * p.state_stride + c;
    for (int first = blockIdx.y * TOKENS; first < tokens; first += gridDim.y * TOKENS) {
        int end = min(first + TOKENS, tokens);
        if (slot < 0) {
            for (int t = first; t < end; ++t)
                store_from_f32(p.out, p.out_dtype, (start + (i64)t) * p.out_stride + c, 0.0f);
            continue;
        }
        float x[MAX_WIDTH];
#pragma unroll
        for (int j = 0; j < MAX_WIDTH; ++j) {
            // Input of time first - (MAX_WIDTH - j); times below 0 lie in the state, which block 0 alone reads.
            int t = first - (MAX_WIDTH - j);
            if (j <= taps.first)
                x[j] = 0.0f;
            else if (t < 0)
                x[j] = state[(t + p.width - 1) * p.channels];
            else
                x[j] = load_as_f32(p.x, p.x_dtype, (start + (i64)t) * p.x_stride + c);
        }
        if (first == 0) {
            // Row r of the new state is the input of time tokens - (W - 1) + r.
            float before[MAX_WIDTH];
#pragma unroll
            for (int j = 0; j < MAX_WIDTH; ++j) before[j] = j > taps.first ? state[(j - taps.first - 1) * p.channels] : 0.0f;
            for (int t = max(0, tokens - MAX_WIDTH); t < tokens; ++t)
                shift_in(before, load_as_f32(p.x, p.x_dtype, (start + (i64)t) * p.x_stride + c));
#pragma unroll
            for (int j = 0; j < MAX_WIDTH; ++j)
                if (j > taps.first) state[(j - taps.first - 1) * p.channels] = before[j];
        }
        for (int t = first; t < end; ++t) {
            shift_in(x, load_as_f32(p.x, p.x_dtype, (start + (i64)t) * p.x_stride + c));
            store_from_f32(p.out, p.out_dtype, (start + (i64)t) * p.out_stride + c, taps.apply(x));
        }
    }
}
