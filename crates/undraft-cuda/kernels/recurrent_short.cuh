// Windows of at most TM tokens after at most PENDING_CHUNK replayed entries, one decay a head, whole vectors: decode and
// verify, TREE of draft trees, EACH with a state captured after each token.
#pragma once
#include "recurrent.cuh"

template <typename S, int KP, int NR, bool TREE, bool EACH = false>
struct Short : Recurrent<S, KP, NR, TREE ? 16 : 8, false, TREE, EACH, true> {
    typedef Recurrent<S, KP, NR, TREE ? 16 : 8, false, TREE, EACH, true> Base;
    typedef typename Base::Unit Unit;
    typedef typename Base::Place Place;
    using Base::p, Base::state, Base::tokens, Base::pending, Base::ROWS, Base::at;
    __device__ __forceinline__ Short(const RecurrentParams& params) : Base(params) {}

    // The unit to come, in shared memory while one is worked on: registers are for the state.
    struct __align__(16) Next {
        Unit unit;
        Place place;
        int left;  // units of this block, from it on
    };

    // Every gridDim.x-th unit. While a tile is worked on, the next one is on its way, be it of this unit or the
    // next (a tree needs the stage for itself, there it is begun afterwards).
    static __device__ __forceinline__ void run(const RecurrentParams& params) {
        Short c(params);
        Next& next = *Base::template at<Next>(Base::NEXT);
        int rows;
        Next n;
        n.left = (params.num_units - 1 - (int)blockIdx.x) / (int)gridDim.x + 1;
        n.place = c.place_of(blockIdx.x);
        // With `early` the first tile is on its way before the launch before has ended.
        if (!params.early) wait_for_previous();
        n.unit = c.load_unit(n.place);
        S* from = c.rows_of(n.place, n.unit, rows);
        if (from) c.fetch(from, 0, rows);
        if (params.early) wait_for_previous();
        let_next_begin();
        while (true) {
            c.locate();
            bool works = c.begin(n.place, n.unit);
            n.place = c.after(n.place);
            if (--n.left > 0) n.unit = c.load_unit(n.place);
            if (!works) {
                if (n.left <= 0) return;
                from = c.rows_of(n.place, n.unit, rows);
                if (from) c.fetch(from, 0, rows);
                continue;
            }
            c.prepare_pending(0, c.pending);
            c.prepare_window(0, c.tokens, true);
            if (TREE) c.prepare_order(c.tokens);
            copies_done();
            if (c.tid == 0) next = n;
            __syncthreads();
            c.locate();
            for (int tile = 0; tile < c.row_end - c.row_begin; tile += ROWS) {
                c.take(tile);
                if (TREE) c.run_tile(tile);
                from = c.state;
                int from_tile = tile + ROWS;
                rows = c.row_end - c.row_begin;
                if (from_tile >= rows) {
                    from = next.left > 0 ? c.rows_of(next.place, next.unit, rows) : nullptr;
                    from_tile = 0;
                }
                if (from) c.fetch(from, from_tile, rows);
                if (!TREE) c.run_tile(tile);
            }
            n = next;
            typename Base::Bases bases = c.bases();
            // From here on nobody needs the unit's tokens but for the rows that a thread puts.
            __syncthreads();
            c.put_all(bases);
            if (n.left <= 0) return;
        }
    }

    __device__ __forceinline__ void run_tile(int tile) {
        for (int i = 0; i < pending; ++i)
            this->replay(at(Base::PENDING_K) + i * KP, this->pending_decay_at(i), at(Base::PENDING_DELTA) + i * MAX_ROWS, tile);
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
