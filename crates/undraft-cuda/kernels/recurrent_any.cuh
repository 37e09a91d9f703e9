// Everything: windows of any length, draft trees, a decay per channel, any head size.
#pragma once
#include "recurrent.cuh"

template <typename S, int KP, int NR, bool WHOLE>
struct Any : Recurrent<S, KP, NR, 16, true, true, true, WHOLE> {
    typedef Recurrent<S, KP, NR, 16, true, true, true, WHOLE> Base;
    static constexpr int TM = 16;
    typedef typename Base::St St;
    using Base::ROWS, Base::V, Base::K, Base::PENDING_K, Base::PENDING_DELTA, Base::PARENT;
    using Base::p, Base::s, Base::tid, Base::h, Base::hv, Base::start, Base::tokens, Base::pending, Base::log_first,
        Base::state, Base::row_begin, Base::row_end;
    using Base::stage, Base::replay, Base::store, Base::fetch, Base::take, Base::decay_len, Base::decay_at,
        Base::pending_decay_at, Base::decay_factor, Base::load_key, Base::normalise_key, Base::put_key, Base::prepare,
        Base::load_row, Base::captured, Base::keep, Base::back;
    template <typename T = float>
    static __device__ __forceinline__ T* at(int offset) { return Base::template at<T>(offset); }
    __device__ __forceinline__ Any(const RecurrentParams& params) : Base(params) {}

    // Every gridDim.x-th unit, one after the other.
    static __device__ __forceinline__ void run(const RecurrentParams& params) {
        Any a(params);
        wait_for_previous();
        let_next_begin();
        // All blocks so work on neighbouring units at a time, which the memory likes best.
        for (int unit = blockIdx.x; unit < params.num_units; unit += gridDim.x) {
            a.locate();
            auto place = a.place_of(unit);
            if (!a.begin(place, a.load_unit(place))) continue;
            int rows = a.row_end - a.row_begin;
            if (WHOLE) a.fetch(a.state, 0, rows);
            for (int tile = 0; tile < rows; tile += ROWS) a.run_tile(tile);
            // Nobody prepares the next unit while this one's tokens are read.
            __syncthreads();
        }
    }

    __device__ __forceinline__ void fetch_next(int tile) {
        if (WHOLE && tile + ROWS < row_end - row_begin) fetch(state, tile + ROWS, row_end - row_begin);
    }

    // A tile of rows through the entries and tokens, in chunks that fit shared memory. Where one chunk holds all, the first
    // tile prepares it for all.
    __device__ __forceinline__ void run_tile(int tile) {
        bool once = tokens <= TM && pending <= PENDING_CHUNK;
        // A tree needs the stage for the state before the window.
        bool staged = p.parents;
        for (int entry = 0, token = 0; entry < pending || token < tokens;) {
            int entries = min(PENDING_CHUNK, pending - entry);
            int n = entry + entries == pending ? min(TM, tokens - token) : 0;
            if (!once || tile == 0) {
                if (!once) __syncthreads();
                prepare(entry, entries, token, n, tile == 0);
                copies_done();
                __syncthreads();
                this->locate();
            }
            if (entry == 0 && token == 0) {
                take(tile);
                if (!staged) fetch_next(tile);
            }
            for (int i = 0; i < entries; ++i)
                replay(at(PENDING_K) + i * KP, pending_decay_at(i), at(PENDING_DELTA) + i * MAX_ROWS, tile);
            entry += entries;
            if (entry == pending && token == 0) {
                if (pending > 0 && (tokens == 0 || p.capture != CAPTURE_FINAL)) store(state, tile);
                if (staged) keep();
            }
            for (int t = 0; t < n; ++t) {
                if (staged) go_to_parent(token, t, tile);
                this->template step<true>(token, t, tile, false);
            }
            token += n;
        }
        if (tokens > 0 && p.capture == CAPTURE_FINAL) store(state, tile);
        if (staged) fetch_next(tile);
    }

    // ---- trees --------------------------------------------------------------------------------------------------

    __device__ __forceinline__ int parent_of(int first, int t) const {
        return t >= first ? at<int>(PARENT)[t - first] : p.parents[start + t];
    }

    // The state after the parent of token `first + t` into registers.
    __device__ __forceinline__ void go_to_parent(int first, int t, int tile) {
        int parent = at<int>(PARENT)[t];
        if (parent == first + t - 1 && first + t > 0) return;
        if (parent < 0) return back();
        if (p.capture == CAPTURE_PER_TOKEN) {
#pragma unroll
            for (int r = 0; r < NR; ++r) load_row(captured(parent), tile, r);
            return;
        }
        back();
        int depth = 0;
        for (int a = parent; a >= 0; a = parent_of(first, a)) ++depth;
        // From the root down. The deltas lie where v was (owners wrote them, hence the fence).
        __syncwarp();
        for (; depth > 0; --depth) {
            int a = parent;
            for (int i = 1; i < depth; ++i) a = parent_of(first, a);
            bool near = a >= first;
            if (!near) prepare_distant(a);
            replay(near ? at(K) + (a - first) * KP : at(PENDING_K), near ? decay_at(a - first) : pending_decay_at(0),
                   near ? at(V) + (a - first) * MAX_ROWS : at(PENDING_DELTA), tile);
        }
    }

    // An ancestor that is no longer in shared memory: prepared again in the place of pending entries, which were replayed
    // before. All threads of the block take the same way through the tree.
    __device__ __forceinline__ void prepare_distant(int a) {
        __syncthreads();
        if (tid < 32) {
            typename Base::RawKey k;
            load_key(p.k, p.k_dtype, (start + (i64)a) * p.k_stride + (i64)h * p.head_k_dim, k);
            float kk[Base::KEY_VECTORS][4];
            normalise_key(k, p.k_dtype, kk);
            put_key(kk, at(PENDING_K), nullptr);
        }
        int channels = p.per_channel ? p.head_k_dim : 1;
        for (int c = tid; c < decay_len(); c += Base::THREADS) pending_decay_at(0)[c] = c < channels ? decay_factor(a, c) : 1.0f;
        if (row_begin + tid < row_end) {
            i64 head = (log_first + a) * p.num_v_heads + hv;
            at(PENDING_DELTA)[tid] = p.log_delta[head * p.head_v_dim + row_begin + tid];
        }
        __syncthreads();
    }
};
