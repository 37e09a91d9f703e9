// From chunk to chunk: deltas, outputs and states of COLUMNS rows of V (columns here), any head size, FMAs in f32.
#pragma once
#include "chunk.cuh"

namespace chunk {

constexpr int SCAN_THREADS = 256;
constexpr int COLUMNS = 32;                             // a lane each
constexpr int WARPS = SCAN_THREADS / 32;
constexpr int THREAD_TOKENS = CHUNK / WARPS;                   // tokens of a thread: its warp, + WARPS, ..
constexpr int STATE_PITCH = COLUMNS + 1;
constexpr int KEYS = 32, KEY_PITCH = KEYS + 4;          // channels of q and k in shared memory at a time

struct Scan {
    const Params& p;
    int seq, hv, h, column, lane, warp;
    float *state;                                       // [K][STATE_PITCH]
    float *inverse, *attention;                         // [CHUNK][CHUNK]
    float *q_tile, *k_tile;                             // [CHUNK][KEY_PITCH]
    float *deltas;                                      // [CHUNK][COLUMNS]
    float *factors;                                     // [NUM_FACTORS][CHUNK]

    __device__ __forceinline__ Scan(const Params& params) : p(params) {
        int slices = ceil_div(p.head_v_dim, COLUMNS), unit = blockIdx.x / slices;
        seq = unit / p.num_v_heads, hv = unit % p.num_v_heads, h = k_head(p, hv);
        lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        column = blockIdx.x % slices * COLUMNS + lane;
        inverse = (float*)shared_memory();
        attention = inverse + CHUNK * CHUNK;
        q_tile = attention + CHUNK * CHUNK;
        k_tile = q_tile + CHUNK * KEY_PITCH;
        deltas = k_tile + CHUNK * KEY_PITCH;
        factors = deltas + CHUNK * COLUMNS;
        state = factors + NUM_FACTORS * CHUNK;
    }

    __device__ __forceinline__ i64 out_at(i64 token) const { return token * p.out_stride + (i64)hv * p.head_v_dim + column; }

    // A state's rows, a warp each, from or to memory that begins at the head's first element.
    __device__ __forceinline__ void load(const void* from, i64 head) {
        int first = column - lane;
        for (int c = warp; c < COLUMNS; c += WARPS)
            for (int j = lane; j < p.head_k_dim; j += 32) {
                i64 at = head + (i64)(first + c) * p.head_k_dim + j;
                state[j * STATE_PITCH + c] = first + c < p.head_v_dim ? load_as_f32(from, p.state_dtype, at) : 0.0f;
            }
    }
    __device__ __forceinline__ void store(void* to, i64 head) const {
        int first = column - lane;
        for (int c = warp; c < COLUMNS && first + c < p.head_v_dim; c += WARPS)
            for (int j = lane; j < p.head_k_dim; j += 32)
                store_from_f32(to, p.state_dtype, head + (i64)(first + c) * p.head_k_dim + j, state[j * STATE_PITCH + c]);
    }

    // Channels first .. first + KEYS of the chunk's rows into shared memory, padded with zeros.
    __device__ __forceinline__ void load_tile(float* to, const float* rows, i64 stride, int tokens, int first) {
        for (int t = warp; t < CHUNK; t += WARPS)
            to[t * KEY_PITCH + lane] = t < tokens && first + lane < p.head_k_dim ? rows[t * stride + first + lane] : 0.0f;
    }

    __device__ __forceinline__ void chunk(int index, int4 tokens) {
        int n = tokens.z, K = p.head_k_dim;
        i64 unit = (i64)index * p.num_v_heads + hv;
        for (int i = threadIdx.x; i < CHUNK * CHUNK / 4; i += SCAN_THREADS) {
            ((float4*)inverse)[i] = ((const float4*)p.inverse)[unit * (CHUNK * CHUNK / 4) + i];
            ((float4*)attention)[i] = ((const float4*)p.attention)[unit * (CHUNK * CHUNK / 4) + i];
        }
        factors[threadIdx.x] = p.factors[unit * NUM_FACTORS * CHUNK + threadIdx.x];
        int heads = p.per_channel ? p.num_v_heads : p.num_k_heads, head = p.per_channel ? hv : h;
        i64 stride = (i64)heads * K, rows = tokens.y * stride + (i64)head * K;
        const float* queries = (p.per_channel ? p.queries_from_start : p.queries) + rows;
        const float* keys = (p.per_channel ? p.keys_from_start : p.keys) + rows;
        const float* keys_to_end = (p.per_channel ? p.keys_to_end : p.keys) + rows;

        // S0 k_t and S0 q_t.
        float sum_k[THREAD_TOKENS] = {}, sum_q[THREAD_TOKENS] = {};
        for (int first = 0; first < K; first += KEYS) {
            __syncthreads();
            load_tile(q_tile, queries, stride, n, first);
            load_tile(k_tile, keys, stride, n, first);
            __syncthreads();
            int channels = min(KEYS, K - first);
            for (int j = 0; j < channels; j += 4) {
                float s[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) s[i] = j + i < channels ? state[(first + j + i) * STATE_PITCH + lane] : 0.0f;
#pragma unroll
                for (int i = 0; i < THREAD_TOKENS; ++i) {
                    int at = (warp + WARPS * i) * KEY_PITCH + j;
                    float4 k = *(const float4*)(k_tile + at), q = *(const float4*)(q_tile + at);
                    sum_k[i] = __fmaf_rn(k.w, s[3], __fmaf_rn(k.z, s[2], __fmaf_rn(k.y, s[1], __fmaf_rn(k.x, s[0], sum_k[i]))));
                    sum_q[i] = __fmaf_rn(q.w, s[3], __fmaf_rn(q.z, s[2], __fmaf_rn(q.y, s[1], __fmaf_rn(q.x, s[0], sum_q[i]))));
                }
            }
        }
        // beta_t (v_t - D(t) S0 k_t), then the deltas by the inverse: sums over s <= t alone.
#pragma unroll
        for (int i = 0; i < THREAD_TOKENS; ++i) {
            int t = warp + WARPS * i;
            float v = 0.0f;
            if (t < n && column < p.head_v_dim)
                v = load_as_f32(p.v, p.v_dtype, (tokens.y + (i64)t) * p.v_stride + (i64)hv * p.head_v_dim + column);
            float decay = factors[FROM_START * CHUNK + t], beta = factors[BETA * CHUNK + t];
            deltas[t * COLUMNS + lane] = __fmul_rn(beta, __fmaf_rn(-decay, sum_k[i], v));
            sum_q[i] = __fmul_rn(sum_q[i], decay);
            sum_k[i] = 0.0f;
        }
        __syncthreads();
        triangle(inverse, n, sum_k);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < THREAD_TOKENS; ++i) deltas[(warp + WARPS * i) * COLUMNS + lane] = sum_k[i];
        __syncthreads();
        triangle(attention, n, sum_q);
#pragma unroll
        for (int i = 0; i < THREAD_TOKENS; ++i) {
            int t = warp + WARPS * i;
            if (t < n && column < p.head_v_dim)
                store_from_f32(p.out, p.out_dtype, out_at(tokens.y + (i64)t), __fmul_rn(p.scale, sum_q[i]));
        }
        // S1 = D(C) S0 + sum_s D(C, s) delta_s k_s: a warp takes 4 channels of a tile.
        for (int first = 0; first < K; first += KEYS) {
            __syncthreads();
            load_tile(k_tile, keys_to_end, stride, n, first);
            __syncthreads();
            int j = 4 * warp;
            float sum[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int channel = first + j + i;
                sum[i] = 0.0f;
                if (channel >= K) continue;
                float carry = p.per_channel ? p.carry[unit * K + channel] : factors[TOTAL * CHUNK];
                sum[i] = __fmul_rn(carry, state[channel * STATE_PITCH + lane]);
            }
            for (int s = 0; s < n; ++s) {
                float4 k = *(const float4*)(k_tile + s * KEY_PITCH + j);
                float delta = __fmul_rn(factors[TO_END * CHUNK + s], deltas[s * COLUMNS + lane]);
                sum[0] = __fmaf_rn(k.x, delta, sum[0]), sum[1] = __fmaf_rn(k.y, delta, sum[1]);
                sum[2] = __fmaf_rn(k.z, delta, sum[2]), sum[3] = __fmaf_rn(k.w, delta, sum[3]);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (first + j + i < K) state[(first + j + i) * STATE_PITCH + lane] = sum[i];
        }
        __syncthreads();
    }

    // sums[t] += sum of weights[t][s] deltas[s] over s <= t.
    __device__ __forceinline__ void triangle(const float* weights, int n, float (&sums)[THREAD_TOKENS]) const {
        for (int s = 0; s < n; ++s) {
            float delta = deltas[s * COLUMNS + lane];
#pragma unroll
            for (int i = 0; i < THREAD_TOKENS; ++i) {
                int t = warp + WARPS * i;
                if (s <= t) sums[i] = __fmaf_rn(weights[t * CHUNK + s], delta, sums[i]);
            }
        }
    }

    __device__ __forceinline__ void run() {
        int begin = p.cu_seqlens[seq], end = p.cu_seqlens[seq + 1], slot = p.state_indices[seq];
        if (slot < 0) {
            for (int t = begin + warp; t < end && column < p.head_v_dim; t += WARPS)
                store_from_f32(p.out, p.out_dtype, out_at(t), 0.0f);
            return;
        }
        if (begin == end) return;
        i64 head = (i64)hv * p.head_v_dim * p.head_k_dim, head_len = (i64)p.num_v_heads * p.head_v_dim * p.head_k_dim;
        load(p.state, slot * p.state_stride + head);
        for (int index = p.first_chunk[seq]; index < p.first_chunk[seq + 1]; ++index) {
            int4 tokens = p.chunks[index];
            chunk(index, tokens);
            int done = tokens.y + tokens.z - begin;
            if (p.every && done % p.every == 0)
                store(p.checkpoints, (p.first_checkpoint[seq] + (i64)(done / p.every - 1)) * head_len + head);
        }
        store(p.state, slot * p.state_stride + head);
    }
};

}  // namespace chunk
