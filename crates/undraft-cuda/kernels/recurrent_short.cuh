// Windows of at most TM tokens after at most PENDING_CHUNK replayed entries, one decay a head, whole vectors: decode and
// verify, TREE of draft trees, EACH with a state captured after each token, AHEAD where rows are few and entries pending.
#pragma once
#include "recurrent.cuh"

template <typename S, int KP, int NR, bool TREE, bool EACH, int WARPS, bool AHEAD = false>
struct Short : Recurrent<S, KP, NR, TREE ? 16 : 8, false, TREE, EACH, true, WARPS, AHEAD> {
    typedef Recurrent<S, KP, NR, TREE ? 16 : 8, false, TREE, EACH, true, WARPS, AHEAD> Base;
    typedef typename Base::Unit Unit;
    typedef typename Base::Place Place;
    using Base::p, Base::state, Base::tokens, Base::pending, Base::ROWS, Base::at;
    __device__ __forceinline__ Short(const RecurrentParams& params) : Base(params) {}

    // A unit a block: blocks that come later balance what differs in speed. While a tile is worked on, the next one is on its
    // way (a tree needs the stage for itself, there it is begun afterwards).
    static __device__ __forceinline__ void run(const RecurrentParams& params) {
        Short c(params);
        // With `early` the first tile is on its way before the launch before has ended.
        if (!params.early) wait_for_previous();
        Place place = c.place_of(blockIdx.x);
        Unit unit = c.load_unit(place);
        S* from = c.rows_of(place, unit);
        if (from) c.fetch(from, 0, place.rows);
        // So are pending entries, whose replay is done by then, where a block's latency counts; the stage keeps the state.
        bool ahead = AHEAD && params.early && from && unit.pending > 0;
        if (params.early) {
            // Where few rows keep few loads on their way.
            if (NR == 1) c.prefetch_unit(place, unit);
            if (ahead) {
                c.begin(place, unit);
                c.prepare_pending(0, c.pending);
                c.prepare_gate();
                copies_done();
                __syncthreads();
                c.take(0);
                c.replay_pending(0);
                c.keep();
            }
            wait_for_previous();
        }
        let_next_begin();
        if (!ahead) {
            if (!c.begin(place, unit)) return;
            c.prepare_gate();
        }
        c.prepare(0, ahead ? 0 : c.pending, 0, c.tokens, true);
        if (TREE) c.prepare_order(c.tokens);
        copies_done();
        __syncthreads();
        c.locate();
        for (int tile = 0; tile == 0 || (ROWS < MAX_ROWS && tile < place.rows); tile += ROWS) {
            bool replayed = ahead && tile == 0, more = ROWS < MAX_ROWS && tile + ROWS < place.rows;
            if (replayed)
                c.back();
            else
                c.take(tile);
            if (!TREE && more) c.fetch(c.state, tile + ROWS, place.rows);
            if (!replayed) c.replay_pending(tile);
            c.run_tile(tile);
            if (TREE && more) c.fetch(c.state, tile + ROWS, place.rows);
        }
        __syncthreads();
        c.put_all(c.bases());
    }

    __device__ __forceinline__ void replay_pending(int tile) {
        for (int i = 0; i < pending; ++i)
            this->replay(at(Base::PENDING_K) + i * KP, this->pending_decay_at(i), at(Base::PENDING_DELTA) + i * MAX_ROWS, tile);
    }
    __device__ __forceinline__ void run_tile(int tile) {
        // Outputs come where pending keys lie.
        if (Base::OUT_OVER_KEYS) __syncthreads();
        bool final = p.capture == CAPTURE_FINAL && tokens > 0;
        if (pending > 0 && !final) this->store(state, tile);
        if (TREE)
            run_tree(tile, final);
        else
            // With a log nobody wants the state after the last token.
            for (int t = 0; t < tokens; ++t)
                this->template step<false>(0, t, tile, t + 1 == tokens && p.capture == CAPTURE_DELTA_LOG);
        if (final) this->store(state, tile);
    }
    __device__ __forceinline__ void run_tree(int tile, bool final) {
        this->keep();
        const int* order = Base::template at<int>(Base::ORDER);
        for (int i = 0, word = order[0]; i < tokens; ++i) {
            int next = order[min(i + 1, tokens - 1)];
            if (word & Base::JUMP) this->go_to((word >> Base::PARENT_SHIFT) - 1, tile);
            this->template step<false>(0, word & Base::NODE, tile, word & Base::LEAF && !final);
            word = next;
        }
    }
};
