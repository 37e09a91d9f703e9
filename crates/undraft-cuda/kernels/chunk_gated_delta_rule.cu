// chunk_gated_delta_rule: the recurrence of 64 tokens at a time as matrix products and a triangular solve, for prefill.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | q, k | [num_tokens, H, K], rows q_stride, k_stride elements apart | f32, bf16, f16 | in |
// | v | [num_tokens, HV, V], rows v_stride apart | f32, bf16, f16 | in |
// | decay | [num_tokens, HV] or (per_channel) [num_tokens, HV, K], rows decay_stride apart | f32, bf16, f16 | in |
// | beta | [num_tokens, HV], rows beta_stride apart | f32, bf16, f16 | in |
// | a_log, dt_bias | [HV]; [HV] or [HV, K]; with decay form gate | f32 | in |
// | state | [num_slots, HV, V, K], slots state_stride apart | f32, bf16, f16 | in, out |
// | checkpoints | [num_checkpoints, HV, V, K], after every `every` tokens of a sequence; every = 0: none | as state | out |
// | cu_seqlens, state_indices | [num_seqs + 1], [num_seqs], -1 = padding | i32 | in |
// | workspace | the parts that Params names | | scratch |
// | out | [num_tokens, HV, V], rows out_stride apart | f32, bf16, f16 | out |
//
// With D(t, s) the product of the decay factors of the tokens after s up to t, D(t) that of all up to t, C the chunk's last:
//
//     delta_t = beta_t (v_t - D(t) S0 k_t) - sum_{s < t} L[t][s] delta_s,   L[t][s] = beta_t D(t, s) k_t . k_s
//     o_t     = scale (D(t) S0 q_t + sum_{s <= t} D(t, s) (q_t . k_s) delta_s)
//     S1      = D(C) S0 + sum_s D(C, s) delta_s k_s^T
//
// D(t, s) is a product of factors <= 1, never a quotient. The launches, in this order: the chunks; keys; weights, a block a
// chunk and value head; then the scan, a block some rows of a state, from chunk to chunk. A token's outputs come from the
// tokens up to it, whatever those behind it hold.
#include "chunk_prepare.cuh"
#include "chunk_scan.cuh"
#include "chunk_scan_mma.cuh"

// A launch is set up while the one before it ends, and begins when that has ended.
__device__ __forceinline__ void begin_launch() {
    wait_for_previous();
    let_next_begin();
}

extern "C" __global__ void __launch_bounds__(chunk::PLAN_THREADS) chunk_plan(const __grid_constant__ chunk::Params p) {
    begin_launch();
    chunk::plan(p);
}
extern "C" __global__ void __launch_bounds__(chunk::PREPARE_THREADS) chunk_keys(const __grid_constant__ chunk::Params p) {
    begin_launch();
    chunk::normalise_keys(p);
}
extern "C" __global__ void __launch_bounds__(chunk::PREPARE_THREADS) chunk_weights(const __grid_constant__ chunk::Params p) {
    begin_launch();
    chunk::weights(p);
}
extern "C" __global__ void __launch_bounds__(chunk::SCAN_THREADS) chunk_scan(const __grid_constant__ chunk::Params p) {
    begin_launch();
    chunk::Scan(p).run();
}

// On tensor cores: bf16 q and k, one decay a head, K up to KP.
#define CHUNK_MMA(KP)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(chunk::TILES_THREADS, 5)                                              \
        chunk_tiles_k##KP(const __grid_constant__ chunk::Params p) {                                                   \
        begin_launch();                                                                                                \
        chunk::Tiles<KP>(p).run();                                                                                     \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(chunk::MMA_THREADS, 1)                                                \
        chunk_scan_mma_k##KP(const __grid_constant__ chunk::Params p) {                                                \
        begin_launch();                                                                                                \
        chunk::MmaScan<KP>(p).run();                                                                                   \
    }
CHUNK_MMA(64)
CHUNK_MMA(128)
