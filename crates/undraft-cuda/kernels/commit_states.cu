// commit_states: replay of log entries into the states, all layers in one launch.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | state | [num_layers][num_slots, HV, V, K], layers and slots by stride | f32, bf16, f16 | in, out |
// | log_k, log_decay, log_delta | [num_layers][num_log_slots, log_max][H, K], [HV] or [HV, K], [HV, V], layers by stride | f32 | in |
// | log_slots | [num_seqs] or null: as state_indices | i32 | in |
// | state_indices, num_kept | [num_seqs], -1 = padding | i32, u32 | in |
// | path | [num_seqs, log_max] or null | u32 | in |
//
// S = S * decay, S = fma(delta, k, S), a 16-bit state rounded, entry by entry: no sum, so that a thread takes N
// neighbours of a row wherever they lie.
#include "prelude.cuh"

struct CommitParams {
    void* state;
    const float *log_k, *log_decay, *log_delta;
    const int *log_slots, *state_indices;
    const u32 *num_kept, *path;
    i64 state_stride, layer_state_stride, layer_k_stride, layer_decay_stride, layer_delta_stride;
    int num_seqs, num_k_heads, num_v_heads, head_k_dim, head_v_dim, log_max, per_channel, tiled, blocks_per_head;
};

// Pieces of a thread, so that as many loads are on their way.
#define PIECES 4

template <typename S, int N>
__device__ __forceinline__ void commit(const CommitParams& p) {
    int unit = blockIdx.x / p.blocks_per_head, block = blockIdx.x % p.blocks_per_head;
    int seq = unit / p.num_v_heads, hv = unit % p.num_v_heads;
    int slot = p.state_indices[seq], kept = (int)p.num_kept[seq];
    int K = p.head_k_dim, size = p.head_v_dim * K;
    if (slot < 0 || kept == 0) return;
    int h = p.tiled ? hv % p.num_k_heads : hv / (p.num_v_heads / p.num_k_heads);
    i64 layer = blockIdx.y;
    S* state = (S*)p.state + layer * p.layer_state_stride + slot * p.state_stride + (i64)hv * size;
    i64 first = (i64)(p.log_slots ? p.log_slots[seq] : slot) * p.log_max;
    const float* log_k = p.log_k + layer * p.layer_k_stride;
    const float* log_decay = p.log_decay + layer * p.layer_decay_stride;
    const float* log_delta = p.log_delta + layer * p.layer_delta_stride;
    float s[PIECES][4];
    int at[PIECES], row[PIECES], column[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        // Beyond the end lies the last piece, again.
        at[i] = min(((block * PIECES + i) * 256 + (int)threadIdx.x) * N, size - N);
        row[i] = at[i] / K, column[i] = at[i] % K;
        if (N == 4)
            StateOf<S>::unpack(*(const typename StateOf<S>::Four*)(state + at[i]), s[i]);
        else
            s[i][0] = StateOf<S>::get(state + at[i]);
    }
    for (int e = 0; e < kept; ++e) {
        i64 entry = first + (p.path ? p.path[(i64)seq * p.log_max + e] : e);
        const float* delta = log_delta + (entry * p.num_v_heads + hv) * p.head_v_dim;
        const float* k = log_k + (entry * p.num_k_heads + h) * K;
        const float* decay = log_decay + (entry * p.num_v_heads + hv) * (p.per_channel ? K : 1);
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
#pragma unroll
            for (int j = 0; j < N; ++j) {
                float alpha = decay[p.per_channel ? column[i] + j : 0];
                float updated = __fmaf_rn(delta[row[i]], k[column[i] + j], __fmul_rn(s[i][j], alpha));
                s[i][j] = StateOf<S>::round(updated);
            }
    }
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        if (((block * PIECES + i) * 256 + (int)threadIdx.x) * N > size - N) continue;
        if (N == 4)
            *(typename StateOf<S>::Four*)(state + at[i]) = StateOf<S>::pack(s[i]);
        else
            StateOf<S>::put(state + at[i], s[i][0]);
    }
}

#define COMMIT(name, S, N)                                                                               \
    extern "C" __global__ void __launch_bounds__(256) name(const __grid_constant__ CommitParams p) { commit<S, N>(p); }
COMMIT(commit_states_f32_x4, float, 4)
COMMIT(commit_states_bf16_x4, Bf16, 4)
COMMIT(commit_states_f16_x4, F16s, 4)
COMMIT(commit_states_f32_x1, float, 1)
COMMIT(commit_states_bf16_x1, Bf16, 1)
COMMIT(commit_states_f16_x1, F16s, 1)
