// For the scan on tensor cores: a chunk's q and k as they are, in bf16; the inverse and the weights of the outputs as sums of
// bf16; what norms and decay multiply rows by. bf16 q and k, one decay a rest.
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

constexpr int TILES_THREADS = 128;
constexpr int BLOCK = 16, NUM_BLOCKS = CHUNK / BLOCK;  // tokens that are decayed, and inverted, together; a warp each

// A block: a chunk and value rest.
template <int KP>
struct Tiles {
    static constexpr int PITCH = CHUNK + 4;  // of f32 triangles: rows of float4
    static constexpr int PRODUCT_PITCH = CHUNK / 2 + 4;
    static constexpr int DIAGONAL_PITCH = BLOCK + 1;
    const Params& p;
    int index, hv, h, tid, lane, warp;
    int4 tokens;
    // q and k while they are multiplied, then the system's weights and its inverse.
    u16 *q, *k;                // Tile<KP>
    float *weights, *inverse;  // [CHUNK][PITCH]
    float* product;            // [CHUNK / 2][PRODUCT_PITCH]
    struct Rest {
        float q_norm[CHUNK], k_norm[CHUNK], alpha[CHUNK], beta[CHUNK];
        float from_start[CHUNK], to_end[CHUNK];  // decay from a block's start through t; past t to its end
        float diagonal[CHUNK][DIAGONAL_PITCH];   // D(t, s) in blocks
        int spoiled;                             // tokens from the first one that is not finite on
    };
    Rest& rest;

    static constexpr int KEY_BYTES = 2 * Tile<KP>::LEN * 2;
    static constexpr int TRIANGLE_BYTES = (2 * CHUNK * PITCH + CHUNK / 2 * PRODUCT_PITCH) * 4;
    static constexpr int FIRST_BYTES = KEY_BYTES > TRIANGLE_BYTES ? KEY_BYTES : TRIANGLE_BYTES;

    __device__ __forceinline__ Tiles(const Params& params)
        : p(params), tid(thread_index()), rest(*(Rest*)(shared_memory() + FIRST_BYTES)) {
        lane = tid % 32, warp = tid / 32;
        index = blockIdx.x / p.num_v_heads, hv = blockIdx.x % p.num_v_heads, h = k_head(p, hv);
        unsigned char* shared = shared_memory();
        q = (u16*)shared, k = q + Tile<KP>::LEN;
        weights = (float*)shared, inverse = weights + CHUNK * PITCH, product = inverse + CHUNK * PITCH;
    }
    __device__ __forceinline__ i64 unit() const { return (i64)index * p.num_v_heads + hv; }

    // Eight neighbours of a row in memory, padded with zeros.
    __device__ __forceinline__ uint4 load_piece(const void* from, i64 at, int channel) const {
        if (p.keys_in_place) return *(const uint4*)((const u16*)from + at);
        u32 x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            u32 first = channel + 2 * j < p.head_k_dim ? ((const u16*)from)[at + 2 * j] : 0;
            u32 second = channel + 2 * j + 1 < p.head_k_dim ? ((const u16*)from)[at + 2 * j + 1] : 0;
            x[j] = second << 16 | first;
        }
        return make_uint4(x[0], x[1], x[2], x[3]);
    }
    // A thread's pieces of a tile.
    static constexpr int PER_THREAD = Tile<KP>::LEN / 8 / TILES_THREADS;
    typedef uint4 Pieces[PER_THREAD];
    __device__ __forceinline__ void load_pieces(Pieces& x, const void* from, i64 stride) const {
#pragma unroll
        for (int j = 0; j < PER_THREAD; ++j) {
            int i = j * TILES_THREADS + tid, t = i / (KP / 8), channel = i % (KP / 8) * 8;
            i64 at = (tokens.y + (i64)t) * stride + (i64)h * p.head_k_dim + channel;
            x[j] = t < tokens.z ? load_piece(from, at, channel) : make_uint4(0, 0, 0, 0);
        }
    }
    __device__ __forceinline__ void store_pieces(const Pieces& x, u16* to) const {
#pragma unroll
        for (int j = 0; j < PER_THREAD; ++j) {
            int i = j * TILES_THREADS + tid;
            *(uint4*)(to + Tile<KP>::piece(i / (KP / 8), i % (KP / 8))) = x[j];
        }
    }
    // q and k as they are into shared memory, decay factors and beta.
    __device__ __forceinline__ void load() {
        Pieces x;
        load_pieces(x, p.k, p.k_stride);
        int t = tid % CHUNK;
        bool inside = t < tokens.z;
        if (tid < CHUNK)
            rest.alpha[t] = inside ? decay_factor(p, tokens.y + (i64)t, hv, 0) : 1.0f;
        else
            rest.beta[t] = inside ? beta_of(p, tokens.y + (i64)t, hv) : 0.0f;
        if (tid == 0) rest.spoiled = 0;
        store_pieces(x, k);
        load_pieces(x, p.q, p.q_stride);
        store_pieces(x, q);
        __syncthreads();
    }
    // What the norm multiplies a row by, two threads a row. Where rows are rounded to bf16, they are multiplied here.
    __device__ __forceinline__ void normalise(u16* of, float* norm) const {
        constexpr int HALF = KP / 16;
        int row = tid / 2, first = tid % 2 * HALF;
        float sum = 0.0f, factor = 1.0f;
        if (p.l2_norm) {
#pragma unroll 4
            for (int j = 0; j < HALF; ++j) {
                uint4 x = *(const uint4*)(of + Tile<KP>::piece(row, first + j));
                u32 words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float lower = mma::lower_bf16(words[i]), upper = mma::upper_bf16(words[i]);
                    sum = __fmaf_rn(upper, upper, __fmaf_rn(lower, lower, sum));
                }
            }
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
            factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(sum, p.eps)));
        }
        if (p.l2_norm && p.round_io) {
            for (int j = 0; j < HALF; ++j)
                for (int i = 0; i < 8; i += 2) {
                    u32& x = *(u32*)(of + Tile<KP>::piece(row, first + j) + i);
                    x = to_bf16x2(__fmul_rn(mma::lower_bf16(x), factor), __fmul_rn(mma::upper_bf16(x), factor));
                }
            factor = 1.0f;
        }
        if (tid % 2 == 0) norm[row] = row < tokens.z ? factor : 0.0f;
    }
    // For all value heads of the key head, by the block of the first.
    __device__ __forceinline__ void store_keys() const {
        constexpr int VECTORS = Tile<KP>::LEN / 8;
        bool is_first = p.tiled ? hv < p.num_k_heads : hv % (p.num_v_heads / p.num_k_heads) == 0;
        if (!is_first || p.keys_in_place) return;
        i64 first = ((i64)index * p.num_k_heads + h) * VECTORS;
        for (int i = tid; i < VECTORS; i += TILES_THREADS) {
            ((uint4*)p.query_tiles)[first + i] = ((const uint4*)q)[i];
            ((uint4*)p.key_tiles)[first + i] = ((const uint4*)k)[i];
        }
    }

    // The warp's rows of k_t . k_s or q_t . k_s, without norms: exact products.
    __device__ __forceinline__ void multiply_keys(const u16* rows, float (&d)[CHUNK / 8][4]) const {
        int first = warp * BLOCK, half = lane / 16, upper = lane / 8 % 2;
#pragma unroll
        for (int n = 0; n < CHUNK / 8; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) d[n][e] = 0.0f;
        for (int j = 0; j < KP / 16; ++j) {
            u32 a[4], b[4];
            mma::load_matrices(a, rows + Tile<KP>::piece(first + lane % 16, 2 * j + half));
#pragma unroll
            for (int n = 0; n < CHUNK / 16; ++n) {
                if (n * 16 > first) break;
                mma::load_matrices(b, k + Tile<KP>::piece(16 * n + 8 * half + lane % 8, 2 * j + upper));
                mma::multiply(d[2 * n], a, b[0], b[1]);
                mma::multiply(d[2 * n + 1], a, b[2], b[3]);
            }
        }
    }

    // Products of decay factors within blocks.
    __device__ __forceinline__ void multiply_decays() const {
        int t = tid % CHUNK, first = t - t % BLOCK;
        float decay = 1.0f;
        if (tid < CHUNK) {
            for (int s = t % BLOCK; s >= 0; --s) {
                rest.diagonal[t][s] = decay;
                decay = __fmul_rn(decay, rest.alpha[first + s]);
            }
            rest.from_start[t] = decay;
        } else {
            for (int s = first + BLOCK - 1; s > t; --s) decay = __fmul_rn(decay, rest.alpha[s]);
            rest.to_end[t] = decay;
        }
    }
    // Decay of whole blocks first .. last.
    __device__ __forceinline__ float blocks(int first, int last) const {
        float decay = 1.0f;
        for (int b = first; b < last; ++b) decay = __fmul_rn(decay, rest.from_start[b * BLOCK + BLOCK - 1]);
        return decay;
    }
    __device__ __forceinline__ void store_factors() const {
        float* to = p.factors + unit() * NUM_FACTORS * CHUNK;
        int t = tid % CHUNK;
        if (tid < CHUNK) {
            float decay = __fmul_rn(blocks(0, t / BLOCK), rest.from_start[t]);
            to[FROM_START * CHUNK + t] = __fmul_rn(decay, rest.k_norm[t]);
            to[FROM_START_Q * CHUNK + t] = __fmul_rn(__fmul_rn(decay, rest.q_norm[t]), p.scale);
        } else {
            float decay = __fmul_rn(rest.to_end[t], blocks(t / BLOCK + 1, NUM_BLOCKS));
            to[TO_END * CHUNK + t] = __fmul_rn(decay, rest.k_norm[t]);
            if (t == 0) to[TOTAL * CHUNK] = blocks(0, NUM_BLOCKS);
        }
    }

    // From the products of a warp: the system's weights into shared memory, those of the outputs into the workspace. A row of
    // the system that is not finite is left out, and what it spoils is marked.
    template <bool IS_SYSTEM>
    __device__ __forceinline__ void weigh(const float (&d)[CHUNK / 8][4]) {
        int block = warp;
        u16* attention = p.attention_tiles + unit() * ATTENTION_PARTS * Triangle::LEN;
        int row = block * BLOCK + lane / 4, pair = 2 * (lane % 4);
        // What multiplies the lane's two rows, also with the decay from their block's start.
        float of_row[2], from_start[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            int t = row + 8 * i;
            of_row[i] = IS_SYSTEM ? __fmul_rn(rest.beta[t], rest.k_norm[t]) : __fmul_rn(p.scale, rest.q_norm[t]);
            from_start[i] = __fmul_rn(of_row[i], rest.from_start[t]);
        }
        // Decay of the blocks between the rows' and block 0, and block 1.
        float past_1 = block > 2 ? rest.from_start[3 * BLOCK - 1] : 1.0f;
        float past_0 = block > 1 ? __fmul_rn(rest.from_start[2 * BLOCK - 1], past_1) : 1.0f;
        bool good[2] = {true, true};
#pragma unroll
        for (int n = 0; n < CHUNK / 8; ++n) {
            if (n / 2 > block) break;  // nobody looks there
            int s = 8 * n + pair;
            float2 norm = *(const float2*)(rest.k_norm + s);
            float x[2][2];
            if (n / 2 < block) {
                float2 to_end = *(const float2*)(rest.to_end + s);
                float between = n / 2 == 0 ? past_0 : n / 2 == 1 ? past_1 : 1.0f;
                float left = __fmul_rn(__fmul_rn(between, to_end.x), norm.x);
                float right = __fmul_rn(__fmul_rn(between, to_end.y), norm.y);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    x[i][0] = __fmul_rn(__fmul_rn(d[n][2 * i], from_start[i]), left);
                    x[i][1] = __fmul_rn(__fmul_rn(d[n][2 * i + 1], from_start[i]), right);
                }
            } else {
#pragma unroll
                for (int i = 0; i < 2; ++i)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        int t = row + 8 * i;
                        bool inside = IS_SYSTEM ? s + e < t : s + e <= t;
                        float factor = inside ? __fmul_rn(rest.diagonal[t][(s + e) % BLOCK], e ? norm.y : norm.x) : 0.0f;
                        x[i][e] = inside ? __fmul_rn(__fmul_rn(d[n][2 * i + e], of_row[i]), factor) : 0.0f;
                    }
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                int t = row + 8 * i;
                if (IS_SYSTEM) {
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        good[i] = good[i] && is_finite(x[i][e]);
                        x[i][e] = is_finite(x[i][e]) ? x[i][e] : 0.0f;
                    }
                    *(float2*)(weights + t * PITCH + s) = make_float2(x[i][0], x[i][1]);
                } else {
                    u32 parts[ATTENTION_PARTS];
                    mma::split(x[i][0], x[i][1], parts);
#pragma unroll
                    for (int j = 0; j < ATTENTION_PARTS; ++j)
                        *(u32*)(attention + j * Triangle::LEN + Triangle::element(t, s)) = parts[j];
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i)
            if (IS_SYSTEM && !good[i]) atomicMax(&rest.spoiled, CHUNK - (row + 8 * i));
    }

    // (I + L)^-1: blocks on the diagonal by substitution; then twice, of [[A, 0], [L, B]]: -B^-1 L A^-1.
    __device__ __forceinline__ void invert() {
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
    // From inverses of N x N blocks to those of 2 N x 2 N. A thread takes JOIN_ROWS x 4 elements of a product. Terms above the
    // diagonal are 0 and are left out, warp by warp: a warp has neighbouring columns of the first product, rows of the second.
    template <int N>
    __device__ __forceinline__ void join() {
        constexpr int PAIRS = CHUNK / (2 * N), PER_PAIR = TILES_THREADS / PAIRS, WARPS = PER_PAIR / 32;
        constexpr int ROWS = N * N / PER_PAIR / 4, SHARE = N / WARPS;  // of a thread; of a warp
        int pair = tid / PER_PAIR, first = tid / 32 % WARPS * SHARE;
        int upper = pair * 2 * N, lower = upper + N;
        float* products = product + pair * N * PRODUCT_PITCH;
        __syncthreads();
        {
            constexpr int APART = N / ROWS;
            int row = lane % APART, column = first + lane / APART * 4;
            float sum[ROWS][4] = {}, zero[4] = {};
            multiply_rows<APART>(weights + (lower + row) * PITCH + upper, inverse + upper * PITCH + upper + column, PITCH,
                                 first, N, sum);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                // What overflows must not meet the zeros of rows above.
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    if (!is_finite(sum[r][j])) atomicMax(&rest.spoiled, CHUNK - (lower + row + r * APART)), sum[r][j] = 0.0f;
                store_row(products + (row + r * APART) * PRODUCT_PITCH + column, sum[r]);
                // Above the diagonal of the larger block; below, the product with -1.
                store_row(inverse + (upper + row + r * APART) * PITCH + lower + column, zero);
            }
        }
        __syncthreads();
        {
            constexpr int APART = SHARE / ROWS;
            int row = first + lane / (N / 4), column = lane % (N / 4) * 4;
            float sum[ROWS][4] = {};
            multiply_rows<APART>(inverse + (lower + row) * PITCH + lower, products + column, PRODUCT_PITCH, 0, first + SHARE,
                                 sum);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[r][j] = -sum[r][j];
                store_row(inverse + (lower + row + r * APART) * PITCH + upper + column, sum[r]);
            }
        }
    }
    // sums += left [ROWS, begin .. end] right [begin .. end, 4]; rows of the left are APART from one another.
    template <int APART, int ROWS>
    static __device__ __forceinline__ void multiply_rows(const float* left, const float* right, int pitch, int begin, int end,
                                                         float (&sums)[ROWS][4]) {
#pragma unroll 2
        for (int i = begin; i < end; i += 4) {
            float x[ROWS][4], y[4];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) load_row(x[r], left + r * APART * PITCH + i);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                load_row(y, right + (i + e) * pitch);
#pragma unroll
                for (int r = 0; r < ROWS; ++r)
#pragma unroll
                    for (int j = 0; j < 4; ++j) sums[r][j] = __fmaf_rn(x[r][e], y[j], sums[r][j]);
            }
        }
    }
    template <int WIDTH>
    static __device__ __forceinline__ void load_row(float (&to)[WIDTH], const float* from) {
#pragma unroll
        for (int j = 0; j < WIDTH; j += 4) {
            float4 x = *(const float4*)(from + j);
            to[j] = x.x, to[j + 1] = x.y, to[j + 2] = x.z, to[j + 3] = x.w;
        }
    }
    template <int WIDTH>
    static __device__ __forceinline__ void store_row(float* to, const float (&x)[WIDTH]) {
#pragma unroll
        for (int j = 0; j < WIDTH; j += 4) *(float4*)(to + j) = make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]);
    }

    // The inverse times beta, as sums of bf16.
    __device__ __forceinline__ void store_inverse() const {
        u16* to = p.inverse_tiles + unit() * INVERSE_PARTS * Triangle::LEN;
        int bad = CHUNK - rest.spoiled;
        for (int i = tid; i < CHUNK * CHUNK / 8; i += TILES_THREADS) {
            int t = i / (CHUNK / 8), first = i % (CHUNK / 8) * 8;
            if (first / BLOCK > t / BLOCK) continue;  // nobody looks there
            u32 parts[4][INVERSE_PARTS];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float x[2];
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    int s = first + 2 * j + e;
                    x[e] = s > t ? 0.0f : t >= bad ? not_a_number() : __fmul_rn(inverse[t * PITCH + s], rest.beta[s]);
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
        load();
        normalise(k, rest.k_norm);
        normalise(q, rest.q_norm);
        multiply_decays();
        __syncthreads();
        store_keys();
        store_factors();
        float d[CHUNK / 8][4];
        multiply_keys(q, d);
        weigh<false>(d);
        multiply_keys(k, d);
        __syncthreads();
        weigh<true>(d);
        invert();
        store_inverse();
    }
    static constexpr int BYTES = FIRST_BYTES + (int)sizeof(Rest);
};

}  // namespace chunk
