// What the kernels of the chunked form share: parameters, chunks, decay factors.
#pragma once
#include "prelude.cuh"

// Outside of the namespace, where all kernels have it.
__device__ __forceinline__ unsigned char* shared_memory() {
    extern __shared__ __align__(16) unsigned char shared[];
    return shared;
}

namespace chunk {

// Tokens of a chunk.
constexpr int CHUNK = 64;

struct Params {
    const void *q, *k, *v, *decay, *beta;
    const float *a_log, *dt_bias;
    void *out, *state, *checkpoints;
    const int *cu_seqlens, *state_indices;
    void* workspace;
    i64 q_stride, k_stride, v_stride, decay_stride, beta_stride, out_stride, state_stride;
    int every, num_tokens, num_seqs, num_k_heads, num_v_heads, head_k_dim, head_v_dim;
    int q_dtype, k_dtype, v_dtype, decay_dtype, beta_dtype, out_dtype, state_dtype;
    int decay_form, per_channel, beta_is_logit, tiled, l2_norm, round_io;
    float eps, scale;
    // Parts of the workspace. max_chunks: a bound on the chunks of all sequences. Those of the other path are not there.
    int4* chunks;           // [max_chunks] sequence, first token, tokens
    int* first_chunk;       // [num_seqs + 1]
    int* first_checkpoint;  // [num_seqs + 1]
    float *queries, *keys;  // [num_tokens, H, K], normalised
    // With a decay per channel, [num_tokens, HV, K]: D(t) q_t, D(t) k_t, D(C, s) k_s; and [max_chunks, HV, K]: D(C).
    float *queries_from_start, *keys_from_start, *keys_to_end, *carry;
    float *inverse, *attention;  // [max_chunks, HV, CHUNK, CHUNK], lower triangles
    float* factors;              // [max_chunks, HV, NUM_FACTORS, CHUNK]
    // bf16, as they lie in shared memory (see Tile): [max_chunks, H, CHUNK, KP]; [max_chunks, HV, 3 or 2, CHUNK, CHUNK].
    u16 *query_tiles, *key_tiles, *inverse_tiles, *attention_tiles;
    int keys_in_place;  // q and k are read where they are, in pieces of 16 bytes, K = KP; there are no tiles of them
};

// Rows of `factors`: D(t), D(C, s), beta (with tiles: D(t) of the queries), and D(C) in the first element of the last.
enum Factor { FROM_START = 0, TO_END = 1, BETA = 2, FROM_START_Q = 2, TOTAL = 3, NUM_FACTORS = 4 };

__device__ __forceinline__ int ceil_div(int a, int b) { return (a + b - 1) / b; }

__device__ __forceinline__ int k_head(const Params& p, int hv) {
    return p.tiled ? hv % p.num_k_heads : hv / (p.num_v_heads / p.num_k_heads);
}

// The decay factor of a token, value head and channel (0 where a head has one).
__device__ __forceinline__ float decay_factor(const Params& p, i64 token, int hv, int channel) {
    int at = hv * (p.per_channel ? p.head_k_dim : 1) + channel;
    float x = load_as_f32(p.decay, p.decay_dtype, token * p.decay_stride + at);
    if (p.decay_form == DECAY_LINEAR) return x;
    double g = p.decay_form == DECAY_LOG       ? (double)x
               : p.decay_form == DECAY_NEG_LOG ? -(double)x
                                               : Gate(p.a_log[hv], p.dt_bias[at]).log_decay(x);
    return (float)exp64(g);
}

__device__ __forceinline__ float beta_of(const Params& p, i64 token, int hv) {
    float x = load_as_f32(p.beta, p.beta_dtype, token * p.beta_stride + hv);
    if (p.beta_is_logit) x = (float)sigmoid64(x);
    return p.round_io ? round_to(x, p.k_dtype) : x;
}

// ---- which tokens a chunk has ----------------------------------------------------------------------------------

constexpr int PLAN_THREADS = 256;

__device__ __forceinline__ int chunks_of(const Params& p, int seq) {
    int len = p.cu_seqlens[seq + 1] - p.cu_seqlens[seq];
    if (p.state_indices[seq] < 0) return 0;
    if (p.every == 0) return ceil_div(len, CHUNK);
    return len / p.every * ceil_div(p.every, CHUNK) + ceil_div(len % p.every, CHUNK);
}
__device__ __forceinline__ int checkpoints_of(const Params& p, int seq) {
    return p.every == 0 ? 0 : (p.cu_seqlens[seq + 1] - p.cu_seqlens[seq]) / p.every;
}

// Chunk `nth` of a sequence of `len` tokens: its first token and how many it has. Chunks end at checkpoints.
__device__ __forceinline__ int2 tokens_of(const Params& p, int len, int nth) {
    int first = nth * CHUNK, stop = len;
    if (p.every) {
        int per_part = ceil_div(p.every, CHUNK), part = nth / per_part;
        first = part * p.every + nth % per_part * CHUNK;
        stop = (int)min((i64)len, (part + (i64)1) * p.every);
    }
    return make_int2(first, min(CHUNK, stop - first));
}

// One block: where each sequence's chunks and checkpoints begin, and the chunks.
__device__ __forceinline__ void plan(const Params& p) {
    int(*sums)[PLAN_THREADS] = (int(*)[PLAN_THREADS])shared_memory();  // [2][PLAN_THREADS]
    int tid = threadIdx.x, share = ceil_div(p.num_seqs, PLAN_THREADS);
    int begin = min(tid * share, p.num_seqs), end = min(begin + share, p.num_seqs);
    int num_chunks = 0, num_checkpoints = 0;
    for (int seq = begin; seq < end; ++seq) num_chunks += chunks_of(p, seq), num_checkpoints += checkpoints_of(p, seq);
    sums[0][tid] = num_chunks, sums[1][tid] = num_checkpoints;
    __syncthreads();
    num_chunks = num_checkpoints = 0;
    for (int i = 0; i < tid; ++i) num_chunks += sums[0][i], num_checkpoints += sums[1][i];
    for (int seq = begin; seq < end; ++seq) {
        p.first_chunk[seq] = num_chunks, p.first_checkpoint[seq] = num_checkpoints;
        num_chunks += chunks_of(p, seq), num_checkpoints += checkpoints_of(p, seq);
    }
    if (tid == PLAN_THREADS - 1) p.first_chunk[p.num_seqs] = num_chunks, p.first_checkpoint[p.num_seqs] = num_checkpoints;
    __syncthreads();
    int total = p.first_chunk[p.num_seqs];
    for (int i = tid; i < total; i += PLAN_THREADS) {
        int low = 0, high = p.num_seqs;  // the last sequence that begins at or before chunk i has it
        while (high - low > 1) {
            int middle = (low + high) / 2;
            (p.first_chunk[middle] <= i ? low : high) = middle;
        }
        int begin = p.cu_seqlens[low];
        int2 tokens = tokens_of(p, p.cu_seqlens[low + 1] - begin, i - p.first_chunk[low]);
        p.chunks[i] = make_int4(low, begin + tokens.x, tokens.y, 0);
    }
}

}  // namespace chunk
