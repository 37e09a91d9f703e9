// From chunk to chunk on tensor cores. A block takes MMA_ROWS rows of a state, 16 to four warps, which share out tokens and
// channels: each has 16 tokens of S0 k_t and S0 q_t, of the deltas and of the outputs, and a quarter of the channels of S, which
// it keeps in registers. What all four multiply by lies in shared memory as they need it, split into bf16.
//
// S is [V x K], deltas [V x tokens]: the D of one product is the A of the next. f32 numbers are sums of three bf16 where they
// reach the state, of two where they reach outputs alone; k and q are bf16 as they are.
//
// A product takes all rows s of B, also those behind t, with weights of 0; what is not finite there is left out of A and marked
// instead, so that it spoils the tokens from its own on, and no others.
#pragma once
#include "chunk_tiles.cuh"

namespace chunk {

constexpr int MMA_THREADS = 256;
constexpr int MMA_ROWS = 32, GROUPS = MMA_ROWS / 16;  // of four warps
constexpr int STATE_PARTS = 3, OUTPUT_PARTS = 2;      // bf16 of a number
constexpr int TOKEN_STEPS = CHUNK / 16;               // as many as a group has warps

template <int KP>
struct MmaScan {
    static constexpr int STEPS = KP / 16;               // of 16 channels
    static constexpr int TILES = KP / 8 / TOKEN_STEPS;  // of 8 channels, of a warp
    typedef Tile<KP> Keys;

    // What is copied for a chunk.
    struct Copied {
        u16 keys[Keys::LEN], queries[Keys::LEN];
        u16 inverse[INVERSE_PARTS][Triangle::LEN], attention[ATTENTION_PARTS][Triangle::LEN];
        float factors[NUM_FACTORS][CHUNK];
    };
    // A fragments, a lane's registers together.
    typedef uint4 Fragment[32];
    struct Shared {
        Copied copied[2];  // chunks take turns
        Fragment state[GROUPS][STATE_PARTS][STEPS];
        Fragment values[GROUPS][STATE_PARTS][TOKEN_STEPS];  // v_t - D(t) S0 k_t
        Fragment deltas[GROUPS][OUTPUT_PARTS][TOKEN_STEPS], deltas_to_end[GROUPS][STATE_PARTS][TOKEN_STEPS];
        int spoiled[2][MMA_ROWS];  // tokens of a chunk from the first one on that is not finite in this row
    };

    // v of the lane's rows and tokens, as it lies in memory.
    typedef u32 Raw[4][2];

    const Params& p;
    Shared& shared;
    int seq, hv, h, group, lane;
    int share;  // of the channels
    int step;   // of the tokens; long ones of one group beside short ones of the other
    int row;    // the lane's first row of V; the other is the next
    bool v_in_pairs, out_in_pairs;
    int begin, end, first_chunk, num_chunks;
    float s[TILES][4];
    Raw raw;  // v of the chunk to come

    __device__ __forceinline__ MmaScan(const Params& params) : p(params), shared(*(Shared*)shared_memory()) {
        int tid = thread_index(), slices = ceil_div(p.head_v_dim, MMA_ROWS), unit = blockIdx.x / slices;
        seq = unit / p.num_v_heads, hv = unit % p.num_v_heads, h = k_head(p, hv);
        lane = tid % 32, group = tid / (32 * TOKEN_STEPS), share = tid / 32 % TOKEN_STEPS;
        step = group % 2 ? TOKEN_STEPS - 1 - share : share;
        row = blockIdx.x % slices * MMA_ROWS + group * 16 + lane / 4 * 2;
        v_in_pairs = in_pairs(p.v, p.v_dtype, p.v_stride), out_in_pairs = in_pairs(p.out, p.out_dtype, p.out_stride);
    }

    // ---- memory --------------------------------------------------------------------------------------------------

    // A thread copies pieces of one column. Behind the last token lies that token again: nothing is added there.
    __device__ __forceinline__ void copy_keys(u16* to, const u16* tiles, const void* rows, i64 stride, int i, int2 tokens) const {
        constexpr int PER_ROW = KP / 8, ROWS = MMA_THREADS / PER_ROW;
        int t = thread_index() / PER_ROW, column = thread_index() % PER_ROW;
        if (p.keys_in_place) {
            to += Keys::piece(t, column);
            const u16* from = (const u16*)rows + (begin + tokens.x) * stride + (i64)h * KP + column * 8;
#pragma unroll
            for (int first = 0; first < CHUNK; first += ROWS)
                copy_async((float4*)(to + first * KP), (const float4*)(from + min(t + first, tokens.y - 1) * stride));
        } else {
            i64 tile = ((first_chunk + (i64)i) * p.num_k_heads + h) * Keys::LEN;
#pragma unroll
            for (int first = 0; first < Keys::LEN / 8; first += MMA_THREADS)
                copy_async((float4*)to + first + thread_index(), (const float4*)(tiles + tile) + first + thread_index());
        }
    }
    // Blocks above the diagonal are not looked at.
    template <int PARTS>
    __device__ __forceinline__ void copy_triangles(u16 (&to)[PARTS][Triangle::LEN], const u16* from) const {
        constexpr int PER_ROW = CHUNK / 8, ROWS = MMA_THREADS / PER_ROW;
        int t = thread_index() / PER_ROW, column = thread_index() % PER_ROW ^ t & 7;
        u16* mine = to[0] + thread_index() * 8;
        from += thread_index() * 8;
#pragma unroll
        for (int first = 0; first < CHUNK; first += ROWS) {
            if (column / 2 > (t + first) / 16) continue;
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                int at = part * Triangle::LEN + first * CHUNK;
                copy_async((float4*)(mine + at), (const float4*)(from + at));
            }
        }
    }
    __device__ __forceinline__ void copy_chunk(int i) const {
        Copied& to = shared.copied[i & 1];
        i64 unit = (first_chunk + (i64)i) * p.num_v_heads + hv;
        int2 tokens = tokens_of(p, end - begin, i);
        copy_keys(to.keys, p.key_tiles, p.k, p.k_stride, i, tokens);
        copy_keys(to.queries, p.query_tiles, p.q, p.q_stride, i, tokens);
        copy_triangles(to.inverse, p.inverse_tiles + unit * INVERSE_PARTS * Triangle::LEN);
        copy_triangles(to.attention, p.attention_tiles + unit * ATTENTION_PARTS * Triangle::LEN);
        int piece = thread_index();
        const float4* factors = (const float4*)p.factors + unit * (NUM_FACTORS * CHUNK / 4);
        if (piece < NUM_FACTORS * CHUNK / 4) copy_async((float4*)to.factors + piece, factors + piece);
    }

    // The warp's channels of its rows of a state, from or to memory that begins at the head's first element.
    __device__ __forceinline__ int channel(int tile, int i) const {
        return 8 * (TILES * share + tile) + 2 * (lane % 4) + i % 2;
    }
    __device__ __forceinline__ void load(const void* from, i64 head) {
#pragma unroll
        for (int j = 0; j < TILES; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int r = row + i / 2;
                bool inside = r < p.head_v_dim && channel(j, i) < p.head_k_dim;
                s[j][i] = inside ? load_as_f32(from, p.state_dtype, head + (i64)r * p.head_k_dim + channel(j, i)) : 0.0f;
            }
    }
    __device__ __forceinline__ void store(void* to, i64 head) const {
#pragma unroll
        for (int j = 0; j < TILES; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int r = row + i / 2;
                if (r < p.head_v_dim && channel(j, i) < p.head_k_dim)
                    store_from_f32(to, p.state_dtype, head + (i64)r * p.head_k_dim + channel(j, i), s[j][i]);
            }
    }

    // Two neighbours of a row of v or the outputs, from the lane's row on, go as one where they may.
    __device__ __forceinline__ bool in_pairs(const void* of, int dtype, i64 stride) const {
        return dtype != F32 && ((u64)of & 3) == 0 && stride % 2 == 0 && p.head_v_dim % 2 == 0 && row < p.head_v_dim;
    }
    // The lane's four tokens: column i of its two tiles.
    __device__ __forceinline__ int token(int i) const { return 16 * step + i / 2 * 8 + 2 * (lane % 4) + i % 2; }
    __device__ __forceinline__ void load_values(int2 tokens) {
        i64 first = (begin + tokens.x + (i64)token(0)) * p.v_stride + (i64)hv * p.head_v_dim + row;
        const i64 at[4] = {first, first + p.v_stride, first + 8 * p.v_stride, first + 9 * p.v_stride};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            raw[i][0] = raw[i][1] = 0;
            if (token(i) >= tokens.y) continue;
            if (v_in_pairs) {
                raw[i][0] = *(const u32*)((const u16*)p.v + at[i]);
            } else {
                if (row < p.head_v_dim) raw[i][0] = load_raw(p.v, p.v_dtype, at[i]);
                if (row + 1 < p.head_v_dim) raw[i][1] = load_raw(p.v, p.v_dtype, at[i] + 1);
            }
        }
    }
    // The same as D of the lane's two tiles.
    __device__ __forceinline__ void values_of(float (&x)[2][4]) const {
        bool bf16_pairs = v_in_pairs && p.v_dtype == BF16;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float &upper = x[i / 2][i % 2], &lower = x[i / 2][2 + i % 2];
            if (bf16_pairs) {
                upper = mma::lower_bf16(raw[i][0]), lower = mma::upper_bf16(raw[i][0]);
            } else {
                upper = raw_to_f32(v_in_pairs ? raw[i][0] & 0xffffu : raw[i][0], p.v_dtype);
                lower = raw_to_f32(v_in_pairs ? raw[i][0] >> 16 : raw[i][1], p.v_dtype);
            }
        }
    }
    __device__ __forceinline__ void store_outputs(const float (&o)[2][4], const int* spoiled, int2 tokens) const {
        int first_bad[2] = {CHUNK - spoiled[lane / 4], CHUNK - spoiled[lane / 4 + 8]};
        i64 first = (begin + tokens.x + (i64)token(0)) * p.out_stride + (i64)hv * p.head_v_dim + row;
        const i64 at[4] = {first, first + p.out_stride, first + 8 * p.out_stride, first + 9 * p.out_stride};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float x = token(i) < first_bad[0] ? o[i / 2][i % 2] : not_a_number();
            float y = token(i) < first_bad[1] ? o[i / 2][2 + i % 2] : not_a_number();
            if (token(i) >= tokens.y) continue;
            if (out_in_pairs) {
                *(u32*)((u16*)p.out + at[i]) = p.out_dtype == BF16 ? to_bf16x2(x, y) : to_f16x2(x, y);
            } else {
                if (row < p.head_v_dim) store_from_f32(p.out, p.out_dtype, at[i], x);
                if (row + 1 < p.head_v_dim) store_from_f32(p.out, p.out_dtype, at[i] + 1, y);
            }
        }
    }
    __device__ __forceinline__ void zero_out() const {
        int column = blockIdx.x % ceil_div(p.head_v_dim, MMA_ROWS) * MMA_ROWS + thread_index() % MMA_ROWS;
        for (int t = begin + thread_index() / MMA_ROWS; t < end; t += MMA_THREADS / MMA_ROWS)
            if (column < p.head_v_dim)
                store_from_f32(p.out, p.out_dtype, (i64)t * p.out_stride + (i64)hv * p.head_v_dim + column, 0.0f);
    }

    // ---- a chunk -------------------------------------------------------------------------------------------------

    template <int PARTS, int N>
    __device__ __forceinline__ void leave(const float (&left)[4], const float (&right)[4], Fragment (&to)[PARTS][N],
                                          int at) const {
        u32 a[PARTS][4];
        mma::split(left, right, a);
#pragma unroll
        for (int part = 0; part < PARTS; ++part)
            to[part][at][lane] = make_uint4(a[part][0], a[part][1], a[part][2], a[part][3]);
    }
    template <int PARTS, int N>
    __device__ __forceinline__ void take(const Fragment (&from)[PARTS][N], int at, u32 (&a)[PARTS][4]) const {
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            uint4 x = from[part][at][lane];
            a[part][0] = x.x, a[part][1] = x.y, a[part][2] = x.z, a[part][3] = x.w;
        }
    }
    // S of the warp's channels, for all warps of the group.
    __device__ __forceinline__ void leave_state() const {
#pragma unroll
        for (int j = 0; j < TILES; j += 2) leave(s[j], s[j + 1], shared.state[group], (TILES * share + j) / 2);
    }
    // B of the step's 16 tokens, 16 columns from 16 `column` on.
    template <typename Rows>
    __device__ __forceinline__ void take_rows(const u16* tile, int column, u32 (&b)[4]) const {
        mma::load_matrices(b, tile + Rows::piece(16 * step + lane / 16 * 8 + lane % 8, 2 * column + lane / 8 % 2));
    }

    // Takes what is not finite out, and marks the tokens that it spoils.
    __device__ __forceinline__ void take_out(float (&x)[2][4], int* spoiled) const {
        bool good = true;
#pragma unroll
        for (int i = 0; i < 8; ++i) good = good && is_finite(x[i / 4][i % 4]);
        if (good) return;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float& y = x[i / 4][i % 4];
            if (is_finite(y)) continue;
            atomicMax(spoiled + lane / 4 + i % 4 / 2 * 8, CHUNK - token(i / 4 * 2 + i % 2));
            y = 0.0f;
        }
    }

    // Waits for the warps of the group, whose rows no other has.
    __device__ __forceinline__ void join_group() const { join_threads(1 + group, 32 * TOKEN_STEPS); }

    __device__ __forceinline__ void advance(int i, int2 tokens) {
        const Copied& in = shared.copied[i & 1];
        int* spoiled = shared.spoiled[i & 1] + group * 16;
        // What multiplies the lane's four tokens.
        int column = 16 * step + 2 * (lane % 4);

        // S0 k_t and S0 q_t.
        float most[2][4] = {}, rest[2][4] = {}, o[2][4] = {}, o_rest[2][4] = {};
#pragma unroll
        for (int j = 0; j < STEPS; ++j) {
            u32 a[STATE_PARTS][4], k[4], q[4];
            take(shared.state[group], j, a);
            take_rows<Keys>(in.keys, j, k);
            take_rows<Keys>(in.queries, j, q);
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                mma::multiply(most[n], a[0], k[2 * n], k[2 * n + 1]);
                mma::multiply(rest[n], a[1], k[2 * n], k[2 * n + 1]);
                mma::multiply(o[n], a[0], q[2 * n], q[2 * n + 1]);
                mma::multiply(o_rest[n], a[1], q[2 * n], q[2 * n + 1]);
            }
#pragma unroll
            for (int n = 0; n < 2; ++n) mma::multiply(rest[n], a[2], k[2 * n], k[2 * n + 1]);
        }
        // v_t - D(t) S0 k_t.
        float x[2][4];
        values_of(x);
        if (i + 1 < num_chunks) load_values(tokens_of(p, end - begin, i + 1));
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            float2 decay = *(const float2*)(in.factors[FROM_START] + column + 8 * n);
            float2 of_query = *(const float2*)(in.factors[FROM_START_Q] + column + 8 * n);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                x[n][e] = __fmaf_rn(-(e % 2 ? decay.y : decay.x), __fadd_rn(most[n][e], rest[n][e]), x[n][e]);
                o[n][e] = __fmul_rn(e % 2 ? of_query.y : of_query.x, __fadd_rn(o[n][e], o_rest[n][e]));
                most[n][e] = rest[n][e] = o_rest[n][e] = 0.0f;
            }
        }
        take_out(x, spoiled);
        leave(x[0], x[1], shared.values[group], step);
        // What waits for nobody is read before the others are waited for.
        u32 inverse[TOKEN_STEPS][INVERSE_PARTS][4];
#pragma unroll
        for (int j = 0; j < TOKEN_STEPS; ++j) {
            if (j > step) break;
#pragma unroll
            for (int part = 0; part < INVERSE_PARTS; ++part) take_rows<Triangle>(in.inverse[part], j, inverse[j][part]);
        }
        join_group();

        // The deltas, by the inverse.
        float least[2][4] = {};
#pragma unroll
        for (int j = 0; j < TOKEN_STEPS; ++j) {
            if (j > step) break;
            u32 a[STATE_PARTS][4];
            u32(&b)[INVERSE_PARTS][4] = inverse[j];
            take(shared.values[group], j, a);
#pragma unroll
            for (int n = 0; n < 2; ++n) mma::multiply(least[n], a[2], b[0][2 * n], b[0][2 * n + 1]);
#pragma unroll
            for (int n = 0; n < 2; ++n) mma::multiply(rest[n], a[1], b[0][2 * n], b[0][2 * n + 1]);
#pragma unroll
            for (int n = 0; n < 2; ++n) mma::multiply(most[n], a[0], b[0][2 * n], b[0][2 * n + 1]);
#pragma unroll
            for (int n = 0; n < 2; ++n) mma::multiply(least[n], a[0], b[2][2 * n], b[2][2 * n + 1]);
#pragma unroll
            for (int n = 0; n < 2; ++n) mma::multiply(rest[n], a[0], b[1][2 * n], b[1][2 * n + 1]);
#pragma unroll
            for (int n = 0; n < 2; ++n) mma::multiply(least[n], a[1], b[1][2 * n], b[1][2 * n + 1]);
        }
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) x[n][e] = __fadd_rn(most[n][e], __fadd_rn(rest[n][e], least[n][e]));
        take_out(x, spoiled);
        leave(x[0], x[1], shared.deltas[group], step);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            float2 decay = *(const float2*)(in.factors[TO_END] + column + 8 * n);
#pragma unroll
            for (int e = 0; e < 4; ++e) x[n][e] = __fmul_rn(x[n][e], e % 2 ? decay.y : decay.x);
        }
        leave(x[0], x[1], shared.deltas_to_end[group], step);
        u32 keys[TOKEN_STEPS][TILES / 2][4];
#pragma unroll
        for (int t = 0; t < TOKEN_STEPS; ++t)
#pragma unroll
            for (int j = 0; j < TILES / 2; ++j)
                mma::load_matrices_transposed(
                    keys[t][j], in.keys + Keys::piece(16 * t + lane % 16, TILES * share + 2 * j + lane / 16));
        join_group();

        // S1 = D(C) S0 + sum_s D(C, s) delta_s k_s.
        float sum[TILES][4] = {}, small[TILES][4] = {};
#pragma unroll
        for (int t = 0; t < TOKEN_STEPS; ++t) {
            u32 a[STATE_PARTS][4];
            take(shared.deltas_to_end[group], t, a);
#pragma unroll
            for (int part = STATE_PARTS - 1; part >= 0; --part)
#pragma unroll
                for (int j = 0; j < TILES; ++j)
                    mma::multiply(part ? small[j] : sum[j], a[part], keys[t][j / 2][j % 2 * 2],
                                  keys[t][j / 2][j % 2 * 2 + 1]);
        }
        // Outputs: the deltas by their weights.
        for (int j = 0; j <= step; ++j) {
            u32 a[OUTPUT_PARTS][4], b[ATTENTION_PARTS][4];
            take(shared.deltas[group], j, a);
#pragma unroll
            for (int part = 0; part < ATTENTION_PARTS; ++part) take_rows<Triangle>(in.attention[part], j, b[part]);
#pragma unroll
            for (int n = 0; n < 2; ++n) mma::multiply(o_rest[n], a[1], b[0][2 * n], b[0][2 * n + 1]);
#pragma unroll
            for (int n = 0; n < 2; ++n) mma::multiply(o[n], a[0], b[0][2 * n], b[0][2 * n + 1]);
#pragma unroll
            for (int n = 0; n < 2; ++n) mma::multiply(o_rest[n], a[0], b[1][2 * n], b[1][2 * n + 1]);
        }
        float total = in.factors[TOTAL][0];
        bool bad[2] = {CHUNK - spoiled[lane / 4] < tokens.y, CHUNK - spoiled[lane / 4 + 8] < tokens.y};
#pragma unroll
        for (int j = 0; j < TILES; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float next = __fmaf_rn(total, s[j][e], __fadd_rn(sum[j][e], small[j][e]));
                s[j][e] = bad[e / 2] ? not_a_number() : next;
            }
        leave_state();
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) o[n][e] = __fadd_rn(o[n][e], o_rest[n][e]);
        store_outputs(o, spoiled, tokens);
        if (thread_index() < MMA_ROWS) shared.spoiled[(i + 1) & 1][thread_index()] = 0;
    }

    __device__ __forceinline__ void run() {
        begin = p.cu_seqlens[seq], end = p.cu_seqlens[seq + 1];
        int slot = p.state_indices[seq];
        if (slot < 0) return zero_out();
        if (begin == end) return;
        first_chunk = p.first_chunk[seq], num_chunks = p.first_chunk[seq + 1] - first_chunk;
        i64 head = (i64)hv * p.head_v_dim * p.head_k_dim, head_len = (i64)p.num_v_heads * p.head_v_dim * p.head_k_dim;
        copy_chunk(0);
        load(p.state, slot * p.state_stride + head);
        leave_state();
        if (thread_index() < MMA_ROWS) shared.spoiled[0][thread_index()] = 0;
        load_values(tokens_of(p, end - begin, 0));
        for (int i = 0; i < num_chunks; ++i) {
            copies_done();
            __syncthreads();
            if (i + 1 < num_chunks) copy_chunk(i + 1);
            int2 tokens = tokens_of(p, end - begin, i);
            advance(i, tokens);
            int done = tokens.x + tokens.y;
            if (p.every && done % p.every == 0)
                store(p.checkpoints, (p.first_checkpoint[seq] + (i64)(done / p.every - 1)) * head_len + head);
        }
        store(p.state, slot * p.state_stride + head);
    }
};

}  // namespace chunk
