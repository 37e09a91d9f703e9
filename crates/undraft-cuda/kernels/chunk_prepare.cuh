// What a chunk's tokens are to each other, before any state is known: normalised q and k; decay factors and beta; the weights
// of the triangular system and of the outputs; the system's inverse. FMAs in f32; each row of a triangle comes from the tokens
// up to its own.
#pragma once
#include "chunk.cuh"

namespace chunk {

constexpr int PREPARE_THREADS = 256;
constexpr int PREPARE_WARPS = PREPARE_THREADS / 32;
constexpr int CHANNELS = 32;           // channels in shared memory at a time
constexpr int TILE_PITCH = CHANNELS + 1;
constexpr int TRIANGLE_PITCH = CHUNK + 1;
constexpr int MAX_K_LANE = 256 / 32;   // channels of a lane

// A block: q and k of a chunk and key head, a warp a token.
__device__ __forceinline__ void normalise_keys(const Params& p) {
    int index = blockIdx.x / p.num_k_heads, h = blockIdx.x % p.num_k_heads;
    if (index >= p.first_chunk[p.num_seqs]) return;
    int4 tokens = p.chunks[index];
    int lane = threadIdx.x % 32, K = p.head_k_dim;
    for (int i = threadIdx.x / 32; i < 2 * tokens.z; i += PREPARE_WARPS) {
        bool is_key = i >= tokens.z;
        i64 token = tokens.y + i - (is_key ? tokens.z : 0);
        const void* from = is_key ? p.k : p.q;
        int dtype = is_key ? p.k_dtype : p.q_dtype;
        i64 first = token * (is_key ? p.k_stride : p.q_stride) + (i64)h * K;
        float* to = (is_key ? p.keys : p.queries) + (token * p.num_k_heads + h) * K;
        float x[MAX_K_LANE], sum = 0.0f;
#pragma unroll
        for (int j = 0; j < MAX_K_LANE; ++j) {
            int channel = lane + 32 * j;
            x[j] = channel < K ? load_as_f32(from, dtype, first + channel) : 0.0f;
            sum = __fmaf_rn(x[j], x[j], sum);
        }
        float factor = p.l2_norm ? __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(warp_sum(sum), p.eps))) : 1.0f;
#pragma unroll
        for (int j = 0; j < MAX_K_LANE; ++j) {
            int channel = lane + 32 * j;
            float y = p.l2_norm ? __fmul_rn(x[j], factor) : x[j];
            if (p.round_io) y = round_to(y, p.k_dtype);
            if (channel < K) to[channel] = y;
        }
    }
}

// A chunk and value head in shared memory.
struct Weights {
    const Params& p;
    int index, hv, h, tid;
    int4 tokens;
    float* kk;      // [CHUNK][TRIANGLE_PITCH]: k_t . k_s, then the weights of the system
    float* qk;      // alike: q_t . k_s, then the weights of the outputs
    float* beta;    // [CHUNK]
    float* alpha;   // [CHUNK], or [CHUNK][K] with a decay per channel; then the inverse, [CHUNK][TRIANGLE_PITCH]

    __device__ __forceinline__ Weights(const Params& params) : p(params), tid(threadIdx.x) {
        index = blockIdx.x / p.num_v_heads, hv = blockIdx.x % p.num_v_heads, h = k_head(p, hv);
        kk = (float*)shared_memory();
        qk = kk + CHUNK * TRIANGLE_PITCH;
        beta = qk + CHUNK * TRIANGLE_PITCH;
        alpha = beta + CHUNK;
    }
    __device__ __forceinline__ bool begin() {
        if (index >= p.first_chunk[p.num_seqs]) return false;
        tokens = p.chunks[index];
        for (int t = tid; t < CHUNK; t += PREPARE_THREADS) beta[t] = t < tokens.z ? beta_of(p, tokens.y + (i64)t, hv) : 0.0f;
        return true;
    }
    __device__ __forceinline__ i64 unit() const { return (i64)index * p.num_v_heads + hv; }
    __device__ __forceinline__ float& factor(int which, int t) const {
        return p.factors[(unit() * NUM_FACTORS + which) * CHUNK + t];
    }
    // A token's row of keys or queries.
    __device__ __forceinline__ const float* row(const float* of, int t) const {
        return of + ((tokens.y + (i64)t) * p.num_k_heads + h) * p.head_k_dim;
    }

    // k_t . k_s and q_t . k_s of all pairs: a thread takes 4 x 4 pairs of tokens 16 apart.
    __device__ __forceinline__ void products() {
        float* q_tile = alpha + CHUNK;  // [CHUNK][TILE_PITCH]
        float* k_tile = q_tile + CHUNK * TILE_PITCH;
        float sum_k[4][4] = {}, sum_q[4][4] = {};
        int row_of = tid / 16, column_of = tid % 16;
        for (int first = 0; first < p.head_k_dim; first += CHANNELS) {
            __syncthreads();
            for (int i = tid; i < CHUNK * CHANNELS; i += PREPARE_THREADS) {
                int t = i / CHANNELS, j = i % CHANNELS;
                bool inside = t < tokens.z && first + j < p.head_k_dim;
                q_tile[t * TILE_PITCH + j] = inside ? row(p.queries, t)[first + j] : 0.0f;
                k_tile[t * TILE_PITCH + j] = inside ? row(p.keys, t)[first + j] : 0.0f;
            }
            __syncthreads();
            for (int j = 0; j < CHANNELS; ++j) {
                float q[4], k[4], s[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    q[i] = q_tile[(row_of + 16 * i) * TILE_PITCH + j];
                    k[i] = k_tile[(row_of + 16 * i) * TILE_PITCH + j];
                    s[i] = k_tile[(column_of + 16 * i) * TILE_PITCH + j];
                }
#pragma unroll
                for (int i = 0; i < 4; ++i)
#pragma unroll
                    for (int n = 0; n < 4; ++n) {
                        sum_k[i][n] = __fmaf_rn(k[i], s[n], sum_k[i][n]);
                        sum_q[i][n] = __fmaf_rn(q[i], s[n], sum_q[i][n]);
                    }
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                int at = (row_of + 16 * i) * TRIANGLE_PITCH + column_of + 16 * n;
                kk[at] = sum_k[i][n], qk[at] = sum_q[i][n];
            }
    }

    // One decay a head: a thread a row, D(t, s) as products of factors with s falling.
    __device__ __forceinline__ void decay_per_head() {
        for (int t = tid; t < CHUNK; t += PREPARE_THREADS)
            alpha[t] = t < tokens.z ? decay_factor(p, tokens.y + (i64)t, hv, 0) : 1.0f;
        __syncthreads();
        if (tid < CHUNK) {
            float decay = 1.0f;
            for (int s = tid; s >= 0; --s) {
                int at = tid * TRIANGLE_PITCH + s;
                kk[at] = __fmul_rn(__fmul_rn(kk[at], decay), beta[tid]);
                qk[at] = __fmul_rn(qk[at], decay);
                decay = __fmul_rn(decay, alpha[s]);
            }
            factor(FROM_START, tid) = decay;
            factor(BETA, tid) = beta[tid];
        } else if (tid == CHUNK) {
            float decay = 1.0f;
            for (int s = tokens.z - 1; s >= 0; --s) {
                factor(TO_END, s) = decay;
                decay = __fmul_rn(decay, alpha[s]);
            }
            factor(TOTAL, 0) = decay;
        }
    }

    // A decay per channel: D(t) and D(C, s) into q and k, D(t, s) into the products of each pair.
    __device__ __forceinline__ void decay_per_channel() {
        int K = p.head_k_dim, n = tokens.z;
        for (int i = tid; i < n * K; i += PREPARE_THREADS) alpha[i] = decay_factor(p, tokens.y + (i64)(i / K), hv, i % K);
        __syncthreads();
        for (int j = tid; j < K; j += PREPARE_THREADS) {
            i64 at = ((i64)tokens.y * p.num_v_heads + hv) * K + j, step = (i64)p.num_v_heads * K;
            float decay = 1.0f;
            for (int t = 0; t < n; ++t) {
                decay = __fmul_rn(decay, alpha[t * K + j]);
                p.queries_from_start[at + t * step] = __fmul_rn(row(p.queries, t)[j], decay);
                p.keys_from_start[at + t * step] = __fmul_rn(row(p.keys, t)[j], decay);
            }
            p.carry[unit() * K + j] = decay;
            decay = 1.0f;
            for (int s = n - 1; s >= 0; --s) {
                p.keys_to_end[at + s * step] = __fmul_rn(row(p.keys, s)[j], decay);
                decay = __fmul_rn(decay, alpha[s * K + j]);
            }
        }
        int lane = tid % 32;
        for (int s = tid / 32; s < n; s += PREPARE_WARPS) {
            float key[MAX_K_LANE];  // D(t, s) k_s
#pragma unroll
            for (int i = 0; i < MAX_K_LANE; ++i) key[i] = lane + 32 * i < K ? row(p.keys, s)[lane + 32 * i] : 0.0f;
            for (int t = s; t < n; ++t) {
                float sum_k = 0.0f, sum_q = 0.0f;
#pragma unroll
                for (int i = 0; i < MAX_K_LANE; ++i) {
                    int j = lane + 32 * i;
                    if (j >= K) continue;
                    if (t > s) key[i] = __fmul_rn(key[i], alpha[t * K + j]);
                    sum_k = __fmaf_rn(row(p.keys, t)[j], key[i], sum_k);
                    sum_q = __fmaf_rn(row(p.queries, t)[j], key[i], sum_q);
                }
                sum_k = warp_sum(sum_k), sum_q = warp_sum(sum_q);
                if (lane == 0) {
                    kk[t * TRIANGLE_PITCH + s] = __fmul_rn(sum_k, beta[t]);
                    qk[t * TRIANGLE_PITCH + s] = sum_q;
                }
            }
        }
        if (tid < CHUNK) factor(FROM_START, tid) = 1.0f, factor(TO_END, tid) = 1.0f, factor(BETA, tid) = beta[tid];
    }

    // (I + L)^-1 of the weights L below the diagonal, a thread a column; and both triangles to the workspace.
    __device__ __forceinline__ void finish() {
        float* inverse = alpha;
        __syncthreads();
        if (tid < CHUNK) {
            for (int t = 0; t < tokens.z; ++t) {
                float sum = t == tid ? 1.0f : 0.0f;
                for (int s = tid & ~31; s < t; ++s)
                    sum = __fmaf_rn(-kk[t * TRIANGLE_PITCH + s], inverse[s * TRIANGLE_PITCH + tid], sum);
                inverse[t * TRIANGLE_PITCH + tid] = t < tid ? 0.0f : sum;
            }
        }
        __syncthreads();
        for (int i = tid; i < CHUNK * CHUNK; i += PREPARE_THREADS) {
            int t = i / CHUNK, s = i % CHUNK;
            bool inside = s <= t && t < tokens.z;
            p.inverse[unit() * CHUNK * CHUNK + i] = inside ? inverse[t * TRIANGLE_PITCH + s] : 0.0f;
            p.attention[unit() * CHUNK * CHUNK + i] = inside ? qk[t * TRIANGLE_PITCH + s] : 0.0f;
        }
    }
};

__device__ __forceinline__ void weights(const Params& p) {
    Weights w(p);
    if (!w.begin()) return;
    if (p.per_channel) {
        w.decay_per_channel();
    } else {
        w.products();
        w.decay_per_head();
    }
    w.finish();
}

}  // namespace chunk
