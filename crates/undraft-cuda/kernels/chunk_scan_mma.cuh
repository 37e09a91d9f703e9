// From chunk to chunk on tensor cores. A block takes ROWS rows of a state: a pair of warps each 16 of them. The first warp of a
// pair, "state", holds its rows in registers and finds the deltas; the second, "output", multiplies queries one chunk later,
// with what the first has left in shared memory. No sum crosses warps.
//
// S is [V x K], deltas [V x tokens]: the D of one product is the A of the next. f32 numbers are sums of three bf16 where they
// reach the state, of two where they reach outputs alone; k and q are bf16 as they are.
//
// A product takes all rows s of B, also those behind t, with weights of 0; what is not finite there is left out of A and marked
// instead, so that it spoils the tokens from its own on, and no others.
#pragma once
#include "chunk_tiles.cuh"

namespace chunk {

constexpr int MMA_THREADS = 128;
constexpr int MMA_ROWS = 32, PAIRS = MMA_ROWS / 16;

template <int KP>
struct MmaScan {
    static constexpr int STEPS = KP / 16;             // of 16 channels
    static constexpr int TOKEN_TILES = CHUNK / 8;     // D tiles of 8 tokens
    static constexpr int TOKEN_STEPS = CHUNK / 16;
    static constexpr int STATE_PARTS = 3, OUTPUT_PARTS = 2;
    typedef Tile<KP> Keys;

    // Shared memory, two of each: chunks take turns.
    struct State {  // for the state warps
        u16 keys[Keys::LEN], inverse[INVERSE_PARTS][Triangle::LEN];
        float from_start[CHUNK], to_end[CHUNK], unused[CHUNK], total[CHUNK];
        float4 values[PAIRS][TOKEN_TILES][32];
    };
    struct Output {  // for the output warps
        u16 queries[Keys::LEN], attention[ATTENTION_PARTS][Triangle::LEN];
        float from_start[CHUNK];
        uint4 state[PAIRS][OUTPUT_PARTS][STEPS][32], deltas[PAIRS][OUTPUT_PARTS][TOKEN_STEPS][32];
        int first_bad[PAIRS][16];
    };
    struct Shared {
        State state[2];
        Output output[2];
    };

    const Params& p;
    Shared& shared;
    int seq, hv, h, pair, lane, row;  // row: the lane's first row of V; the other is the next
    bool is_output;
    int begin, end, first_chunk, num_chunks;

    __device__ __forceinline__ MmaScan(const Params& params) : p(params), shared(*(Shared*)shared_memory()) {
        int tid = thread_index(), slices = ceil_div(p.head_v_dim, MMA_ROWS), unit = blockIdx.x / slices;
        seq = unit / p.num_v_heads, hv = unit % p.num_v_heads, h = k_head(p, hv);
        lane = tid % 32, pair = tid / 32 % PAIRS, is_output = tid / 32 >= PAIRS;
        row = blockIdx.x % slices * MMA_ROWS + pair * 16 + lane / 4 * 2;
    }

    // ---- copies into shared memory, by all threads ---------------------------------------------------------------

    template <int BYTES>
    __device__ __forceinline__ void copy(void* to, const void* from) const {
        for (int i = thread_index(); i < BYTES / 16; i += MMA_THREADS) copy_async((float4*)to + i, (const float4*)from + i);
    }
    // A chunk's keys or queries. Behind the last token lies that token again: nothing is added there.
    __device__ __forceinline__ void copy_keys(u16* to, const u16* tiles, const void* rows, i64 stride, int i) const {
        if (!p.keys_in_place) {
            copy<Keys::LEN * 2>(to, tiles + ((first_chunk + (i64)i) * p.num_k_heads + h) * Keys::LEN);
            return;
        }
        int2 tokens = tokens_of(p, end - begin, i);
        const u16* from = (const u16*)rows + (begin + tokens.x) * stride + (i64)h * KP;
        for (int piece = thread_index(); piece < Keys::LEN / 8; piece += MMA_THREADS) {
            int t = piece / (KP / 8), column = piece % (KP / 8);
            copy_async((float4*)(to + Keys::piece(t, column)), (const float4*)(from + min(t, tokens.y - 1) * stride + column * 8));
        }
    }
    __device__ __forceinline__ void copy_for_state(int i) const {
        State& to = shared.state[i & 1];
        i64 unit = (first_chunk + (i64)i) * p.num_v_heads + hv;
        copy_keys(to.keys, p.key_tiles, p.k, p.k_stride, i);
        copy<INVERSE_PARTS * Triangle::LEN * 2>(to.inverse, p.inverse_tiles + unit * INVERSE_PARTS * Triangle::LEN);
        copy<NUM_FACTORS * CHUNK * 4>(to.from_start, p.factors + unit * NUM_FACTORS * CHUNK);
    }
    __device__ __forceinline__ void copy_for_output(int i) const {
        Output& to = shared.output[i & 1];
        i64 unit = (first_chunk + (i64)i) * p.num_v_heads + hv;
        copy_keys(to.queries, p.query_tiles, p.q, p.q_stride, i);
        copy<ATTENTION_PARTS * Triangle::LEN * 2>(to.attention, p.attention_tiles + unit * ATTENTION_PARTS * Triangle::LEN);
        copy<CHUNK * 4>(to.from_start, p.factors + (unit * NUM_FACTORS + FROM_START_Q) * CHUNK);
    }

    // ---- the state warp ------------------------------------------------------------------------------------------

    // S in tiles of 8 channels.
    typedef float Rows[KP / 8][4];

    __device__ __forceinline__ void load(Rows& s, const void* from, i64 head) const {
#pragma unroll
        for (int j = 0; j < KP / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int r = row + i / 2, channel = 8 * j + 2 * (lane % 4) + i % 2;
                bool inside = r < p.head_v_dim && channel < p.head_k_dim;
                s[j][i] = inside ? load_as_f32(from, p.state_dtype, head + (i64)r * p.head_k_dim + channel) : 0.0f;
            }
    }
    __device__ __forceinline__ void store(const Rows& s, void* to, i64 head) const {
#pragma unroll
        for (int j = 0; j < KP / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int r = row + i / 2, channel = 8 * j + 2 * (lane % 4) + i % 2;
                if (r < p.head_v_dim && channel < p.head_k_dim)
                    store_from_f32(to, p.state_dtype, head + (i64)r * p.head_k_dim + channel, s[j][i]);
            }
    }

    // Takes what is not finite out, and gives the first token of each of the lane's two rows that has it, or CHUNK.
    __device__ __forceinline__ void take_out(float (&x)[TOKEN_TILES][4], int (&first_bad)[2]) const {
        bool good = true;
#pragma unroll
        for (int n = 0; n < TOKEN_TILES; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) good = good && is_finite(x[n][i]);
        if (!__any_sync(~0u, !good)) return;
#pragma unroll
        for (int n = 0; n < TOKEN_TILES; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (!is_finite(x[n][i])) {
                    first_bad[i / 2] = min(first_bad[i / 2], 8 * n + 2 * (lane % 4) + i % 2);
                    x[n][i] = 0.0f;
                }
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int bit = 1; bit < 4; bit *= 2) first_bad[r] = min(first_bad[r], __shfl_xor_sync(~0u, first_bad[r], bit));
    }

    __device__ __forceinline__ void advance(Rows& s, int i, int n) const {
        const State& in = shared.state[i & 1];
        Output& left = shared.output[i & 1];
        int half = lane / 16, upper = lane / 8 % 2, pair_of = 2 * (lane % 4);
        float most[TOKEN_TILES][4] = {}, rest[TOKEN_TILES][4] = {};

        // S0 k_t.
#pragma unroll
        for (int j = 0; j < STEPS; ++j) {
            u32 a[STATE_PARTS][4], b[4];
            mma::split(s[2 * j], s[2 * j + 1], a);
#pragma unroll
            for (int part = 0; part < OUTPUT_PARTS; ++part)
                left.state[pair][part][j][lane] = make_uint4(a[part][0], a[part][1], a[part][2], a[part][3]);
#pragma unroll
            for (int t = 0; t < TOKEN_STEPS; ++t) {
                mma::load_matrices(b, in.keys + Keys::piece(16 * t + 8 * half + lane % 8, 2 * j + upper));
                mma::multiply(most[2 * t], a[0], b[0], b[1]);
                mma::multiply(most[2 * t + 1], a[0], b[2], b[3]);
#pragma unroll
                for (int part = STATE_PARTS - 1; part > 0; --part) {
                    mma::multiply(rest[2 * t], a[part], b[0], b[1]);
                    mma::multiply(rest[2 * t + 1], a[part], b[2], b[3]);
                }
            }
        }
        // v_t - D(t) S0 k_t.
        int first_bad[2] = {CHUNK, CHUNK};
        u32 a[TOKEN_STEPS][STATE_PARTS][4];
#pragma unroll
        for (int t = 0; t < TOKEN_TILES; ++t) {
            float4 v = in.values[pair][t][lane];
            float2 decay = *(const float2*)(in.from_start + 8 * t + pair_of);
            most[t][0] = __fmaf_rn(-decay.x, __fadd_rn(most[t][0], rest[t][0]), v.x);
            most[t][1] = __fmaf_rn(-decay.y, __fadd_rn(most[t][1], rest[t][1]), v.y);
            most[t][2] = __fmaf_rn(-decay.x, __fadd_rn(most[t][2], rest[t][2]), v.z);
            most[t][3] = __fmaf_rn(-decay.y, __fadd_rn(most[t][3], rest[t][3]), v.w);
        }
        take_out(most, first_bad);
#pragma unroll
        for (int t = 0; t < TOKEN_STEPS; ++t) mma::split(most[2 * t], most[2 * t + 1], a[t]);
        // The deltas, by the inverse.
#pragma unroll
        for (int t = 0; t < TOKEN_TILES; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e) most[t][e] = rest[t][e] = 0.0f;
#pragma unroll
        for (int j = 0; j < TOKEN_STEPS; ++j)
#pragma unroll
            for (int t = j; t < TOKEN_STEPS; ++t) {
                u32 b[INVERSE_PARTS][4];
#pragma unroll
                for (int part = 0; part < INVERSE_PARTS; ++part)
                    mma::load_matrices(b[part], in.inverse[part] + Triangle::piece(16 * t + 8 * half + lane % 8, 2 * j + upper));
#pragma unroll
                for (int side = 0; side < 2; ++side) {
                    mma::multiply(most[2 * t + side], a[j][0], b[0][2 * side], b[0][2 * side + 1]);
                    float(&d)[4] = rest[2 * t + side];
                    mma::multiply(d, a[j][2], b[0][2 * side], b[0][2 * side + 1]);
                    mma::multiply(d, a[j][0], b[2][2 * side], b[2][2 * side + 1]);
                    mma::multiply(d, a[j][1], b[1][2 * side], b[1][2 * side + 1]);
                    mma::multiply(d, a[j][1], b[0][2 * side], b[0][2 * side + 1]);
                    mma::multiply(d, a[j][0], b[1][2 * side], b[1][2 * side + 1]);
                }
            }
#pragma unroll
        for (int t = 0; t < TOKEN_TILES; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e) most[t][e] = __fadd_rn(most[t][e], rest[t][e]);
        take_out(most, first_bad);
        if (lane % 4 == 0) {
            left.first_bad[pair][lane / 4] = first_bad[0];
            left.first_bad[pair][lane / 4 + 8] = first_bad[1];
        }
#pragma unroll
        for (int t = 0; t < TOKEN_STEPS; ++t) {
            u32 parts[OUTPUT_PARTS][4];
            mma::split(most[2 * t], most[2 * t + 1], parts);
#pragma unroll
            for (int part = 0; part < OUTPUT_PARTS; ++part)
                left.deltas[pair][part][t][lane] = make_uint4(parts[part][0], parts[part][1], parts[part][2], parts[part][3]);
        }
        // S1 = D(C) S0 + sum_s D(C, s) delta_s k_s.
#pragma unroll
        for (int t = 0; t < TOKEN_TILES; ++t) {
            float2 decay = *(const float2*)(in.to_end + 8 * t + pair_of);
            most[t][0] = __fmul_rn(most[t][0], decay.x), most[t][1] = __fmul_rn(most[t][1], decay.y);
            most[t][2] = __fmul_rn(most[t][2], decay.x), most[t][3] = __fmul_rn(most[t][3], decay.y);
        }
#pragma unroll
        for (int t = 0; t < TOKEN_STEPS; ++t) mma::split(most[2 * t], most[2 * t + 1], a[t]);
        float total = in.total[0];
#pragma unroll
        for (int j = 0; j < KP / 8; j += 4) {
            float sum[4][4] = {}, small[4][4] = {};
#pragma unroll
            for (int t = 0; t < TOKEN_STEPS; ++t)
#pragma unroll
                for (int side = 0; side < 4; side += 2) {
                    u32 b[4];
                    mma::load_matrices_transposed(b, in.keys + Keys::piece(16 * t + lane % 16, j + side + half));
                    mma::multiply(sum[side], a[t][0], b[0], b[1]);
                    mma::multiply(sum[side + 1], a[t][0], b[2], b[3]);
#pragma unroll
                    for (int part = STATE_PARTS - 1; part > 0; --part) {
                        mma::multiply(small[side], a[t][part], b[0], b[1]);
                        mma::multiply(small[side + 1], a[t][part], b[2], b[3]);
                    }
                }
#pragma unroll
            for (int side = 0; side < 4; ++side)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float sum_e = __fadd_rn(sum[side][e], small[side][e]);
                    s[j + side][e] = first_bad[e / 2] < n ? not_a_number() : __fmaf_rn(total, s[j + side][e], sum_e);
                }
        }
    }

    // ---- the output warp -----------------------------------------------------------------------------------------

    // Two neighbours of a row of v or the outputs, from the lane's row on, go as one where they may.
    __device__ __forceinline__ bool in_pairs(const void* of, int dtype, i64 stride) const {
        return dtype != F32 && ((u64)of & 3) == 0 && stride % 2 == 0 && p.head_v_dim % 2 == 0 && row < p.head_v_dim;
    }
    // v of a chunk: the lane's two rows of 16 tokens, as they lie in memory.
    typedef u32 Raw[2 * TOKEN_TILES][2];

    __device__ __forceinline__ void load_values(Raw& raw, int i) const {
        if (i >= num_chunks) return;
        int2 tokens = tokens_of(p, end - begin, i);
        bool pairs = in_pairs(p.v, p.v_dtype, p.v_stride);
#pragma unroll
        for (int n = 0; n < 2 * TOKEN_TILES; ++n) {
            int t = n / 2 * 8 + 2 * (lane % 4) + n % 2;
            i64 at = (begin + tokens.x + (i64)t) * p.v_stride + (i64)hv * p.head_v_dim + row;
            raw[n][0] = raw[n][1] = 0;
            if (t >= tokens.y) continue;
            if (pairs) {
                raw[n][0] = *(const u32*)((const u16*)p.v + at);
            } else {
                if (row < p.head_v_dim) raw[n][0] = load_raw(p.v, p.v_dtype, at);
                if (row + 1 < p.head_v_dim) raw[n][1] = load_raw(p.v, p.v_dtype, at + 1);
            }
        }
    }
    __device__ __forceinline__ void store_values(const Raw& raw, int i) const {
        if (i >= num_chunks) return;
        bool pairs = in_pairs(p.v, p.v_dtype, p.v_stride);
        float x[4];
#pragma unroll
        for (int n = 0; n < 2 * TOKEN_TILES; ++n) {
            u32 first = raw[n][0], second = raw[n][1];
            if (pairs) second = first >> 16, first &= 0xffffu;
            x[n % 2] = raw_to_f32(first, p.v_dtype), x[2 + n % 2] = raw_to_f32(second, p.v_dtype);
            if (n % 2) shared.state[i & 1].values[pair][n / 2][lane] = make_float4(x[0], x[1], x[2], x[3]);
        }
    }

    __device__ __forceinline__ void put_out(int i) const {
        const Output& in = shared.output[i & 1];
        int half = lane / 16, upper = lane / 8 % 2;
        float o[TOKEN_TILES][4] = {};
        // S0 q_t.
#pragma unroll
        for (int j = 0; j < STEPS; ++j) {
            u32 b[4];
            uint4 x = in.state[pair][0][j][lane], y = in.state[pair][1][j][lane];
            u32 a[OUTPUT_PARTS][4] = {{x.x, x.y, x.z, x.w}, {y.x, y.y, y.z, y.w}};
#pragma unroll
            for (int t = 0; t < TOKEN_STEPS; ++t) {
                mma::load_matrices(b, in.queries + Keys::piece(16 * t + 8 * half + lane % 8, 2 * j + upper));
#pragma unroll
                for (int part = OUTPUT_PARTS - 1; part >= 0; --part) {
                    mma::multiply(o[2 * t], a[part], b[0], b[1]);
                    mma::multiply(o[2 * t + 1], a[part], b[2], b[3]);
                }
            }
        }
#pragma unroll
        for (int t = 0; t < TOKEN_TILES; ++t) {
            float2 decay = *(const float2*)(in.from_start + 8 * t + 2 * (lane % 4));
            o[t][0] = __fmul_rn(o[t][0], decay.x), o[t][1] = __fmul_rn(o[t][1], decay.y);
            o[t][2] = __fmul_rn(o[t][2], decay.x), o[t][3] = __fmul_rn(o[t][3], decay.y);
        }
        // And the deltas by their weights.
#pragma unroll
        for (int j = 0; j < TOKEN_STEPS; ++j) {
            uint4 x = in.deltas[pair][0][j][lane], y = in.deltas[pair][1][j][lane];
            u32 a[OUTPUT_PARTS][4] = {{x.x, x.y, x.z, x.w}, {y.x, y.y, y.z, y.w}};
#pragma unroll
            for (int t = j; t < TOKEN_STEPS; ++t) {
                u32 b[ATTENTION_PARTS][4];
#pragma unroll
                for (int part = 0; part < ATTENTION_PARTS; ++part)
                    mma::load_matrices(b[part], in.attention[part] + Triangle::piece(16 * t + 8 * half + lane % 8, 2 * j + upper));
#pragma unroll
                for (int side = 0; side < 2; ++side) {
                    mma::multiply(o[2 * t + side], a[1], b[0][2 * side], b[0][2 * side + 1]);
                    mma::multiply(o[2 * t + side], a[0], b[1][2 * side], b[1][2 * side + 1]);
                    mma::multiply(o[2 * t + side], a[0], b[0][2 * side], b[0][2 * side + 1]);
                }
            }
        }
        int2 tokens = tokens_of(p, end - begin, i);
        int first_bad[2] = {in.first_bad[pair][lane / 4], in.first_bad[pair][lane / 4 + 8]};
        bool pairs = in_pairs(p.out, p.out_dtype, p.out_stride);
#pragma unroll
        for (int n = 0; n < 2 * TOKEN_TILES; ++n) {
            int t = n / 2 * 8 + 2 * (lane % 4) + n % 2;
            i64 at = (begin + tokens.x + (i64)t) * p.out_stride + (i64)hv * p.head_v_dim + row;
            float x = t < first_bad[0] ? o[n / 2][n % 2] : not_a_number();
            float y = t < first_bad[1] ? o[n / 2][2 + n % 2] : not_a_number();
            if (t >= tokens.y) continue;
            if (pairs) {
                *(u32*)((u16*)p.out + at) = p.out_dtype == BF16 ? to_bf16x2(x, y) : to_f16x2(x, y);
            } else {
                if (row < p.head_v_dim) store_from_f32(p.out, p.out_dtype, at, x);
                if (row + 1 < p.head_v_dim) store_from_f32(p.out, p.out_dtype, at + 1, y);
            }
        }
    }

    // ---- both ----------------------------------------------------------------------------------------------------

    __device__ __forceinline__ void zero_out() const {
        int first = row - pair * 16 - lane / 4 * 2, column = first + thread_index() % MMA_ROWS;
        for (int t = begin + thread_index() / MMA_ROWS; t < end; t += MMA_THREADS / MMA_ROWS)
            if (column < p.head_v_dim) store_from_f32(p.out, p.out_dtype, (i64)t * p.out_stride + (i64)hv * p.head_v_dim + column, 0.0f);
    }

    __device__ __forceinline__ void run() {
        begin = p.cu_seqlens[seq], end = p.cu_seqlens[seq + 1];
        int slot = p.state_indices[seq];
        if (slot < 0) return zero_out();
        if (begin == end) return;
        first_chunk = p.first_chunk[seq], num_chunks = p.first_chunk[seq + 1] - first_chunk;
        i64 head = (i64)hv * p.head_v_dim * p.head_k_dim, head_len = (i64)p.num_v_heads * p.head_v_dim * p.head_k_dim;
        copy_for_state(0);
        if (is_output) {
            Raw raw;
            load_values(raw, 0);
            store_values(raw, 0);
            for (int i = 0; i <= num_chunks; ++i) {
                next(i);
                load_values(raw, i + 1);
                if (i > 0) put_out(i - 1);
                store_values(raw, i + 1);
            }
        } else {
            Rows s;
            load(s, p.state, slot * p.state_stride + head);
            for (int i = 0; i <= num_chunks; ++i) {
                next(i);
                if (i == num_chunks) break;
                int2 tokens = tokens_of(p, end - begin, i);
                advance(s, i, tokens.y);
                int done = tokens.x + tokens.y;
                if (p.every && done % p.every == 0)
                    store(s, p.checkpoints, (p.first_checkpoint[seq] + (i64)(done / p.every - 1)) * head_len + head);
            }
            store(s, p.state, slot * p.state_stride + head);
        }
    }
    // Chunk i is there for the state warps and chunk i - 1 for the output warps; the copies for the next step begin.
    __device__ __forceinline__ void next(int i) const {
        copies_done();
        __syncthreads();
        if (i + 1 < num_chunks) copy_for_state(i + 1);
        if (i < num_chunks) copy_for_output(i);
    }
};

}  // namespace chunk
