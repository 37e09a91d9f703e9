// The recurrence: tokens prepared in threadgroup memory, rows of the state in registers.
//
// A threadgroup of four simdgroups has the share of ROWS rows of one value head of one sequence. Eight lanes hold a row: lane l
// elements 4 (l + 8 j) .. + 3. A sum adds them by one FMA each in rising j, four chains side by side, then the chains as
// (0 + 1) + (2 + 3), then lanes l and l ^ 4, l ^ 2, l ^ 1. That order depends on K alone.
#pragma once
#include "gates.h"

#define THREADS 128
#define SIMDS 4

struct RecurrentParams {
    long q_stride, k_stride, v_stride, decay_stride, beta_stride, out_stride, state_stride;
    int num_seqs, num_k_heads, num_v_heads, head_k_dim, head_v_dim;
    int pending_max, log_max, capture_max, chunk;
    int q_dtype, k_dtype, v_dtype, decay_dtype, beta_dtype, out_dtype;
    int decay_form, per_channel, beta_is_logit, tiled, l2_norm, round_io, capture, whole;
    int blocks_per_head;
    uint present;
    float eps, scale;
};

struct RecurrentBuffers {
    device const uchar *q, *k, *v, *decay, *beta;
    device const float *a_log, *dt_bias;
    device uchar *out, *state, *captured;
    device const int *cu_seqlens, *state_indices, *parents;
    device const float *pending_k, *pending_decay, *pending_delta;
    device const int* pending_slots;
    device const uint *num_pending, *pending_path;
    device float *log_k, *log_decay, *log_delta;
    device const int* log_slots;
};
// Optional buffers, by slot.
#define HAS_PARENTS (1u << 12)
#define HAS_PENDING_SLOTS (1u << 16)
#define HAS_NUM_PENDING (1u << 17)
#define HAS_PENDING_PATH (1u << 18)
#define HAS_LOG_SLOTS (1u << 22)

// S: element type of the state. KP: K padded. NR: rows of a group of eight lanes.
template <typename S, int KP, int NR>
struct Recurrent {
    enum { NV = KP / 32, ROWS = THREADS / 8 * NR };
    typedef typename S::Element Element;

    constant RecurrentParams* p;
    RecurrentBuffers b;
    int seq, hv, h, start, tokens, pending, row_begin, slot;
    long pending_first, log_first;
    int lane, simd, tid, l8, group;
    bool tree;
    int decay_len;  // decay factors of a token
    // [chunk + 1][KP], the last for a token that was prepared before; [chunk][KP]; [chunk + 1][decay_len]; [chunk][ROWS]: v, then
    // delta; [chunk] each.
    threadgroup float *keys, *queries, *decays, *values, *betas;
    threadgroup int* parents;
    float4 s[NR][NV];

    void run(threadgroup float* shared, uint3 at) {
        tid = simd * 32 + lane, l8 = lane & 7, group = tid >> 3;
        seq = at.y, hv = (int)at.x / p->blocks_per_head;
        row_begin = (int)at.x % p->blocks_per_head * ROWS;
        h = p->tiled ? hv % p->num_k_heads : hv / (p->num_v_heads / p->num_k_heads);
        slot = b.state_indices[seq];
        start = b.cu_seqlens[seq], tokens = b.cu_seqlens[seq + 1] - start;
        if (slot < 0) return zero_out();
        pending = p->present & HAS_NUM_PENDING ? (int)b.num_pending[seq] : 0;
        if (tokens == 0 && pending == 0) return;
        tree = p->present & HAS_PARENTS;
        pending_first = (long)(p->present & HAS_PENDING_SLOTS ? b.pending_slots[seq] : slot) * p->pending_max;
        log_first = (long)(p->present & HAS_LOG_SLOTS ? b.log_slots[seq] : slot) * p->log_max;
        share_out(shared);
        load(state());
        for (int first = 0; first < pending; first += p->chunk) {
            int n = metal::min(p->chunk, pending - first);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            prepare_pending(first, n);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (int i = 0; i < n; ++i) replay(keys + i * KP, decays + i * decay_len, values + i * ROWS);
        }
        if (pending > 0 && (tokens == 0 || p->capture != CAPTURE_FINAL)) store(state());
        for (int first = 0; first < tokens; first += p->chunk) {
            int n = metal::min(p->chunk, tokens - first);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            prepare_window(first, n);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (int t = 0; t < n; ++t) {
                if (tree) go_to_parent(first, t);
                step(first, t);
            }
        }
        if (tokens > 0 && p->capture == CAPTURE_FINAL) store(state());
    }

    void zero_out() {
        int rows = metal::min((int)ROWS, p->head_v_dim - row_begin);
        for (int i = tid; i < tokens * rows; i += THREADS)
            store_from_f32(b.out, p->out_dtype, out_at(i / rows, i % rows), 0.0f);
    }

    // Threadgroup memory; the host reserves as much.
    void share_out(threadgroup float* shared) {
        decay_len = p->per_channel ? KP : 1;
        keys = shared;
        queries = keys + (p->chunk + 1) * KP;
        decays = queries + p->chunk * KP;
        values = decays + (p->chunk + 1) * decay_len;
        betas = values + p->chunk * ROWS;
        parents = (threadgroup int*)(betas + p->chunk);
    }

    // ---- where things lie ----

    long out_at(int t, int row) {
        return (start + (long)t) * p->out_stride + (long)hv * p->head_v_dim + row_begin + row;
    }
    long head_of(long entry) { return entry * p->num_v_heads + hv; }
    device Element* state() {
        return (device Element*)b.state + slot * p->state_stride +
               ((long)hv * p->head_v_dim + row_begin) * p->head_k_dim;
    }
    device Element* captured(int t) {
        return (device Element*)b.captured +
               (head_of((long)seq * p->capture_max + t) * p->head_v_dim + row_begin) * p->head_k_dim;
    }
    // A row of this group of lanes, counted from the first of the threadgroup's.
    int row_of(int r) { return group * NR + r; }
    bool inside(int row) { return row_begin + row < p->head_v_dim; }

    // ---- tokens ----

    // One simdgroup: a head of q or k, normalised and rounded as asked, padded with zeros.
    void prepare_key(device const uchar* from, int dtype, long first, threadgroup float* to, device float* log) {
        float x[NV], sum = 0.0f;
        UNROLL
        for (int j = 0; j < NV; ++j) {
            int i = lane + 32 * j;
            x[j] = i < p->head_k_dim ? load_as_f32(from, dtype, first + i) : 0.0f;
        }
        if (p->l2_norm) {
            UNROLL
            for (int j = 0; j < NV; ++j) sum = metal::fma(x[j], x[j], sum);
            float factor = 1.0f / metal::precise::sqrt(lanes_sum(sum) + p->eps);
            UNROLL
            for (int j = 0; j < NV; ++j) x[j] = x[j] * factor;
        }
        UNROLL
        for (int j = 0; j < NV; ++j) {
            int i = lane + 32 * j;
            if (p->round_io) x[j] = round_to(x[j], p->k_dtype);
            to[i] = x[j];
            if (log && i < p->head_k_dim) log[i] = x[j];
        }
    }
    // The decay factor of a token and channel (0 where a head has one).
    float decay_factor(int t, int channel) {
        int channels = p->per_channel ? p->head_k_dim : 1;
        long at = (start + (long)t) * p->decay_stride + (long)hv * channels + channel;
        float x = load_as_f32(b.decay, p->decay_dtype, at);
        if (p->decay_form == DECAY_LINEAR) return x;
        Pair g = {p->decay_form == DECAY_NEG_LOG ? -x : x, 0.0f};
        if (p->decay_form == DECAY_GATE) g = gate_log_decay(x, b.a_log[hv], b.dt_bias[(long)hv * channels + channel]);
        return exp_pair(g.hi, g.lo).hi;
    }

    // Tokens first .. first + n; with the capture DeltaLog this share of k and decay into the log as well.
    void prepare_window(int first, int n) {
        bool log = p->capture == CAPTURE_DELTA_LOG && row_begin == 0;
        bool log_key = log && (p->tiled ? hv < p->num_k_heads : hv % (p->num_v_heads / p->num_k_heads) == 0);
        for (int t = simd; t < n; t += SIMDS) {
            long token = start + (long)first + t, entry = log_first + first + t, key = (long)h * p->head_k_dim;
            device float* to = log_key ? b.log_k + (entry * p->num_k_heads + h) * p->head_k_dim : nullptr;
            prepare_key(b.k, p->k_dtype, token * p->k_stride + key, keys + t * KP, to);
            prepare_key(b.q, p->q_dtype, token * p->q_stride + key, queries + t * KP, nullptr);
        }
        int channels = p->per_channel ? p->head_k_dim : 1;
        for (int i = tid; i < n * decay_len; i += THREADS) {
            int t = first + i / decay_len, c = i % decay_len;
            float factor = c < channels ? decay_factor(t, c) : 1.0f;
            decays[i] = factor;
            if (log && c < channels) b.log_decay[head_of(log_first + t) * channels + c] = factor;
        }
        for (int t = THREADS - 1 - tid; t < n; t += THREADS) {
            long token = start + (long)first + t;
            float beta = load_as_f32(b.beta, p->beta_dtype, token * p->beta_stride + hv);
            if (p->beta_is_logit) beta = sigmoid(beta);
            betas[t] = p->round_io ? round_to(beta, p->k_dtype) : beta;
            if (tree) parents[t] = b.parents[token];
        }
        for (int i = tid; i < n * ROWS; i += THREADS) {
            int row = i % ROWS;
            long at = (start + (long)first + i / ROWS) * p->v_stride + (long)hv * p->head_v_dim + row_begin + row;
            values[i] = inside(row) ? load_as_f32(b.v, p->v_dtype, at) : 0.0f;
        }
    }

    // Pending entries first .. first + n.
    void prepare_pending(int first, int n) {
        int channels = p->per_channel ? p->head_k_dim : 1;
        for (int i = 0; i < n; ++i) {
            long path = (long)seq * p->pending_max + first + i;
            long entry = pending_first + (p->present & HAS_PENDING_PATH ? (int)b.pending_path[path] : first + i);
            device const float* k = b.pending_k + (entry * p->num_k_heads + h) * p->head_k_dim;
            device const float* decay = b.pending_decay + head_of(entry) * channels;
            device const float* delta = b.pending_delta + head_of(entry) * p->head_v_dim + row_begin;
            for (int j = tid; j < KP; j += THREADS) keys[i * KP + j] = j < p->head_k_dim ? k[j] : 0.0f;
            for (int c = tid; c < decay_len; c += THREADS) decays[i * decay_len + c] = c < channels ? decay[c] : 1.0f;
            for (int r = tid; r < ROWS; r += THREADS) values[i * ROWS + r] = inside(r) ? delta[r] : 0.0f;
        }
    }

    // ---- state ----

    // Zeros beyond K and V.
    void load(device const Element* from) {
        UNROLL
        for (int r = 0; r < NR; ++r) {
            int row = row_of(r);
            device const Element* at = from + (long)row * p->head_k_dim;
            UNROLL
            for (int j = 0; j < NV; ++j) {
                int first = 4 * (l8 + 8 * j);
                s[r][j] = float4(0.0f);
                if (!inside(row)) continue;
                if (p->whole) {
                    s[r][j] = load_four<S>(at + first);
                } else {
                    UNROLL
                    for (int e = 0; e < 4; ++e)
                        if (first + e < p->head_k_dim) s[r][j][e] = S::get(at[first + e]);
                }
            }
        }
    }
    void store(device Element* to) {
        UNROLL
        for (int r = 0; r < NR; ++r) {
            int row = row_of(r);
            if (!inside(row)) continue;
            device Element* at = to + (long)row * p->head_k_dim;
            UNROLL
            for (int j = 0; j < NV; ++j) {
                int first = 4 * (l8 + 8 * j);
                if (p->whole) {
                    store_four<S>(at + first, s[r][j]);
                } else {
                    UNROLL
                    for (int e = 0; e < 4; ++e)
                        if (first + e < p->head_k_dim) at[first + e] = S::put(s[r][j][e]);
                }
            }
        }
    }

    // ---- arithmetic ----

    // This lane's elements of vector j.
    float4 read(threadgroup const float* from, int j) { return ((threadgroup const float4*)from)[l8 + 8 * j]; }
    float4 read_decay(threadgroup const float* decay, int j) {
        return p->per_channel ? read(decay, j) : float4(decay[0]);
    }
    // The sum over a row's lanes, the same bits in each.
    float row_sum(float4 chains) {
        float x = (chains[0] + chains[1]) + (chains[2] + chains[3]);
        x = x + simd_shuffle_xor(x, (ushort)4);
        x = x + simd_shuffle_xor(x, (ushort)2);
        return x + simd_shuffle_xor(x, (ushort)1);
    }

    // S = S * decay, S = fma(delta, k, S), rounded.
    void replay(threadgroup const float* k, threadgroup const float* decay, threadgroup const float* delta) {
        UNROLL
        for (int j = 0; j < NV; ++j) {
            float4 kj = read(k, j), factor = read_decay(decay, j);
            UNROLL
            for (int r = 0; r < NR; ++r) {
                float4 decayed = s[r][j] * factor;
                s[r][j] = round_four<S>(metal::fma(float4(delta[row_of(r)]), kj, decayed));
            }
        }
    }

    // Token `first + t`, from the state in registers.
    void step(int first, int t) {
        threadgroup const float *k = keys + t * KP, *q = queries + t * KP, *decay = decays + t * decay_len;
        float4 kj[NV], chains[NR];
        UNROLL
        for (int r = 0; r < NR; ++r) chains[r] = float4(0.0f);
        UNROLL
        for (int j = 0; j < NV; ++j) {
            kj[j] = read(k, j);
            float4 factor = read_decay(decay, j);
            UNROLL
            for (int r = 0; r < NR; ++r) {
                s[r][j] = s[r][j] * factor;
                chains[r] = metal::fma(s[r][j], kj[j], chains[r]);
            }
        }
        float beta = betas[t], delta[NR];
        UNROLL
        for (int r = 0; r < NR; ++r) {
            delta[r] = (values[t * ROWS + row_of(r)] - row_sum(chains[r])) * beta;
            chains[r] = float4(0.0f);
        }
        UNROLL
        for (int j = 0; j < NV; ++j) {
            float4 qj = read(q, j);
            UNROLL
            for (int r = 0; r < NR; ++r) {
                float4 updated = metal::fma(float4(delta[r]), kj[j], s[r][j]);
                chains[r] = metal::fma(updated, qj, chains[r]);
                s[r][j] = round_four<S>(updated);
            }
        }
        UNROLL
        for (int r = 0; r < NR; ++r) {
            float o = row_sum(chains[r]);
            int row = row_of(r);
            // Lanes of a group take turns at its rows.
            if (l8 != r || !inside(row)) continue;
            store_from_f32(b.out, p->out_dtype, out_at(first + t, row), p->scale * o);
            if (p->capture == CAPTURE_DELTA_LOG)
                b.log_delta[head_of(log_first + first + t) * p->head_v_dim + row_begin + row] = delta[r];
            if (tree) values[t * ROWS + row] = delta[r];
        }
        if (p->capture == CAPTURE_PER_TOKEN) store(captured(first + t));
    }

    // ---- trees ----

    int parent_of(int first, int t) { return t >= first ? parents[t - first] : b.parents[start + t]; }

    // The state after the parent of token `first + t` into registers, which hold that after the token before. Under a capture
    // that keeps it, the committed state lies in memory; each thread reads there what it has written itself.
    void go_to_parent(int first, int t) {
        int parent = parents[t];
        if (parent == first + t - 1) return;
        if (parent >= 0 && p->capture == CAPTURE_PER_TOKEN) return load(captured(parent));
        load(state());
        int depth = 0;
        for (int a = parent; a >= 0; a = parent_of(first, a)) ++depth;
        // Deltas of this chunk lie where v was, written by other lanes of the row.
        simdgroup_barrier(mem_flags::mem_threadgroup);
        // From the root down.
        for (; depth > 0; --depth) {
            int a = parent;
            for (int i = 1; i < depth; ++i) a = parent_of(first, a);
            if (a >= first)
                replay(keys + (a - first) * KP, decays + (a - first) * decay_len, values + (a - first) * ROWS);
            else
                replay_distant(a);
        }
    }

    // An ancestor of a chunk before: its key and decay prepared again, its deltas as they were logged. All threads of the group
    // take the same way through the tree.
    void replay_distant(int a) {
        threadgroup float *key = keys + p->chunk * KP, *decay = decays + p->chunk * decay_len;
        threadgroup_barrier(mem_flags::mem_device);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        long token = start + (long)a;
        if (simd == 0) prepare_key(b.k, p->k_dtype, token * p->k_stride + (long)h * p->head_k_dim, key, nullptr);
        int channels = p->per_channel ? p->head_k_dim : 1;
        for (int c = tid; c < decay_len; c += THREADS) decay[c] = c < channels ? decay_factor(a, c) : 1.0f;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        device const float* delta = b.log_delta + head_of(log_first + a) * p->head_v_dim + row_begin;
        UNROLL
        for (int j = 0; j < NV; ++j) {
            float4 kj = read(key, j), factor = read_decay(decay, j);
            UNROLL
            for (int r = 0; r < NR; ++r) {
                float of_row = inside(row_of(r)) ? delta[row_of(r)] : 0.0f;
                float4 decayed = s[r][j] * factor;
                s[r][j] = round_four<S>(metal::fma(float4(of_row), kj, decayed));
            }
        }
    }
};
