// Windows of at most TM tokens after at most PENDING_CHUNK replayed entries, one decay a head, whole vectors: decode and
// verify, TREE of draft trees, EACH with a state captured after each token.
#pragma once
#include "recurrent.cuh"

template <typename S, int KP, int NR, bool TREE, bool EACH, int WARPS>
struct Short : Recurrent<S, KP, NR, TREE ? 16 : 8, false, TREE, EACH, true, WARPS> {
    typedef Recurrent<S, KP, NR, TREE ? 16 : 8, false, TREE, EACH, true, WARPS> Base;
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
        int rows;
        S* from = c.rows_of(place, unit, rows);
        if (from) c.fetch(from, 0, rows);
        if (params.early) {
            // Where few rows keep few loads on their way.
            if (NR == 1) c.prefetch_unit(place, unit);
            wait_for_previous();
        }
        let_next_begin();
        if (!c.begin(place, unit)) return;
        c.prepare(0, c.pending, 0, c.tokens, true);
        if (TREE) c.prepare_order(c.tokens);
        copies_done();
        __syncthreads();
        c.locate();
        for (int tile = 0; tile == 0 || (ROWS < MAX_ROWS && tile < c.row_end - c.row_begin); tile += ROWS) {
            c.take(tile);
            if (TREE) c.run_tile(tile);
            if (ROWS < MAX_ROWS && tile + ROWS < c.row_end - c.row_begin) c.fetch(c.state, tile + ROWS, c.row_end - c.row_begin);
            if (!TREE) c.run_tile(tile);
        }
        __syncthreads();
        c.put_all(c.bases());
    }

    __device__ __forceinline__ void run_tile(int tile) {
        for (int i = 0; i < pending; ++i)
            this->replay(at(Base::PENDING_K) + i * KP, this->pending_decay_at(i), at(Base::PENDING_DELTA) + i * MAX_ROWS, tile);
        // Outputs come where pending keys lie.
        if (Base::OUT_OVER_KEYS) __syncthreads();
        bool final = p.capture == CAPTURE_FINAL && tokens > 0;
        if (pending > 0 && !final) this->store(state, tile);
        if (TREE) this->keep();
        int last = -1;
        for (int i = 0; i < tokens; ++i) {
            if (!TREE) {
                this->template step<false>(0, i, tile);
                continue;
            }
            int entry = Base::template at<int>(Base::ORDER)[i], t = entry & (Base::LEAF_BIT - 1);
            this->go_to_parent(t, last, tile);
            last = Base::template at<int>(Base::PARENT)[t];
            if (entry & Base::LEAF_BIT && !final) {
                this->template step<false, true>(0, t, tile);
            } else {
                this->template step<false>(0, t, tile);
                last = t;
            }
        }
        if (final) this->store(state, tile);
    }
};
