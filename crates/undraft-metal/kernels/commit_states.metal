// commit_states: replay of log entries into the states, all layers in one launch.
//
// | slot | name | shape | dtype | direction |
// | --- | --- | --- | --- | --- |
// | 0 | state | [num_layers][num_slots, HV, V, K], layers and slots by stride | f32, bf16, f16 | in, out |
// | 1, 2, 3 | log_k, log_decay, log_delta | [num_layers][num_log_slots, log_max][H, K], [HV] or [HV, K], [HV, V], layers by stride | f32 | in |
// | 4 | log_slots | [num_seqs], or absent: as state_indices | i32 | in |
// | 5, 6 | state_indices, num_kept | [num_seqs], -1 = padding | i32, u32 | in |
// | 7 | path | [num_seqs, log_max], or absent | u32 | in |
// | 8 | params | CommitParams | | in |
//
// S = S * decay, S = fma(delta, k, S), a 16-bit state rounded, entry by entry: no sum, so that a thread takes N neighbours of a
// row wherever they lie. Threadgroups: (blocks_per_head * HV, num_seqs, num_layers), of 256 threads.
#include "prelude.h"

struct CommitParams {
    long state_stride, layer_state_stride, layer_k_stride, layer_decay_stride, layer_delta_stride;
    int num_seqs, num_k_heads, num_v_heads, head_k_dim, head_v_dim, log_max, per_channel, tiled, blocks_per_head;
    uint present;
};
#define HAS_LOG_SLOTS (1u << 4)
#define HAS_PATH (1u << 7)

struct CommitBuffers {
    device uchar* state;
    device const float *log_k, *log_decay, *log_delta;
    device const int *log_slots, *state_indices;
    device const uint *num_kept, *path;
};

template <typename S, int N>
inline void commit(CommitBuffers b, constant CommitParams* p, uint3 at, int tid) {
    int hv = (int)at.x / p->blocks_per_head, block = (int)at.x % p->blocks_per_head, seq = (int)at.y;
    int slot = b.state_indices[seq], kept = (int)b.num_kept[seq];
    int K = p->head_k_dim, size = p->head_v_dim * K, first = (block * 256 + tid) * N;
    if (slot < 0 || kept == 0 || first >= size) return;
    int h = p->tiled ? hv % p->num_k_heads : hv / (p->num_v_heads / p->num_k_heads);
    int row = first / K, column = first % K, channels = p->per_channel ? K : 1;
    long layer = at.z;
    device typename S::Element* state =
        (device typename S::Element*)b.state + layer * p->layer_state_stride + slot * p->state_stride + (long)hv * size + first;
    long begin = (long)(p->present & HAS_LOG_SLOTS ? b.log_slots[seq] : slot) * p->log_max;
    device const float* log_k = b.log_k + layer * p->layer_k_stride + (long)h * K + column;
    device const float* log_decay = b.log_decay + layer * p->layer_decay_stride + (p->per_channel ? column : 0);
    device const float* log_delta = b.log_delta + layer * p->layer_delta_stride + row;
    float4 s = float4(0.0f);
    if (N == 4)
        s = load_four<S>(state);
    else
        s[0] = S::get(state[0]);
    for (int e = 0; e < kept; ++e) {
        long entry = begin + (p->present & HAS_PATH ? (int)b.path[(long)seq * p->log_max + e] : e);
        long head = entry * p->num_v_heads + hv;
        float delta = log_delta[head * p->head_v_dim];
        UNROLL
        for (int j = 0; j < N; ++j) {
            float alpha = log_decay[head * channels + (p->per_channel ? j : 0)];
            float decayed = s[j] * alpha;
            s[j] = S::get(S::put(metal::fma(delta, log_k[entry * p->num_k_heads * K + j], decayed)));
        }
    }
    if (N == 4)
        store_four<S>(state, s);
    else
        state[0] = S::put(s[0]);
}

#define COMMIT(name, S, N)                                                                                   \
    kernel void name(device uchar* state [[buffer(0)]], device const float* log_k [[buffer(1)]],             \
                     device const float* log_decay [[buffer(2)]], device const float* log_delta [[buffer(3)]], \
                     device const int* log_slots [[buffer(4)]], device const int* state_indices [[buffer(5)]], \
                     device const uint* num_kept [[buffer(6)]], device const uint* path [[buffer(7)]],       \
                     constant CommitParams& params [[buffer(8)]], uint3 at [[threadgroup_position_in_grid]], \
                     uint tid [[thread_index_in_threadgroup]]) {                                             \
        CommitBuffers buffers = {state, log_k, log_decay, log_delta, log_slots, state_indices, num_kept, path}; \
        commit<S, N>(buffers, &params, at, (int)tid);                                                        \
    }
COMMIT(commit_states_f32_x4, F32State, 4)
COMMIT(commit_states_bf16_x4, Bf16State, 4)
COMMIT(commit_states_f16_x4, F16State, 4)
COMMIT(commit_states_f32_x1, F32State, 1)
COMMIT(commit_states_bf16_x1, Bf16State, 1)
COMMIT(commit_states_f16_x1, F16State, 1)
