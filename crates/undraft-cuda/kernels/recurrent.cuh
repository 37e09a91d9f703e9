// What the kernels of the recurrence share: tokens prepared in shared memory, rows of the state in registers. How a block
// goes through its work is in recurrent_short.cuh and recurrent_any.cuh.
#pragma once
#include "prelude.cuh"

// Log entries in shared memory at a time, and the most rows that a unit of work has.
#define PENDING_CHUNK 8
#define MAX_ROWS 128

struct RecurrentParams {
    const void *q, *k, *v, *decay, *beta;
    const float *a_log, *dt_bias;
    void *out, *state, *captured;
    const int *cu_seqlens, *state_indices, *parents;
    const float *pending_k, *pending_decay, *pending_delta;
    const int* pending_slots;
    const u32 *num_pending, *pending_path;
    float *log_k, *log_decay, *log_delta;
    const int* log_slots;
    i64 q_stride, k_stride, v_stride, decay_stride, beta_stride, out_stride, state_stride;
    int num_seqs, num_k_heads, num_v_heads, head_k_dim, head_v_dim;
    int pending_max, log_max, capture_max, max_window, max_pending;
    int q_dtype, k_dtype, v_dtype, decay_dtype, beta_dtype, out_dtype;
    int decay_form, per_channel, beta_is_logit, tiled, l2_norm, round_io, capture, early;
    // Units of work, in this order: of whole_heads heads, rows_per_block rows each; of the others, tail_rows.
    int whole_heads, rows_per_block, blocks_per_head, tail_rows, tail_blocks, num_units;
    int v_heads_per_k_head;
    int in_vectors;  // q, k and logs may be moved in vectors of 4
    float eps, scale;
};

// S: element type of the state. KP: K padded. NR: rows of a lane group. TM: tokens in shared memory at a time. CHANNELS: a
// decay per channel may come. TREES: draft trees may come. WHOLE: K == KP and the state is aligned, so that lanes move
// whole vectors. WARPS: of a block. AHEAD: pending entries are replayed, and the gate is begun, before the launch before has
// ended.
template <typename S, int KP, int NR, int TM, bool CHANNELS, bool TREES, bool EACH, bool WHOLE, int WARPS = 4,
          bool AHEAD = false>
struct Recurrent {
    static constexpr int THREADS = 32 * WARPS;
    static constexpr int NV = KP / 32;             // vectors of 4 that a lane holds of a row
    static constexpr int ROWS = THREADS / 8 * NR;  // rows of a tile
    static constexpr int KEY_VECTORS = (KP + 127) / 128;  // vectors of 4 that a lane holds of a head of q or k
    // Whether k of a token stays in registers between its two uses; beside many rows it would not fit.
    static constexpr bool KEEP_K = NR * NV <= 8;
    typedef StateOf<S> St;
    typedef typename St::Four Four;

    const RecurrentParams& p;
    // The unit of work: rows row_begin .. row_end of a value head of a sequence.
    int seq, hv, h, start, tokens, pending, row_begin, row_end;
    i64 pending_first, log_first;
    S* state;  // of the unit's first row
    int tid, lane, l8, group;
    Gate gate;  // with AHEAD, of the warp that takes the decays
    float s[NR][NV][4];

    __device__ __forceinline__ Recurrent(const RecurrentParams& params) : p(params) { locate(); }
    // Reads the thread's index anew: what follows from it is then worked out where it is needed, instead of held in
    // registers all the way from the kernel's beginning.
    __device__ __forceinline__ void locate() {
        tid = thread_index();
        lane = tid & 31, l8 = tid & 7, group = tid >> 3;
    }

    // What a unit's work begins with.
    struct __align__(16) Unit {
        int slot, begin, end, pending;
    };
    // Element of the unit's first row and token in `out`; in `log_delta` or `captured`, as the capture is.
    struct __align__(16) Bases {
        i64 out, capture;
    };
    __device__ __forceinline__ Bases& bases() const { return *at<Bases>(BASES); }
    // Where a unit lies: sequence, value head, rows.
    struct Place {
        int seq, hv, row, rows;
    };
    __device__ __forceinline__ Place place_of(int unit) const {
        int of_tail = unit - p.whole_heads * p.blocks_per_head;
        bool tail = of_tail >= 0;
        int rows = tail ? p.tail_rows : p.rows_per_block, blocks = tail ? p.tail_blocks : p.blocks_per_head;
        int of = tail ? of_tail : unit, head = of / blocks + (tail ? p.whole_heads : 0), row = of % blocks * rows;
        return Place{head / p.num_v_heads, head % p.num_v_heads, row, min(rows, p.head_v_dim - row)};
    }
    __device__ __forceinline__ Unit load_unit(const Place& at) const {
        return Unit{p.state_indices[at.seq], p.cu_seqlens[at.seq], p.cu_seqlens[at.seq + 1],
                    p.num_pending ? (int)p.num_pending[at.seq] : 0};
    }
    // The first row of a unit's state; null for padding and where nothing is to be done.
    __device__ __forceinline__ S* rows_of(const Place& at, const Unit& u) const {
        if (u.slot < 0 || (u.begin == u.end && u.pending == 0)) return nullptr;
        return (S*)p.state + u.slot * p.state_stride + ((i64)at.hv * p.head_v_dim + at.row) * p.head_k_dim;
    }
    // Tokens and pending entries of a unit, of short windows, begin to come to the L2 cache. Nothing is read: what they lie in
    // may still be written. A thread takes a line of one of them.
    __device__ __forceinline__ void prefetch_unit(const Place& at, const Unit& u) const {
        if (u.slot < 0) return;
        int of = tid / 8 % 8, line = tid % 8, key_head = k_head(at.hv), row = at.row;
        if (tid / 64 == 0 && of < u.end - u.begin) {
            i64 t = u.begin + of;
            if (line < 2)
                prefetch_head(p.q, p.q_dtype, t * p.q_stride + key_head * p.head_k_dim, line);
            else if (line < 4)
                prefetch_head(p.k, p.k_dtype, t * p.k_stride + key_head * p.head_k_dim, line - 2);
            else if (line == 4)
                prefetch(element(p.v, p.v_dtype, t * p.v_stride + at.hv * p.head_v_dim + row));
            else if (line == 5)
                prefetch(element(p.decay, p.decay_dtype, t * p.decay_stride + at.hv));
            else if (line == 6)
                prefetch(element(p.beta, p.beta_dtype, t * p.beta_stride + at.hv));
            else if (p.decay_form == DECAY_GATE)
                prefetch(p.a_log + at.hv), prefetch(p.dt_bias + at.hv);
        }
        if (tid / 64 == 1 && of < u.pending && !p.pending_path && !p.pending_slots) {
            i64 entry = (i64)u.slot * p.pending_max + of;
            if (line < 4)
                prefetch_head(p.pending_k, F32, (entry * p.num_k_heads + key_head) * p.head_k_dim, line);
            else if (line == 4)
                prefetch(p.pending_delta + (entry * p.num_v_heads + at.hv) * p.head_v_dim + row);
            else if (line == 5)
                prefetch(p.pending_decay + entry * p.num_v_heads + at.hv);
        }
    }
    __device__ __forceinline__ void prefetch_head(const void* of, int dtype, i64 first, int line) const {
        i64 at = first + line * (dtype == F32 ? 32 : 64);
        if (at < first + p.head_k_dim) prefetch(element(of, dtype, at));
    }
    __device__ __forceinline__ int k_head(int v_head) const {
        return p.tiled ? v_head % p.num_k_heads : v_head / p.v_heads_per_k_head;
    }
    // Makes it the unit that is worked on; false where there is no work.
    __device__ __forceinline__ bool begin(const Place& at, const Unit& u) {
        seq = at.seq, hv = at.hv;
        h = k_head(hv);
        start = u.begin, tokens = u.end - u.begin, pending = u.pending;
        row_begin = at.row, row_end = at.row + at.rows;
        state = rows_of(at, u);
        Bases b;
        b.out = start * p.out_stride + (i64)hv * p.head_v_dim + row_begin;
        if (u.slot < 0) zero_out(b);
        if (!state) return false;
        pending_first = (i64)(p.pending_slots ? p.pending_slots[seq] : u.slot) * p.pending_max;
        log_first = (i64)(p.log_slots ? p.log_slots[seq] : u.slot) * p.log_max;
        if (EACH && p.capture == CAPTURE_PER_TOKEN)
            b.capture = (((i64)seq * p.capture_max * p.num_v_heads + hv) * p.head_v_dim + row_begin) * p.head_k_dim;
        else
            b.capture = (log_first * p.num_v_heads + hv) * p.head_v_dim + row_begin;
        if (tid == 0) bases() = b;
        return true;
    }

    // ---- shared memory: sizes known at compile time, but for a decay per channel at the end ---------------------

    static constexpr int STAGE = 0;  // [NR][NV][THREADS] vectors, each a thread's own
    static constexpr int Q = STAGE + NR * NV * THREADS * (int)sizeof(Four), K = Q + TM * KP * 4;  // [TM][KP] each
    static constexpr int PENDING_K = K + TM * KP * 4;                         // [PENDING_CHUNK][KP]
    static constexpr int PENDING_DELTA = PENDING_K + PENDING_CHUNK * KP * 4;  // [PENDING_CHUNK][MAX_ROWS]
    static constexpr int PENDING_END = PENDING_DELTA + PENDING_CHUNK * MAX_ROWS * 4;
    // [TM][MAX_ROWS], outputs: in the place of what is used up before, if there is room. Rows of pending deltas are used up by
    // those who write the same rows; keys, once all rows are.
    static constexpr bool OUT_OVER_KEYS = TM > PENDING_CHUNK && ROWS >= MAX_ROWS;
    static constexpr int OUT = TM <= PENDING_CHUNK ? PENDING_DELTA : OUT_OVER_KEYS ? PENDING_K : PENDING_END;
    static constexpr int OUT_END = OUT + TM * MAX_ROWS * 4;
    static constexpr int V = OUT_END > PENDING_END ? OUT_END : PENDING_END;  // [TM][MAX_ROWS]: v, then delta
    static constexpr int BETA = V + TM * MAX_ROWS * 4;                       // [TM]
    static constexpr int KEY_QUERY = BETA + TM * 4;  // [TM]: k . q
    static constexpr int PARENT = KEY_QUERY + TM * 4, ORDER = PARENT + TM * 4;  // [TM] each
    static constexpr int BASES = ORDER + TM * 4;
    static constexpr int DECAY = BASES + 16;  // [TM][1 or KP], then [PENDING_CHUNK][1 or KP]

    template <typename T = float>
    static __device__ __forceinline__ T* at(int offset) {
        extern __shared__ __align__(16) unsigned char shared[];
        return (T*)(shared + offset);
    }
    __device__ __forceinline__ int decay_len() const { return CHANNELS && p.per_channel ? KP : 1; }
    __device__ __forceinline__ float* decay_at(int t) const { return at(DECAY) + t * decay_len(); }
    __device__ __forceinline__ float* pending_decay_at(int i) const { return decay_at(TM + i); }
    __device__ __forceinline__ Four& stage(int r, int j) const { return at<Four>(STAGE)[(r * NV + j) * THREADS + tid]; }

    __device__ __forceinline__ void zero_out(const Bases& b) const {
        for (int t = 0; t < tokens; ++t)
            for (int r = tid; r < row_end - row_begin; r += THREADS)
                store_from_f32(p.out, p.out_dtype, b.out + t * p.out_stride + r, 0.0f);
    }

    // ---- tokens -------------------------------------------------------------------------------------------------

    // This lane's elements of a head of q or k, as they lie in memory: 4 (lane + 32 j) .. + 3.
    typedef u32 RawKey[KEY_VECTORS][4];
    __device__ __forceinline__ void load_key(const void* from, int dtype, i64 first, RawKey& raw) const {
#pragma unroll
        for (int j = 0; j < KEY_VECTORS; ++j) {
            int i = 4 * (lane + 32 * j);
            raw[j][0] = raw[j][1] = raw[j][2] = raw[j][3] = 0;
            if (!p.in_vectors) {
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    if (i + e < p.head_k_dim) raw[j][e] = load_raw(from, dtype, first + i + e);
            } else if (i < p.head_k_dim) {
                if (dtype == F32) {
                    uint4 x = *(const uint4*)((const float*)from + first + i);
                    raw[j][0] = x.x, raw[j][1] = x.y, raw[j][2] = x.z, raw[j][3] = x.w;
                } else {
                    uint2 x = *(const uint2*)((const u16*)from + first + i);
                    raw[j][0] = x.x, raw[j][1] = x.y;
                }
            }
        }
    }
    // One warp: a head, normalised and rounded as asked.
    __device__ __forceinline__ void normalise_key(const RawKey& raw, int dtype, float (&x)[KEY_VECTORS][4]) const {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < KEY_VECTORS; ++j) {
            if (p.in_vectors && dtype == BF16) {
                StateOf<Bf16>::unpack(make_uint2(raw[j][0], raw[j][1]), x[j]);
            } else if (p.in_vectors && dtype == F16) {
                StateOf<F16s>::unpack(make_uint2(raw[j][0], raw[j][1]), x[j]);
            } else {
#pragma unroll
                for (int e = 0; e < 4; ++e) x[j][e] = raw_to_f32(raw[j][e], dtype);
            }
        }
        if (p.l2_norm) {
#pragma unroll
            for (int i = 0; i < 4 * KEY_VECTORS; ++i) sum = __fmaf_rn(x[i / 4][i % 4], x[i / 4][i % 4], sum);
            float factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(warp_sum(sum), p.eps)));
#pragma unroll
            for (int i = 0; i < 4 * KEY_VECTORS; ++i) x[i / 4][i % 4] = __fmul_rn(x[i / 4][i % 4], factor);
        }
        if (p.round_io) {
#pragma unroll
            for (int i = 0; i < 4 * KEY_VECTORS; ++i) x[i / 4][i % 4] = round_to(x[i / 4][i % 4], p.k_dtype);
        }
    }
    // One warp: a head into shared memory, padded with zeros, and into the log.
    __device__ __forceinline__ void put_key(const float (&x)[KEY_VECTORS][4], float* to, float* log) const {
#pragma unroll
        for (int j = 0; j < KEY_VECTORS; ++j) {
            int i = 4 * (lane + 32 * j);
            if (i >= KP) continue;
            *(float4*)(to + i) = StateOf<float>::pack(x[j]);
            if (!log || i >= p.head_k_dim) continue;
            if (p.in_vectors) {
                *(float4*)(log + i) = StateOf<float>::pack(x[j]);
            } else {
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    if (i + e < p.head_k_dim) log[i + e] = x[j][e];
            }
        }
    }

    // The decay factor of a token and channel (0 where a head has one).
    __device__ __forceinline__ float decay_factor(int t, int channel) const {
        int channels = p.per_channel ? p.head_k_dim : 1;
        float x = load_as_f32(p.decay, p.decay_dtype, (start + (i64)t) * p.decay_stride + (i64)hv * channels + channel);
        if (p.decay_form == DECAY_LINEAR) return x;
        double g = p.decay_form == DECAY_LOG       ? (double)x
                   : p.decay_form == DECAY_NEG_LOG ? -(double)x
                   : AHEAD                       ? gate.log_decay(x)
                                                 : Gate(p.a_log[hv], p.dt_bias[(i64)hv * channels + channel]).log_decay(x);
        return (float)exp64(g);
    }
    // With AHEAD, before decay factors: the part of the gate that is not a token's.
    __device__ __forceinline__ void prepare_gate() {
        if (AHEAD && p.decay_form == DECAY_GATE && tid >= THREADS - 32) gate = Gate(p.a_log[hv], p.dt_bias[hv]);
    }

    // Tokens first .. first + n, and pending entries from `entry` on, into shared memory; with `log`, this unit's share of k and
    // decay into the log.
    __device__ __forceinline__ void prepare(int entry, int entries, int first, int n, bool log) {
        log = log && p.capture == CAPTURE_DELTA_LOG && row_begin == 0;
        bool log_key = log && (p.tiled ? hv < p.num_k_heads : hv % p.v_heads_per_k_head == 0);
        int warp = tid >> 5, row = tid % MAX_ROWS, part = tid / MAX_ROWS;
        // A warp takes q and k of one token, a thread v of one row and some. Loads go out before the first is waited for.
        for (int t = 0; t == 0 || t < n; t += WARPS) {
            RawKey k, q;
            u32 v[4];
            i64 token = start + (i64)first + t, key = (i64)h * p.head_k_dim;
            bool mine = t + warp < n;
            if (mine) {
                load_key(p.k, p.k_dtype, (token + warp) * p.k_stride + key, k);
                load_key(p.q, p.q_dtype, (token + warp) * p.q_stride + key, q);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int of = i * (THREADS / MAX_ROWS) + part;
                if (t + of < n && inside(row))
                    v[i] = load_raw(p.v, p.v_dtype, (token + of) * p.v_stride + (i64)hv * p.head_v_dim + row_begin + row);
            }
            if (t == 0) {
                prepare_pending(entry, entries);
                prepare_gates(first, n, log);
            }
            if (mine) {
                float kk[KEY_VECTORS][4], qq[KEY_VECTORS][4], product = 0.0f;
                i64 at_log = log_first + first + t + warp;
                normalise_key(k, p.k_dtype, kk);
                put_key(kk, at(K) + (t + warp) * KP, log_key ? p.log_k + (at_log * p.num_k_heads + h) * p.head_k_dim : nullptr);
                normalise_key(q, p.q_dtype, qq);
                put_key(qq, at(Q) + (t + warp) * KP, nullptr);
#pragma unroll
                for (int i = 0; i < 4 * KEY_VECTORS; ++i) product = __fmaf_rn(kk[i / 4][i % 4], qq[i / 4][i % 4], product);
                product = warp_sum(product);
                if (lane == 0) at(KEY_QUERY)[t + warp] = product;
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int of = t + i * (THREADS / MAX_ROWS) + part;
                if (of < n && inside(row)) at(V)[of * MAX_ROWS + row] = raw_to_f32(v[i], p.v_dtype);
            }
        }
    }
    // Decay factors by the last warp (all of them where each channel has one), betas and parents by the one before.
    __device__ __forceinline__ void prepare_gates(int first, int n, bool log) {
        int t = tid - (THREADS - 32);
        if (!CHANNELS || !p.per_channel) {
            if (t >= 0 && t < n) {
                float factor = decay_factor(first + t, 0);
                *decay_at(t) = factor;
                if (log) p.log_decay[(log_first + first + t) * p.num_v_heads + hv] = factor;
            }
        } else {
            for (int i = tid; i < n * KP; i += THREADS) {
                int c = i % KP;
                float factor = c < p.head_k_dim ? decay_factor(first + i / KP, c) : 1.0f;
                at(DECAY)[i] = factor;
                i64 entry = (log_first + first + i / KP) * p.num_v_heads + hv;
                if (log && c < p.head_k_dim) p.log_decay[entry * p.head_k_dim + c] = factor;
            }
        }
        t = tid - (THREADS - 64);
        if (t >= 0 && t < 32 && t < n) {
            float b = load_as_f32(p.beta, p.beta_dtype, (start + (i64)first + t) * p.beta_stride + hv);
            if (p.beta_is_logit) b = (float)sigmoid64(b);
            at(BETA)[t] = p.round_io ? round_to(b, p.k_dtype) : b;
            if (TREES && p.parents) at<int>(PARENT)[t] = p.parents[start + first + t];
        }
    }

    // Begins to copy pending entries first .. first + n, a warp whole entries.
    __device__ __forceinline__ void prepare_pending(int first, int n) {
        int rows = row_end - row_begin;
        for (int i = tid >> 5; i < n; i += WARPS) {
            i64 entry = pending_entry(first + i), head = entry * p.num_v_heads + hv;
            const float* k = p.pending_k + (entry * p.num_k_heads + h) * p.head_k_dim;
            const float* delta = p.pending_delta + head * p.head_v_dim + row_begin;
            float *k_to = at(PENDING_K) + i * KP, *delta_to = at(PENDING_DELTA) + i * MAX_ROWS;
            if (p.in_vectors) {
                for (int j = 4 * lane; j < KP; j += 128) {
                    if (WHOLE || j < p.head_k_dim)
                        copy_async((float4*)(k_to + j), (const float4*)(k + j));
                    else
                        *(float4*)(k_to + j) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                }
                if (4 * lane < rows) copy_async((float4*)delta_to + lane, (const float4*)delta + lane);
            } else {
                for (int j = lane; j < KP; j += 32) {
                    if (WHOLE || j < p.head_k_dim)
                        copy_async(k_to + j, k + j);
                    else
                        k_to[j] = 0.0f;
                }
                for (int j = lane; j < rows; j += 32) copy_async(delta_to + j, delta + j);
            }
            if (!CHANNELS || !p.per_channel) {
                if (lane == 0) copy_async(pending_decay_at(i), p.pending_decay + head);
            } else {
                for (int c = lane; c < KP; c += 32) {
                    if (c < p.head_k_dim)
                        copy_async(pending_decay_at(i) + c, p.pending_decay + head * p.head_k_dim + c);
                    else
                        pending_decay_at(i)[c] = 1.0f;
                }
            }
        }
    }
    __device__ __forceinline__ i64 pending_entry(int i) const {
        return pending_first + (p.pending_path ? p.pending_path[(i64)seq * p.pending_max + i] : i);
    }

    // ---- state --------------------------------------------------------------------------------------------------

    // A row of this lane group, counted from the unit's first.
    __device__ __forceinline__ int row_of(int tile, int r) const { return tile + group * NR + r; }
    __device__ __forceinline__ bool inside(int row) const { return row < row_end - row_begin; }

    // Begins to copy this thread's part of a tile to the stage.
    __device__ __forceinline__ void fetch(const S* from, int tile, int rows) {
#pragma unroll
        for (int r = 0; r < NR; ++r) {
            const Four* row = (const Four*)(from + (i64)row_of(tile, r) * KP) + l8;
            if (row_of(tile, r) < rows) {
#pragma unroll
                for (int j = 0; j < NV; ++j) copy_async(&stage(r, j), row + 8 * j);
            }
        }
    }
    // This thread's part of a tile into registers.
    __device__ __forceinline__ void take(int tile) {
        if (WHOLE) copies_done();
#pragma unroll
        for (int r = 0; r < NR; ++r)
            if (WHOLE) {
#pragma unroll
                for (int j = 0; j < NV; ++j) St::unpack(stage(r, j), s[r][j]);
            } else {
                load_row(state, tile, r);
            }
    }
    // A row in elements, zeros beyond K and V.
    __device__ __forceinline__ void load_row(const S* from, int tile, int r) {
        bool in = inside(row_of(tile, r));
        const S* row = from + (i64)row_of(tile, r) * p.head_k_dim;
#pragma unroll
        for (int j = 0; j < NV; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                int i = (l8 + 8 * j) * 4 + e;
                s[r][j][e] = in && i < p.head_k_dim ? St::get(row + i) : 0.0f;
            }
    }
    // ONCE: nobody reads it soon.
    template <bool ONCE = false>
    __device__ __forceinline__ void store(S* to, int tile) {
#pragma unroll
        for (int r = 0; r < NR; ++r) {
            if (!inside(row_of(tile, r))) continue;
            if (WHOLE) {
                Four* row = (Four*)(to + (i64)row_of(tile, r) * KP) + l8;
#pragma unroll
                for (int j = 0; j < NV; ++j) {
                    if (ONCE)
                        __stcs(row + 8 * j, St::pack(s[r][j]));
                    else
                        row[8 * j] = St::pack(s[r][j]);
                }
            } else {
                S* row = to + (i64)row_of(tile, r) * p.head_k_dim;
#pragma unroll
                for (int j = 0; j < NV; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        int i = (l8 + 8 * j) * 4 + e;
                        if (i < p.head_k_dim) St::put(row + i, s[r][j][e]);
                    }
            }
        }
    }

    // ---- arithmetic ---------------------------------------------------------------------------------------------

    __device__ __forceinline__ void read4(const float* from, int j, float (&x)[4]) const {
        StateOf<float>::unpack(((const float4*)from)[l8 + 8 * j], x);
    }
    // The factors of this lane's elements of vector j.
    __device__ __forceinline__ void read_decay(const float* decay, int j, float (&x)[4]) const {
        if (by_channel())
            read4(decay, j, x);
        else
            x[0] = x[1] = x[2] = x[3] = decay[0];
    }

    __device__ __forceinline__ bool by_channel() const { return CHANNELS && p.per_channel; }

    // S = S * decay, S = fma(delta, k, S), rounded. Deltas of rows beyond the last are whatever lies there, and so are their
    // states, which nobody stores.
    __device__ __forceinline__ void replay(const float* k, const float* decay, const float* delta, int tile) {
        float d[NR];
#pragma unroll
        for (int r = 0; r < NR; ++r) d[r] = delta[row_of(tile, r)];
#pragma unroll
        for (int j = 0; j < NV; ++j) {
            float kk[4], al[4];
            read4(k, j, kk);
            read_decay(decay, j, al);
#pragma unroll
            for (int r = 0; r < NR; ++r) {
#pragma unroll
                for (int e = 0; e < 4; ++e) s[r][j][e] = __fmaf_rn(d[r], kk[e], __fmul_rn(s[r][j][e], al[e]));
                St::round4(s[r][j]);
            }
        }
    }

    // Sums over the eight lanes of a group: lane l gets that of row l / (8 / NR). Pairs l, l ^ 4, then l ^ 2, then l ^ 1,
    // whichever NR.
    __device__ __forceinline__ float reduce(const float (&x)[NR]) const {
        float y;
        if (NR == 4) {
            bool high = l8 & 4, odd = l8 & 2;
            float a = __fadd_rn(high ? x[NR - 2] : x[0], __shfl_xor_sync(~0u, high ? x[0] : x[NR - 2], 4));
            float b = __fadd_rn(high ? x[NR - 1] : x[NR > 1], __shfl_xor_sync(~0u, high ? x[NR > 1] : x[NR - 1], 4));
            y = __fadd_rn(odd ? b : a, __shfl_xor_sync(~0u, odd ? a : b, 2));
        } else if (NR == 2) {
            bool high = l8 & 4;
            y = __fadd_rn(high ? x[NR - 1] : x[0], __shfl_xor_sync(~0u, high ? x[0] : x[NR - 1], 4));
            y = __fadd_rn(y, __shfl_xor_sync(~0u, y, 2));
        } else {
            y = __fadd_rn(x[0], __shfl_xor_sync(~0u, x[0], 4));
            y = __fadd_rn(y, __shfl_xor_sync(~0u, y, 2));
        }
        return __fadd_rn(y, __shfl_xor_sync(~0u, y, 1));
    }

    // Token `first + t`, from the state in registers. Output and delta go to shared memory, and with DIRECT out of it. Where no
    // token follows this one (LAST) the state is not wanted; a tree's leaf leaves that of before.
    template <bool DIRECT>
    __device__ __forceinline__ void step(int first, int t, int tile, bool last) {
        const float *k = at(K) + t * KP, *q = at(Q) + t * KP, *decay = decay_at(t);
        float kk[KEEP_K ? NV : 1][4], of_k[NR], of_q[NR];
#pragma unroll
        for (int r = 0; r < NR; ++r) of_k[r] = of_q[r] = 0.0f;
#pragma unroll
        for (int j = 0; j < NV; ++j) {
            float qj[4];
            float(&kj)[4] = kk[KEEP_K ? j : 0];
            read4(k, j, kj);
            read4(q, j, qj);
            if (by_channel()) {
                float al[4];
                read4(decay, j, al);
#pragma unroll
                for (int r = 0; r < NR; ++r)
#pragma unroll
                    for (int e = 0; e < 4; ++e) s[r][j][e] = __fmul_rn(s[r][j][e], al[e]);
            }
#pragma unroll
            for (int e = 0; e < 4; ++e)
#pragma unroll
                for (int r = 0; r < NR; ++r) {
                    of_k[r] = __fmaf_rn(s[r][j][e], kj[e], of_k[r]);
                    of_q[r] = __fmaf_rn(s[r][j][e], qj[e], of_q[r]);
                }
        }
        // Else the compiler would keep k in registers that it does not have.
        if (!KEEP_K) asm volatile("" ::: "memory");
        // A head's decay is a factor of the sums; with a decay per channel the state has it by now.
        float factor = by_channel() ? 1.0f : decay[0];
        // The lanes of a row's sum own the row: its v, delta and output.
        int own = row_of(tile, l8 / (8 / NR));
        bool owner = l8 % (8 / NR) == 0;
        float prediction = __fmul_rn(factor, reduce(of_k));
        float delta = __fmul_rn(__fsub_rn(at(V)[t * MAX_ROWS + own], prediction), at(BETA)[t]);
        float o = __fmaf_rn(delta, at(KEY_QUERY)[t], __fmul_rn(factor, reduce(of_q)));
        if (!last) {
            float d[NR];
#pragma unroll
            for (int r = 0; r < NR; ++r) d[r] = NR == 1 ? delta : __shfl_sync(~0u, delta, (lane & 24) | (r * (8 / NR)));
#pragma unroll
            for (int j = 0; j < NV; ++j) {
                float(&kj)[4] = kk[KEEP_K ? j : 0];
                if (!KEEP_K) read4(k, j, kj);
#pragma unroll
                for (int r = 0; r < NR; ++r) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) s[r][j][e] = __fmaf_rn(d[r], kj[e], __fmul_rn(s[r][j][e], factor));
                    St::round4(s[r][j]);
                }
            }
        }
        // Every lane of the group has read v.
        __syncwarp();
        if (owner) at(V)[t * MAX_ROWS + own] = delta;
        if (!DIRECT) {
            if (owner) at(OUT)[t * MAX_ROWS + own] = o;
        } else if (owner && inside(own)) {
            put(bases(), first + t, own, o, delta);
        }
        if (EACH && p.capture == CAPTURE_PER_TOKEN) store<true>(captured(first + t), tile);
    }
    // The output, and the log's delta, of a token and row.
    __device__ __forceinline__ void put(const Bases& b, int t, int row, float o, float delta) const {
        store_from_f32(p.out, p.out_dtype, b.out + t * p.out_stride + row, __fmul_rn(p.scale, o));
        if (p.capture == CAPTURE_DELTA_LOG) p.log_delta[b.capture + t * (i64)p.num_v_heads * p.head_v_dim + row] = delta;
    }
    // Those of all tokens in shared memory.
    __device__ __forceinline__ void put_all(const Bases& b) const {
        // As many threads a token as a unit of one row a group has rows.
        constexpr int SHARE = NR == 1 ? ROWS : MAX_ROWS;
        for (int row = tid % SHARE; row < row_end - row_begin; row += SHARE)
            for (int t = tid / SHARE; t < tokens; t += THREADS / SHARE)
                put(b, t, row, at(OUT)[t * MAX_ROWS + row], at(V)[t * MAX_ROWS + row]);
    }
    __device__ __forceinline__ S* captured(int t) const {
        return (S*)p.captured + bases().capture + t * (i64)p.num_v_heads * p.head_v_dim * p.head_k_dim;
    }

    // ---- trees of at most TM tokens -----------------------------------------------------------------------------

    // What `ORDER` tells of a token, beside its number and its parent's: whether it is a leaf, and whether the token before in
    // that order leaves another state than the parent's.
    static constexpr int NODE = 0xff, LEAF = 1 << 8, JUMP = 1 << 9, PARENT_SHIFT = 16;

    // Tokens in the order of a walk that goes down before it goes aside, by one warp, and a bit for each that has children.
    // Leaves come first among siblings: they leave the parent's state in registers. Most others follow the one before. The
    // order is that of their paths, a digit of 16 for each ancestor, leaves with the smaller ones; a first child that has
    // digit 0 comes after its parent by number.
    __device__ __forceinline__ void prepare_order(int n) {
        if (tid >> 5 != 1) return;
        int node = lane < n ? lane : -1, parent = lane < n ? p.parents[start + lane] : -1;
        u32 inner = 0;
        for (int i = 0; i < n; ++i) {
            int of = __shfl_sync(~0u, parent, i);
            if (of >= 0) inner |= 1u << of;
        }
        u32 leaves = ~inner & ((1u << n) - 1);
        u32 below = (1u << lane) - 1;
        int digit = inner >> lane & 1 ? __popc(leaves) + __popc(inner & below) : __popc(leaves & below);
        u64 path = 0;
        for (int level = 0; level < TM; ++level) {
            u64 of_node = __shfl_sync(~0u, digit, node < 0 ? 0 : node);
            int next = __shfl_sync(~0u, parent, node < 0 ? 0 : node);
            if (node >= 0) path = path >> 4 | of_node << 60, node = next;
        }
        int before = 0;
        for (int i = 0; i < n; ++i) {
            u64 other = __shfl_sync(~0u, path, i);
            before += other < path || (other == path && i < lane);
        }
        // From here on a lane is a place in that order.
        int token = 0;
        for (int i = 0; i < n; ++i)
            if (__shfl_sync(~0u, before, i) == lane) token = i;
        bool leaf = !(inner >> token & 1);
        int of = __shfl_sync(~0u, parent, token), left = __shfl_up_sync(~0u, leaf ? of : token, 1);
        bool jump = of != (lane ? left : -1);
        if (lane < n) at<int>(ORDER)[lane] = token | (leaf ? LEAF : 0) | (jump ? JUMP : 0) | (of + 1) << PARENT_SHIFT;
    }
    // The state before the window, into and from the stage. Its elements were rounded before, so this is exact.
    __device__ __forceinline__ void keep() {
#pragma unroll
        for (int r = 0; r < NR; ++r)
#pragma unroll
            for (int j = 0; j < NV; ++j) stage(r, j) = St::pack(s[r][j]);
    }
    __device__ __forceinline__ void back() {
#pragma unroll
        for (int r = 0; r < NR; ++r)
#pragma unroll
            for (int j = 0; j < NV; ++j) St::unpack(stage(r, j), s[r][j]);
    }
    // From the state before the window down to a token's, through deltas that lie where v was.
    __device__ __forceinline__ void replay_path(int token, int tile) {
        u64 path = 0;
        int depth = 0;
        for (int a = token; a >= 0; a = at<int>(PARENT)[a], ++depth) path = path << 4 | a;
        // Owners wrote the deltas.
        __syncwarp();
        for (; depth > 0; --depth, path >>= 4) {
            int a = path & 15;
            replay(at(K) + a * KP, decay_at(a), at(V) + a * MAX_ROWS, tile);
        }
    }
    // The state after a token, or before the window (-1), into registers.
    __device__ __forceinline__ void go_to(int token, int tile) {
        back();
        if (token >= 0) replay_path(token, tile);
    }
};
