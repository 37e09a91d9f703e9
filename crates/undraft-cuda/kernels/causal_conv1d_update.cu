// causal_conv1d_update: kept inputs of the window before into the state, then the window's outputs; its inputs go into
// the log, or move the state on.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | x | [num_tokens, C], rows x_stride elements apart | f32, bf16, f16 | in |
// | weight, bias | [W, C] (last tap = the present token), [C] or null | f32 | in |
// | state | [num_slots, W - 1, C], oldest first, slots state_stride elements apart | f32 | in, out |
// | log | [num_log_slots, log_max, C] or null | f32 | in, out |
// | log_slots | [num_seqs] or null: as state_indices | i32 | in |
// | cu_seqlens, state_indices | [num_seqs + 1], [num_seqs], -1 = padding | i32 | in |
// | num_pending, pending_path | [num_seqs], [num_seqs, log_max], or null | u32 | in |
// | parents | [num_tokens] or null | i32 | in |
// | out | [num_tokens, C], rows out_stride apart | f32, bf16, f16 | out |
//
// One thread a (sequence, channel): it reads the entries that it replays before it writes the window's.
#include "causal_conv1d.cuh"

struct ConvUpdateParams {
    const void* x;
    const float *weight, *bias;
    float *state, *log;
    const int *log_slots, *cu_seqlens, *state_indices;
    const u32 *num_pending, *pending_path;
    const int* parents;
    void* out;
    i64 x_stride, out_stride, state_stride, channels;
    int num_seqs, width, log_max, x_dtype, out_dtype, silu, capture, channel_blocks;
};

extern "C" __global__ void __launch_bounds__(128) causal_conv1d_update(const __grid_constant__ ConvUpdateParams p) {
    int seq = blockIdx.x / p.channel_blocks;
    i64 c = (i64)(blockIdx.x % p.channel_blocks) * 128 + threadIdx.x;
    if (c >= p.channels) return;
    int start = p.cu_seqlens[seq], tokens = p.cu_seqlens[seq + 1] - start, slot = p.state_indices[seq];
    if (slot < 0) {
        for (int t = 0; t < tokens; ++t) store_from_f32(p.out, p.out_dtype, (start + (i64)t) * p.out_stride + c, 0.0f);
        return;
    }
    Taps taps;
    taps.load(p.weight, p.bias, p.width, p.channels, c, p.silu);
    float* state = p.state + slot * p.state_stride + c;
    i64 log_slot = p.log_slots ? p.log_slots[seq] : slot;
    float* log = p.log + log_slot * p.log_max * p.channels + c;
    // Before a token: x[1 ..] are the W - 1 inputs before it, aligned at the end.
    float x[MAX_WIDTH];
#pragma unroll
    for (int j = 0; j < MAX_WIDTH; ++j) x[j] = j > taps.first ? state[(j - taps.first - 1) * p.channels] : 0.0f;
    int pending = p.num_pending ? (int)p.num_pending[seq] : 0;
    for (int i = 0; i < pending; ++i) {
        i64 entry = p.pending_path ? p.pending_path[(i64)seq * p.log_max + i] : i;
        shift_in(x, log[entry * p.channels]);
    }
    if (pending > 0) {
#pragma unroll
        for (int j = 0; j < MAX_WIDTH; ++j)
            if (j > taps.first) state[(j - taps.first - 1) * p.channels] = x[j];
    }
    for (int t = 0; t < tokens; ++t) {
        float newest = load_as_f32(p.x, p.x_dtype, (start + (i64)t) * p.x_stride + c);
        if (p.capture == CAPTURE_DELTA_LOG) log[t * p.channels] = newest;
        float y;
        if (p.parents) {
            // The inputs before are those of the ancestors, before them those of the state.
            float path[MAX_WIDTH];
            path[MAX_WIDTH - 1] = newest;
            int ancestor = p.parents[start + t], from_state = p.width - 1;
#pragma unroll
            for (int j = MAX_WIDTH - 2; j >= 0; --j) {
                path[j] = 0.0f;
                if (j >= taps.first) {
                    if (ancestor >= 0) {
                        path[j] = load_as_f32(p.x, p.x_dtype, (start + (i64)ancestor) * p.x_stride + c);
                        ancestor = p.parents[start + ancestor];
                    } else {
                        path[j] = state[--from_state * p.channels];
                    }
                }
            }
            y = taps.apply(path);
        }
        shift_in(x, newest);
        if (!p.parents) y = taps.apply(x);
        store_from_f32(p.out, p.out_dtype, (start + (i64)t) * p.out_stride + c, y);
    }
    if (p.capture == CAPTURE_FINAL && tokens > 0) {
#pragma unroll
        for (int j = 0; j < MAX_WIDTH; ++j)
            if (j > taps.first) state[(j - taps.first - 1) * p.channels] = x[j];
    }
}
