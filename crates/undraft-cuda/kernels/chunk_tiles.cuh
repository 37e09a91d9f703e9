// For the scan on tensor cores: a chunk's q and k as they are, in bf16; the inverse and the weights of the outputs as sums of
// bf16; what norms and decay multiply rows by. bf16 q and k, one decay a head.
#pragma once
#include "chunk.cuh"
#include "mma.cuh"

namespace chunk {

// Rows of COLUMNS 16-bit elements, pieces of 8 exchanged within a row so that eight rows' pieces lie in different banks.
template <int COLUMNS>
struct Tile {
    static constexpr int PIECES_OF_ROW = COLUMNS / 8;
    static constexpr int LEN = CHUNK * COLUMNS;
    static __device__ __forceinline__ int piece(int row, int i) { return (row * PIECES_OF_ROW + (i ^ (row & 7))) * 8; }
    static __device__ __forceinline__ int element(int row, int column) { return piece(row, column / 8) + column % 8; }
};
typedef Tile<CHUNK> Triangle;
// bf16 that an element of the inverse, and a weight of the outputs, is the sum of.
constexpr int INVERSE_PARTS = 3, ATTENTION_PARTS = 2;

__device__ __forceinline__ bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }
__device__ __forceinline__ float not_a_number() { return __uint_as_float(0x7fc00000u); }

constexpr int TILES_THREADS = 256;
constexpr int BLOCK = 16, NUM_BLOCKS = CHUNK / BLOCK;  // tokens that are decayed, and inverted, together

// A block: a chunk and key head, then each of its value heads.
template <int KP>
struct Tiles {
    static constexpr int PITCH = CHUNK + 4;        // of f32 triangles: rows of float4
    static constexpr int DIAGONAL_PITCH = BLOCK + 1;
    const Params& p;
    int index, h, tid, lane, warp;
    int4 tokens;
    // q and k while they are multiplied, then the system's weights and its inverse.
    u16 *q, *k;                  // Tile<KP>
    float *weights, *inverse;    // [CHUNK][PITCH]
    float *product;              // [CHUNK / 2][PITCH / 2]
    float *decays;               // [CHUNK][DIAGONAL_PITCH]: D(t, s) in blocks
    float *q_norm, *k_norm, *alpha, *beta;  // [CHUNK]
    float *from_start, *to_end;  // [CHUNK]: decay from a block's start through t; past t to its end
    int* spoiled;                // tokens from the first one that is not finite on

    static constexpr int KEY_BYTES = 2 * Tile<KP>::LEN * 2;
    static constexpr int TRIANGLE_BYTES = (2 * CHUNK * PITCH + CHUNK / 2 * (PITCH / 2)) * 4;
    static constexpr int FIRST_BYTES = KEY_BYTES > TRIANGLE_BYTES ? KEY_BYTES : TRIANGLE_BYTES;
    static constexpr int BYTES = FIRST_BYTES + (CHUNK * DIAGONAL_PITCH + 6 * CHUNK + 4) * 4;

    __device__ __forceinline__ Tiles(const Params& params) : p(params), tid(thread_index()) {
        lane = tid % 32, warp = tid / 32;
        index = blockIdx.x / p.num_k_heads, h = blockIdx.x % p.num_k_heads;
        unsigned char* shared = shared_memory();
        q = (u16*)shared, k = q + Tile<KP>::LEN;
        weights = (float*)shared, inverse = weights + CHUNK * PITCH, product = inverse + CHUNK * PITCH;
        decays = (float*)(shared + FIRST_BYTES);
        q_norm = decays + CHUNK * DIAGONAL_PITCH, k_norm = q_norm + CHUNK, alpha = k_norm + CHUNK, beta = alpha + CHUNK;
        from_start = beta + CHUNK, to_end = from_start + CHUNK, spoiled = (int*)(to_end + CHUNK);
    }

    // Reads q and k, a warp a token; what the norm multiplies a row by. Rounded to bf16, rows are normalised at once.
    __device__ __forceinline__ void load_keys() {
        constexpr int PER_LANE = KP / 32;
        int K = p.head_k_dim;
        for (int i = warp; i < 2 * CHUNK; i += TILES_THREADS / 32) {
            bool is_key = i >= CHUNK;
            int t = i % CHUNK;
            const void* from = is_key ? p.k : p.q;
            i64 first = (tokens.y + (i64)t) * (is_key ? p.k_stride : p.q_stride) + (i64)h * K;
            float x[PER_LANE], sum = 0.0f, factor = 1.0f;
#pragma unroll
            for (int j = 0; j < PER_LANE; ++j) {
                int channel = lane * PER_LANE + j;
                x[j] = t < tokens.z && channel < K ? load_as_f32(from, BF16, first + channel) : 0.0f;
                sum = __fmaf_rn(x[j], x[j], sum);
            }
            if (p.l2_norm) factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(warp_sum(sum), p.eps)));
            if (p.round_io) {
#pragma unroll
                for (int j = 0; j < PER_LANE; ++j) x[j] = __fmul_rn(x[j], factor);
                factor = 1.0f;
            }
            if (t >= tokens.z) factor = 0.0f;
            if (lane == 0) (is_key ? k_norm : q_norm)[t] = factor;
            u16* to = (is_key ? k : q) + Tile<KP>::element(t, lane * PER_LANE);
#pragma unroll
            for (int j = 0; j < PER_LANE; j += 2) *(u32*)(to + j) = to_bf16x2(x[j], x[j + 1]);
        }
    }
    __device__ __forceinline__ void store_keys() const {
        constexpr int VECTORS = Tile<KP>::LEN / 8;
        i64 first = ((i64)index * p.num_k_heads + h) * VECTORS;
        for (int i = tid; i < VECTORS; i += TILES_THREADS) {
            ((uint4*)p.query_tiles)[first + i] = ((const uint4*)q)[i];
            ((uint4*)p.key_tiles)[first + i] = ((const uint4*)k)[i];
        }
    }

    // Rows BLOCK (warp % 4) .. of k_t . k_s (warps 0 to 3) or q_t . k_s, without norms: exact products.
    __device__ __forceinline__ void multiply_keys(float (&d)[CHUNK / 8][4]) const {
        int first = warp % NUM_BLOCKS * BLOCK, half = lane / 16, upper = lane / 8 % 2;
        const u16* rows = warp < NUM_BLOCKS ? k : q;
        for (int j = 0; j < KP / 16; ++j) {
            u32 a[4], b[4];
            mma::load_matrices(a, rows + Tile<KP>::piece(first + lane % 16, 2 * j + half));
#pragma unroll
            for (int n = 0; n < CHUNK / 16; ++n) {
                mma::load_matrices(b, k + Tile<KP>::piece(16 * n + 8 * half + lane % 8, 2 * j + upper));
                mma::multiply(d[2 * n], a, b[0], b[1]);
                mma::multiply(d[2 * n + 1], a, b[2], b[3]);
            }
        }
    }

    // Decay factors and beta of a value head, and their products within blocks.
    __device__ __forceinline__ void load_decays(int hv) {
        if (tid < CHUNK) {
            bool inside = tid < tokens.z;
            alpha[tid] = inside ? decay_factor(p, tokens.y + (i64)tid, hv, 0) : 1.0f;
        } else if (tid < 2 * CHUNK) {
            int t = tid - CHUNK;
            beta[t] = t < tokens.z ? beta_of(p, tokens.y + (i64)t, hv) : 0.0f;
        } else if (tid == 2 * CHUNK) {
            *spoiled = 0;
        }
        __syncthreads();
        if (tid < CHUNK) {
            int in_block = tid % BLOCK, first = tid - in_block;
            float decay = 1.0f;
            for (int s = in_block; s >= 0; --s) {
                decays[tid * DIAGONAL_PITCH + s] = decay;
                decay = __fmul_rn(decay, alpha[first + s]);
            }
            from_start[tid] = decay;
        } else if (tid < 2 * CHUNK) {
            int t = tid - CHUNK, end = t - t % BLOCK + BLOCK;
            float decay = 1.0f;
            for (int s = end - 1; s > t; --s) decay = __fmul_rn(decay, alpha[s]);
            to_end[t] = decay;
        }
        __syncthreads();
    }
    // Decay of whole blocks first .. last.
    __device__ __forceinline__ float blocks(int first, int last) const {
        float decay = 1.0f;
        for (int b = first; b < last; ++b) decay = __fmul_rn(decay, from_start[b * BLOCK + BLOCK - 1]);
        return decay;
    }
    // D(t, s), s <= t; `between` is the decay of the blocks between theirs.
    __device__ __forceinline__ float decay(int t, int s, float between) const {
        if (t / BLOCK == s / BLOCK) return decays[t * DIAGONAL_PITCH + s % BLOCK];
        return __fmul_rn(__fmul_rn(from_start[t], between), to_end[s]);
    }

    __device__ __forceinline__ void store_factors(i64 unit) const {
        float* to = p.factors + unit * NUM_FACTORS * CHUNK;
        if (tid < CHUNK) {
            float decay = __fmul_rn(blocks(0, tid / BLOCK), from_start[tid]);
            to[FROM_START * CHUNK + tid] = __fmul_rn(decay, k_norm[tid]);
            to[FROM_START_Q * CHUNK + tid] = __fmul_rn(__fmul_rn(decay, q_norm[tid]), p.scale);
        } else if (tid < 2 * CHUNK) {
            int s = tid - CHUNK;
            float decay = __fmul_rn(to_end[s], blocks(s / BLOCK + 1, NUM_BLOCKS));
            to[TO_END * CHUNK + s] = __fmul_rn(decay, k_norm[s]);
        } else if (tid == 2 * CHUNK) {
            to[TOTAL * CHUNK] = blocks(0, NUM_BLOCKS);
        }
    }

    // From the products of a warp: the system's weights into shared memory, those of the outputs into the workspace. A row of
    // the system that is not finite is left out, and what it spoils is marked.
    __device__ __forceinline__ void weigh(const float (&d)[CHUNK / 8][4], i64 unit) const {
        int block = warp % NUM_BLOCKS;
        u16* attention = p.attention_tiles + unit * ATTENTION_PARTS * Triangle::LEN;
#pragma unroll
        for (int n = 0; n < CHUNK / 8; ++n) {
            float between = n / 2 < block ? blocks(n / 2 + 1, block) : 1.0f;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                int t = block * BLOCK + lane / 4 + 8 * i, s = 8 * n + 2 * (lane % 4);
                float x[2];
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    bool inside = warp < NUM_BLOCKS ? s + e < t : s + e <= t;
                    float factor = inside ? __fmul_rn(decay(t, s + e, between), k_norm[s + e]) : 0.0f;
                    factor = __fmul_rn(factor, warp < NUM_BLOCKS ? __fmul_rn(beta[t], k_norm[t]) : __fmul_rn(p.scale, q_norm[t]));
                    x[e] = inside ? __fmul_rn(d[n][2 * i + e], factor) : 0.0f;
                    if (warp < NUM_BLOCKS && !is_finite(x[e])) atomicMax(spoiled, CHUNK - t), x[e] = 0.0f;
                }
                if (warp < NUM_BLOCKS) {
                    *(float2*)(weights + t * PITCH + s) = make_float2(x[0], x[1]);
                } else {
                    u32 parts[ATTENTION_PARTS];
                    mma::split(x[0], x[1], parts);
#pragma unroll
                    for (int j = 0; j < ATTENTION_PARTS; ++j) *(u32*)(attention + j * Triangle::LEN + Triangle::element(t, s)) = parts[j];
                }
            }
        }
    }

    // (I + L)^-1: blocks on the diagonal by substitution; then twice, of [[A, 0], [L, B]]: -B^-1 L A^-1.
    __device__ __forceinline__ void invert() const {
        __syncthreads();
        if (tid < CHUNK) {
            int column = tid % BLOCK, first = tid - column;
            float x[BLOCK];
#pragma unroll
            for (int t = 0; t < BLOCK; ++t) {
                float sum = t == column ? 1.0f : 0.0f;
#pragma unroll
                for (int s = 0; s < t; ++s) sum = __fmaf_rn(-weights[(first + t) * PITCH + first + s], x[s], sum);
                x[t] = sum;
                inverse[(first + t) * PITCH + first + column] = sum;
            }
        }
        join<BLOCK>();
        join<2 * BLOCK>();
        __syncthreads();
    }
    // From inverses of N x N blocks to those of 2 N x 2 N.
    template <int N>
    __device__ __forceinline__ void join() const {
        constexpr int PAIRS = CHUNK / (2 * N), WIDTH = PAIRS * N * N / TILES_THREADS;  // neighbours of a thread
        constexpr int PER_PAIR = TILES_THREADS / PAIRS;
        int of_pair = tid % PER_PAIR, row = of_pair / (N / WIDTH), column = of_pair % (N / WIDTH) * WIDTH;
        int upper = tid / PER_PAIR * 2 * N, lower = upper + N;
        float* mine = product + (tid / PER_PAIR * N + row) * (PITCH / 2) + column;
        __syncthreads();
        float sum[WIDTH] = {};
        for (int i = 0; i < N; ++i)
#pragma unroll
            for (int j = 0; j < WIDTH; ++j)
                sum[j] = __fmaf_rn(weights[(lower + row) * PITCH + upper + i],
                                   i < column + j ? 0.0f : inverse[(upper + i) * PITCH + upper + column + j], sum[j]);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) mine[j] = sum[j], sum[j] = 0.0f;
        __syncthreads();
        for (int i = 0; i <= row; ++i)
#pragma unroll
            for (int j = 0; j < WIDTH; ++j)
                sum[j] = __fmaf_rn(-inverse[(lower + row) * PITCH + lower + i],
                                   product[(tid / PER_PAIR * N + i) * (PITCH / 2) + column + j], sum[j]);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) inverse[(lower + row) * PITCH + upper + column + j] = sum[j];
    }

    // The inverse times beta, as sums of bf16.
    __device__ __forceinline__ void store_inverse(i64 unit) const {
        u16* to = p.inverse_tiles + unit * INVERSE_PARTS * Triangle::LEN;
        int bad = CHUNK - *spoiled;
        for (int i = tid; i < CHUNK * CHUNK / 8; i += TILES_THREADS) {
            int t = i / (CHUNK / 8), first = i % (CHUNK / 8) * 8;
            u32 parts[4][INVERSE_PARTS];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float x[2];
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    int s = first + 2 * j + e;
                    x[e] = s > t ? 0.0f : t >= bad ? not_a_number() : __fmul_rn(inverse[t * PITCH + s], beta[s]);
                }
                mma::split(x[0], x[1], parts[j]);
            }
#pragma unroll
            for (int n = 0; n < INVERSE_PARTS; ++n)
                *(uint4*)(to + n * Triangle::LEN + Triangle::piece(t, first / 8)) =
                    make_uint4(parts[0][n], parts[1][n], parts[2][n], parts[3][n]);
        }
    }

    __device__ __forceinline__ void run() {
        if (index >= p.first_chunk[p.num_seqs]) return;
        tokens = p.chunks[index];
        load_keys();
        __syncthreads();
        store_keys();
        float d[CHUNK / 8][4] = {};
        multiply_keys(d);
        int heads = p.num_v_heads / p.num_k_heads;
        for (int i = 0; i < heads; ++i) {
            int hv = p.tiled ? i * p.num_k_heads + h : h * heads + i;
            i64 unit = (i64)index * p.num_v_heads + hv;
            __syncthreads();
            load_decays(hv);
            store_factors(unit);
            weigh(d, unit);
            invert();
            store_inverse(unit);
        }
    }
};

}  // namespace chunk
