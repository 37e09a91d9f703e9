// fused_recurrent_gated_delta_rule: decode, verify (chains and draft trees) and exact prefill, with the kept tokens of the
// window before replayed on the way.
//
// | slot | name | shape | dtype | direction |
// | --- | --- | --- | --- | --- |
// | 0, 1 | q, k | [num_tokens, H, K], rows q_stride, k_stride elements apart | f32, bf16, f16 | in |
// | 2 | v | [num_tokens, HV, V], rows v_stride apart | f32, bf16, f16 | in |
// | 3 | decay | [num_tokens, HV] or (per_channel) [num_tokens, HV, K], rows decay_stride apart | f32, bf16, f16 | in |
// | 4 | beta | [num_tokens, HV], rows beta_stride apart | f32, bf16, f16 | in |
// | 5, 6 | a_log, dt_bias | [HV]; [HV] or [HV, K]; with decay form gate | f32 | in |
// | 7 | out | [num_tokens, HV, V], rows out_stride apart | f32, bf16, f16 | out |
// | 8 | state | [num_slots, HV, V, K], slots state_stride apart | S | in, out |
// | 9 | captured | [num_seqs, capture_max, HV, V, K] | S | out |
// | 10, 11 | cu_seqlens, state_indices | [num_seqs + 1], [num_seqs], -1 = padding | i32 | in |
// | 12 | parents | [num_tokens], or absent: chains | i32 | in |
// | 13, 14, 15 | pending_k, _decay, _delta | [num_log_slots, pending_max] [H, K], [HV] or [HV, K], [HV, V] | f32 | in |
// | 16, 22 | pending_slots, log_slots | [num_seqs], or absent: as state_indices | i32 | in |
// | 17, 18 | num_pending, pending_path | [num_seqs], [num_seqs, pending_max], or absent | u32 | in |
// | 19, 20, 21 | log_k, log_decay, log_delta | as pending with log_max, and in other memory | f32 | out |
// | 23 | params | RecurrentParams | | in |
//
// Threadgroups: (blocks_per_head * HV, num_seqs), of 128 threads.
#include "recurrent.h"

#define RECURRENT(name, S, KP, NR)                                                                                     \
    kernel void name(                                                                                                  \
        device const uchar* q [[buffer(0)]], device const uchar* k [[buffer(1)]],                                      \
        device const uchar* v [[buffer(2)]], device const uchar* decay [[buffer(3)]],                                  \
        device const uchar* beta [[buffer(4)]], device const float* a_log [[buffer(5)]],                               \
        device const float* dt_bias [[buffer(6)]], device uchar* out [[buffer(7)]],                                    \
        device uchar* state [[buffer(8)]], device uchar* captured [[buffer(9)]],                                       \
        device const int* cu_seqlens [[buffer(10)]], device const int* state_indices [[buffer(11)]],                   \
        device const int* parents [[buffer(12)]], device const float* pending_k [[buffer(13)]],                        \
        device const float* pending_decay [[buffer(14)]], device const float* pending_delta [[buffer(15)]],            \
        device const int* pending_slots [[buffer(16)]], device const uint* num_pending [[buffer(17)]],                 \
        device const uint* pending_path [[buffer(18)]], device float* log_k [[buffer(19)]],                            \
        device float* log_decay [[buffer(20)]], device float* log_delta [[buffer(21)]],                                \
        device const int* log_slots [[buffer(22)]], constant RecurrentParams& params [[buffer(23)]],                   \
        threadgroup float* shared [[threadgroup(0)]], uint3 at [[threadgroup_position_in_grid]],                       \
        uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {                       \
        Recurrent<S, KP, NR> recurrent;                                                                                \
        RecurrentBuffers buffers = {q, k, v, decay, beta, a_log, dt_bias, out, state, captured, cu_seqlens,            \
                                    state_indices, parents, pending_k, pending_decay, pending_delta, pending_slots,    \
                                    num_pending, pending_path, log_k, log_decay, log_delta, log_slots};                \
        recurrent.p = &params, recurrent.b = buffers, recurrent.lane = (int)lane, recurrent.simd = (int)simd;          \
        recurrent.run(shared, at);                                                                                     \
    }
#define RECURRENT_OF(S, dtype)                       \
    RECURRENT(recurrent_##dtype##_k32, S, 32, 4)     \
    RECURRENT(recurrent_##dtype##_k64, S, 64, 4)     \
    RECURRENT(recurrent_##dtype##_k128, S, 128, 2)   \
    RECURRENT(recurrent_##dtype##_k256, S, 256, 1)

RECURRENT_OF(F32State, f32)
RECURRENT_OF(Bf16State, bf16)
RECURRENT_OF(F16State, f16)
