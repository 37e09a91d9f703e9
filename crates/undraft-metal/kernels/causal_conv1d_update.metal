// causal_conv1d_update: kept inputs of the window before into the state, then the window's outputs; its inputs go into
// the log, or move the state on.
//
// | slot | name | shape | dtype | direction |
// | --- | --- | --- | --- | --- |
// | 0 | x | [num_tokens, C], rows x_stride elements apart | f32, bf16, f16 | in |
// | 1, 2 | weight, bias | [W, C] (last tap = the present token), [C] or absent | f32 | in |
// | 3 | state | [num_slots, W - 1, C], oldest first, slots state_stride elements apart | f32 | in, out |
// | 4 | log | [num_log_slots, log_max, C] or absent | f32 | in, out |
// | 5 | log_slots | [num_seqs], or absent: as state_indices | i32 | in |
// | 6, 7 | cu_seqlens, state_indices | [num_seqs + 1], [num_seqs], -1 = padding | i32 | in |
// | 8, 9 | num_pending, pending_path | [num_seqs], [num_seqs, log_max], or absent | u32 | in |
// | 10 | parents | [num_tokens] or absent | i32 | in |
// | 11 | out | [num_tokens, C], rows out_stride apart | f32, bf16, f16 | out |
// | 12 | params | ConvUpdateParams | | in |
//
// One thread a (channel, sequence): it reads the entries that it replays before it writes the window's. Threadgroups:
// (channels / 128 rounded up, num_seqs), of 128 threads.
#include "causal_conv1d.h"

struct ConvUpdateParams {
    long x_stride, out_stride, state_stride, channels;
    int num_seqs, width, log_max, x_dtype, out_dtype, silu, capture;
    uint present;
};
#define HAS_BIAS (1u << 2)
#define HAS_LOG_SLOTS (1u << 5)
#define HAS_NUM_PENDING (1u << 8)
#define HAS_PENDING_PATH (1u << 9)
#define HAS_PARENTS (1u << 10)

kernel void causal_conv1d_update(
    device const uchar* input [[buffer(0)]], device const float* weight [[buffer(1)]],
    device const float* bias [[buffer(2)]], device float* states [[buffer(3)]], device float* logs [[buffer(4)]],
    device const int* log_slots [[buffer(5)]], device const int* cu_seqlens [[buffer(6)]],
    device const int* state_indices [[buffer(7)]], device const uint* num_pending [[buffer(8)]],
    device const uint* pending_path [[buffer(9)]], device const int* parents [[buffer(10)]],
    device uchar* out [[buffer(11)]], constant ConvUpdateParams& p [[buffer(12)]],
    uint3 at [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    int seq = (int)at.y;
    long c = (long)at.x * 128 + tid;
    if (c >= p.channels) return;
    int start = cu_seqlens[seq], tokens = cu_seqlens[seq + 1] - start, slot = state_indices[seq];
    if (slot < 0) {
        for (int t = 0; t < tokens; ++t) store_from_f32(out, p.out_dtype, (start + (long)t) * p.out_stride + c, 0.0f);
        return;
    }
    bool tree = p.present & HAS_PARENTS;
    Taps taps;
    taps.load(weight, p.present & HAS_BIAS ? bias : nullptr, p.width, p.channels, c, p.silu);
    device float* state = states + slot * p.state_stride + c;
    long log_slot = p.present & HAS_LOG_SLOTS ? log_slots[seq] : slot;
    device float* log = logs + log_slot * p.log_max * p.channels + c;
    // Before a token: x[1 ..] are the W - 1 inputs before it, aligned at the end.
    float x[MAX_WIDTH];
    UNROLL
    for (int j = 0; j < MAX_WIDTH; ++j) x[j] = j > taps.first ? state[(j - taps.first - 1) * p.channels] : 0.0f;
    int pending = p.present & HAS_NUM_PENDING ? (int)num_pending[seq] : 0;
    for (int i = 0; i < pending; ++i) {
        long entry = p.present & HAS_PENDING_PATH ? (int)pending_path[(long)seq * p.log_max + i] : i;
        shift_in(x, log[entry * p.channels]);
    }
    if (pending > 0) {
        UNROLL
        for (int j = 0; j < MAX_WIDTH; ++j)
            if (j > taps.first) state[(j - taps.first - 1) * p.channels] = x[j];
    }
    for (int t = 0; t < tokens; ++t) {
        float newest = load_as_f32(input, p.x_dtype, (start + (long)t) * p.x_stride + c), y;
        if (p.capture == CAPTURE_DELTA_LOG) log[t * p.channels] = newest;
        if (tree) {
            // The inputs before are those of the ancestors, before them those of the state.
            float path[MAX_WIDTH];
            path[MAX_WIDTH - 1] = newest;
            int ancestor = parents[start + t], from_state = p.width - 1;
            UNROLL
            for (int j = MAX_WIDTH - 2; j >= 0; --j) {
                path[j] = 0.0f;
                if (j < taps.first) continue;
                if (ancestor >= 0) {
                    path[j] = load_as_f32(input, p.x_dtype, (start + (long)ancestor) * p.x_stride + c);
                    ancestor = parents[start + ancestor];
                } else {
                    path[j] = state[--from_state * p.channels];
                }
            }
            y = taps.apply(path);
        }
        shift_in(x, newest);
        if (!tree) y = taps.apply(x);
        store_from_f32(out, p.out_dtype, (start + (long)t) * p.out_stride + c, y);
    }
    if (p.capture == CAPTURE_FINAL && tokens > 0) {
        UNROLL
        for (int j = 0; j < MAX_WIDTH; ++j)
            if (j > taps.first) state[(j - taps.first - 1) * p.channels] = x[j];
    }
}
