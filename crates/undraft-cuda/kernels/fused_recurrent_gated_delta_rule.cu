// fused_recurrent_gated_delta_rule: decode, verify (chains and draft trees) and exact prefill, with the kept tokens of the
// window before replayed on the way.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | q, k | [num_tokens, H, K], rows q_stride, k_stride elements apart | f32, bf16, f16 | in |
// | v | [num_tokens, HV, V], rows v_stride apart | f32, bf16, f16 | in |
// | decay | [num_tokens, HV] or (per_channel) [num_tokens, HV, K], rows decay_stride apart | f32, bf16, f16 | in |
// | beta | [num_tokens, HV], rows beta_stride apart | f32, bf16, f16 | in |
// | a_log, dt_bias | [HV]; [HV] or [HV, K]; with decay form gate | f32 | in |
// | state | [num_slots, HV, V, K], slots state_stride apart, 16-byte aligned in the kernels of whole vectors | S | in, out |
// | cu_seqlens, state_indices | [num_seqs + 1], [num_seqs], -1 = padding | i32 | in |
// | parents | [num_tokens] or null: chains | i32 | in |
// | pending_k, _decay, _delta | [num_log_slots, pending_max] [H, K], [HV] or [HV, K], [HV, V] | f32 | in |
// | pending_slots, log_slots | [num_seqs] or null: as state_indices | i32 | in |
// | num_pending, pending_path | [num_seqs], [num_seqs, pending_max], or null | u32 | in |
// | log_k, log_decay, log_delta | as pending with log_max, and in other memory | f32 | out |
// | captured | [num_seqs, capture_max, HV, V, K] | S | out |
// | out | [num_tokens, HV, V], rows out_stride apart | f32, bf16, f16 | out |
//
// One block a (sequence, value head, share of its rows). Eight lanes hold a row: lane l elements 4 (l + 8 j) .. + 3, which
// they add in rising j; then lanes l and l ^ 4 are added, l and l ^ 2, l and l ^ 1. That order depends on K alone.
#include "recurrent_kernels.cuh"

// Short chains with one decay a head, whole vectors. One row a lane group for few rows, where blocks of the next launch find room
// beside those of this one; more for many.
SHORT(64, 1, false, false, false, 4, 5, chain)
SHORT(64, 4, false, false, false, 4, 4, chain)
SHORT(128, 1, false, false, false, 4, 5, chain)
SHORT(128, 2, false, false, false, 4, 6, chain)
SHORT(128, 4, false, false, false, 4, 4, chain)
SHORT(256, 1, false, false, false, 4, 4, chain)
SHORT(256, 2, false, false, false, 4, 4, chain)

// The same for few rows with entries pending.
SHORT(64, 1, false, false, true, 4, 5, pending)
SHORT(128, 1, false, false, true, 4, 5, pending)
SHORT(256, 1, false, false, true, 4, 4, pending)

// The same with a state captured after each token.
SHORT(128, 1, false, true, false, 4, 5, each)
SHORT(128, 4, false, true, false, 4, 4, each)

// Trees of at most 16 tokens.
SHORT(128, 2, true, false, false, 8, 3, tree)

// Everything else: long windows, trees, a decay per channel, other head sizes (padded with zeros).
ANY(128, 2, true, any)
ANY(32, 2, false, odd)
ANY(64, 2, false, odd)
ANY(128, 2, false, odd)
ANY(256, 1, false, odd)
