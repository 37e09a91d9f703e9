// fused_recurrent_gated_delta_rule: decode, verify (chains and draft trees) and exact prefill, with the kept tokens of the
// window before replayed on the way.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | state | [num_slots, HV, V, K], slots state_stride apart | STATE | in, out |
// | captured | [num_seqs, capture_max, HV, V, K] | STATE | out |
// | out | [num_tokens, HV, V], rows out_stride apart | f32, bf16, f16 | out |
// | log | two logs of k [num_log_slots, max, H, K], decay [.., HV] or [.., HV, K], delta [.., HV, V]: pending entries, and the window's | f32 | in, out |
// | tokens | q, k [num_tokens, H, K] and v [num_tokens, HV, V], each from its first element on, rows by stride | f32, bf16, f16 | in |
// | gates | decay [num_tokens, HV] or [num_tokens, HV, K], beta [num_tokens, HV], likewise | f32, bf16, f16 | in |
// | weights | a_log [HV], dt_bias [HV] or [HV, K]; with decay form gate | f32 | in |
// | ints | cu_seqlens [num_seqs + 1], state_indices [num_seqs]; or none: parents [num_tokens], num_pending [num_seqs], pending_path [num_seqs, pending_max], pending_slots and log_slots [num_seqs] (none: as state_indices) | i32, u32 | in |
//
// A workgroup takes ROWS rows of a value head of a sequence. Eight lanes hold a row: lane l elements 4 (l + 8 j) .. + 3, which
// they add in rising j; then lanes l and l ^ 4 are added, l and l ^ 2, l and l ^ 1. That order depends on K alone. All control
// flow is uniform in a workgroup, but for what single lanes load and store.

@group(0) @binding(2) var<storage, read_write> out: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read_write> log: array<f32>;
@group(0) @binding(4) var<storage, read> tokens: array<u32>;
@group(0) @binding(5) var<storage, read> gates: array<u32>;
@group(0) @binding(6) var<storage, read> weights: array<f32>;
@group(0) @binding(7) var<storage, read> ints: array<u32>;

// K padded, vectors of four of it, groups of eight lanes, rows of a workgroup.
const KP = 32u * NV;
const FOURS = 8u * NV;
const GROUPS = THREADS / 8u;
const ROWS = GROUPS * NR;
// Room for a token's decay: its factor four times, or, with CHANNELS, those of all channels.
const DECAY_FOURS = 1u + CHANNELS * (FOURS - 1u);

// Tokens of the window, TM at a time, and pending entries, PM at a time.
var<workgroup> keys: array<vec4<f32>, TM * FOURS>;
var<workgroup> queries: array<vec4<f32>, TM * FOURS>;
var<workgroup> pending_keys: array<vec4<f32>, PM * FOURS>;
var<workgroup> decays: array<vec4<f32>, TM * DECAY_FOURS>;
var<workgroup> pending_decays: array<vec4<f32>, PM * DECAY_FOURS>;
var<workgroup> betas: array<f32, TM>;
// v, then delta; outputs, unless each token's go to memory at once.
var<workgroup> values: array<f32, TM * ROWS>;
var<workgroup> outputs: array<f32, (1u - DIRECT) * (TM * ROWS - 1u) + 1u>;
var<workgroup> pending_deltas: array<f32, PM * ROWS>;
// Of a tree that lies in workgroup memory whole: each node and its ancestors, a bit each; the nodes in the order of the walk.
var<workgroup> lineages: array<u32, TREES * (TM - 1u) + 1u>;
var<workgroup> order: array<u32, TREES * (TM - 1u) + 1u>;

// The state of this lane's rows.
var<private> s: array<array<vec4<f32>, NV>, NR>;

// What a workgroup works on.
struct Unit {
    index: u32,
    lane: u32,
    group: u32,
    seq: u32,
    hv: u32,
    h: u32,
    start: u32,
    num_tokens: u32,
    row_begin: u32,
    rows: u32,
    // First row's first element.
    state: u32,
    pending_slot: u32,
    log_slot: u32,
    // Whether this workgroup logs deltas, the decay, and the key.
    logs: bool,
    logs_decay: bool,
    logs_key: bool,
}
var<private> u: Unit;

// ---- sums over eight lanes --------------------------------------------------------------------------------------

fn sum_of_lanes(x: f32) -> f32 {
    var y = x + lane_xor(u.index, x, 4u);
    y = y + lane_xor(u.index, y, 2u);
    return y + lane_xor(u.index, y, 1u);
}
// The sums of NR rows: lane l gets that of row l / (8 / NR). The order is that of `sum_of_lanes`.
fn sums_of_rows(x: array<f32, NR>) -> f32 {
    var y: f32;
    if NR == 4u {
        let high = (u.lane & 4u) != 0u;
        let odd = (u.lane & 2u) != 0u;
        let x2 = x[min(2u, NR - 1u)];
        let x3 = x[min(3u, NR - 1u)];
        let x1 = x[min(1u, NR - 1u)];
        let a = select(x[0], x2, high) + lane_xor(u.index, select(x2, x[0], high), 4u);
        let b = select(x1, x3, high) + lane_xor(u.index, select(x3, x1, high), 4u);
        y = select(a, b, odd) + lane_xor(u.index, select(b, a, odd), 2u);
    } else if NR == 2u {
        let high = (u.lane & 4u) != 0u;
        let x1 = x[min(1u, NR - 1u)];
        y = select(x[0], x1, high) + lane_xor(u.index, select(x1, x[0], high), 4u);
        y = y + lane_xor(u.index, y, 2u);
    } else {
        y = x[0] + lane_xor(u.index, x[0], 4u);
        y = y + lane_xor(u.index, y, 2u);
    }
    return y + lane_xor(u.index, y, 1u);
}
// The other way: each lane gets the numbers of all rows from the lanes that hold their sums.
fn to_rows(x: f32) -> array<f32, NR> {
    var y: array<f32, NR>;
    if NR == 4u {
        let high = (u.lane & 4u) != 0u;
        let odd = (u.lane & 2u) != 0u;
        let beside = lane_xor(u.index, x, 2u);
        let even_row = select(x, beside, odd);
        let odd_row = select(beside, x, odd);
        let even_far = lane_xor(u.index, even_row, 4u);
        let odd_far = lane_xor(u.index, odd_row, 4u);
        y[0] = select(even_row, even_far, high);
        y[min(1u, NR - 1u)] = select(odd_row, odd_far, high);
        y[min(2u, NR - 1u)] = select(even_far, even_row, high);
        y[min(3u, NR - 1u)] = select(odd_far, odd_row, high);
    } else if NR == 2u {
        let high = (u.lane & 4u) != 0u;
        let far = lane_xor(u.index, x, 4u);
        y[0] = select(x, far, high);
        y[min(1u, NR - 1u)] = select(far, x, high);
    } else {
        y[0] = x;
    }
    return y;
}

// ---- states -----------------------------------------------------------------------------------------------------

// A row of this group, counted from the workgroup's first.
fn row_of(r: u32) -> u32 { return u.group * NR + r; }

fn load_rows() {
    for (var r = 0u; r < NR; r++) { // unroll
        for (var j = 0u; j < NV; j++) { // unroll
            let column = 4u * (u.lane + 8u * j);
            s[r][j] = vec4<f32>();
            if WHOLE == 1u || (row_of(r) < u.rows && column < p.head_k_dim) {
                s[r][j] = load_state(u.state + row_of(r) * p.head_k_dim + column, p.head_k_dim - column);
            }
        }
    }
}
fn store_rows() {
    for (var r = 0u; r < NR; r++) { // unroll
        for (var j = 0u; j < NV; j++) { // unroll
            let column = 4u * (u.lane + 8u * j);
            if WHOLE == 1u || (row_of(r) < u.rows && column < p.head_k_dim) {
                store_state(u.state + row_of(r) * p.head_k_dim + column, p.head_k_dim - column, s[r][j]);
            }
        }
    }
}
// First element of this unit's rows after token t.
fn captured_at(t: u32) -> u32 {
    return (((u.seq * p.capture_max + t) * p.num_v_heads + u.hv) * p.head_v_dim + u.row_begin) * p.head_k_dim;
}
fn load_captured_rows(t: u32) {
    for (var r = 0u; r < NR; r++) { // unroll
        for (var j = 0u; j < NV; j++) { // unroll
            let column = 4u * (u.lane + 8u * j);
            if WHOLE == 1u || (row_of(r) < u.rows && column < p.head_k_dim) {
                s[r][j] = load_captured(captured_at(t) + row_of(r) * p.head_k_dim + column, p.head_k_dim - column);
            }
        }
    }
}
fn store_captured_rows(t: u32) {
    for (var r = 0u; r < NR; r++) { // unroll
        for (var j = 0u; j < NV; j++) { // unroll
            let column = 4u * (u.lane + 8u * j);
            if WHOLE == 1u || (row_of(r) < u.rows && column < p.head_k_dim) {
                store_captured(captured_at(t) + row_of(r) * p.head_k_dim + column, p.head_k_dim - column, s[r][j]);
            }
        }
    }
}

// ---- arithmetic -------------------------------------------------------------------------------------------------

// Whether each channel has a decay; a kernel with room for them may be given one a head.
fn has_channels() -> bool { return CHANNELS == 1u && p.per_channel == 1u; }
// The decay of this lane's j-th four.
fn decay_at(t: u32, j: u32) -> u32 { return t * DECAY_FOURS + CHANNELS * p.per_channel * (u.lane + 8u * j); }

// S = S * decay, S = fma(delta, k, S), rounded: pending entry i, or token i of those in workgroup memory. Rows beyond the last
// hold anything, and nobody stores them.
fn replay_pending(i: u32) {
    var deltas: array<f32, NR>;
    for (var r = 0u; r < NR; r++) { // unroll
        deltas[r] = pending_deltas[i * ROWS + row_of(r)];
    }
    for (var j = 0u; j < NV; j++) { // unroll
        let key = pending_keys[i * FOURS + u.lane + 8u * j];
        let decay = pending_decays[decay_at(i, j)];
        for (var r = 0u; r < NR; r++) { // unroll
            s[r][j] = round_state(fused4(deltas[r], key, scaled(s[r][j], decay)));
        }
    }
}
fn replay_token(i: u32) {
    var deltas: array<f32, NR>;
    for (var r = 0u; r < NR; r++) { // unroll
        deltas[r] = values[i * ROWS + row_of(r)];
    }
    for (var j = 0u; j < NV; j++) { // unroll
        let key = keys[i * FOURS + u.lane + 8u * j];
        let decay = decays[decay_at(i, j)];
        for (var r = 0u; r < NR; r++) { // unroll
            s[r][j] = round_state(fused4(deltas[r], key, scaled(s[r][j], decay)));
        }
    }
}
// Output and delta of a row of the window's token t, by the lanes that own it. A word has two rows, which lanes beside each other
// own: NR is 2 or 4.
fn put_directly(t: u32, own: u32, delta: f32, o: f32) {
    let place = p.out_first + (u.start + t) * p.out_stride + u.hv * p.head_v_dim + u.row_begin + own;
    let owns = u.lane % (8u / NR) == 0u;
    if p.out_dtype == F32 {
        if owns { atomicStore(&out[place], bitcast<u32>(o)); }
    } else {
        let beside = lane_xor(u.index, o, 8u / NR);
        if u.lane % (16u / NR) == 0u {
            atomicStore(&out[place >> 1u], to_half(p.out_dtype, o) | (to_half(p.out_dtype, beside) << 16u));
        }
    }
    if owns && u.logs {
        let entry = u.log_slot * p.log_max + t;
        log[p.log_delta_first + (entry * p.num_v_heads + u.hv) * p.head_v_dim + u.row_begin + own] = delta;
    }
}
// Token t of those in workgroup memory, the window's token first + t, from the state in registers.
fn step(t: u32, first: u32) {
    var sum: array<f32, NR>;
    for (var j = 0u; j < NV; j++) { // unroll
        let key = keys[t * FOURS + u.lane + 8u * j];
        let decay = decays[decay_at(t, j)];
        for (var r = 0u; r < NR; r++) { // unroll
            s[r][j] = scaled(s[r][j], decay);
            sum[r] = dot_onto(s[r][j], key, sum[r]);
        }
    }
    // The lanes of a row's sum own the row: its v, delta and output.
    let own = row_of(u.lane / (8u / NR));
    let delta = mul(values[t * ROWS + own] - sums_of_rows(sum), betas[t]);
    let deltas = to_rows(delta);
    for (var r = 0u; r < NR; r++) { // unroll
        sum[r] = 0.0;
    }
    for (var j = 0u; j < NV; j++) { // unroll
        let key = keys[t * FOURS + u.lane + 8u * j];
        let query = queries[t * FOURS + u.lane + 8u * j];
        for (var r = 0u; r < NR; r++) { // unroll
            let updated = fused4(deltas[r], key, s[r][j]);
            sum[r] = dot_onto(updated, query, sum[r]);
            s[r][j] = round_state(updated);
        }
    }
    let o = sums_of_rows(sum);
    if DIRECT == 1u { put_directly(first + t, own, delta, p.scale * o); }
    // Every lane of the group has read v: it took part in the sums behind.
    if u.lane % (8u / NR) == 0u {
        values[t * ROWS + own] = delta;
        if DIRECT == 0u { outputs[t * ROWS + own] = p.scale * o; }
    }
}

// ---- outputs ----------------------------------------------------------------------------------------------------

fn put_half(i: u32, h: u32) {
    let shift = (i & 1u) * 16u;
    atomicAnd(&out[i >> 1u], ~(0xffffu << shift));
    atomicOr(&out[i >> 1u], h << shift);
}
fn output_half(t: u32, row: u32, zero: bool) -> u32 {
    if zero { return 0u; }
    return to_half(p.out_dtype, outputs[t * ROWS + row]);
}
// Outputs of tokens first .. first + n, or zeros.
fn put_outputs(first: u32, n: u32, zero: bool) {
    let place = p.out_first + (u.start + first) * p.out_stride + u.hv * p.head_v_dim + u.row_begin;
    if p.out_dtype == F32 {
        for (var i = u.index; i < n * ROWS; i += THREADS) {
            let row = i % ROWS;
            if row < u.rows {
                var bits = 0u;
                if !zero { bits = bitcast<u32>(outputs[i]); }
                atomicStore(&out[place + i / ROWS * p.out_stride + row], bits);
            }
        }
        return;
    }
    // The words that these rows lie in; the first and the last may be shared with others.
    const WORDS = ROWS / 2u + 1u - WHOLE;
    for (var i = u.index; i < n * WORDS; i += THREADS) {
        let t = i / WORDS;
        let begin = place + t * p.out_stride;
        let end = begin + u.rows;
        let word = (begin >> 1u) + i % WORDS;
        let low = 2u * word;
        let has_low = low >= begin && low < end;
        let has_high = low + 1u >= begin && low + 1u < end;
        if has_low && has_high {
            atomicStore(&out[word], output_half(t, low - begin, zero) | (output_half(t, low + 1u - begin, zero) << 16u));
        } else if has_low {
            put_half(low, output_half(t, low - begin, zero));
        } else if has_high {
            put_half(low + 1u, output_half(t, low + 1u - begin, zero));
        }
    }
}
fn log_deltas(first: u32, n: u32) {
    for (var i = u.index; i < n * ROWS; i += THREADS) {
        let row = i % ROWS;
        let entry = u.log_slot * p.log_max + first + i / ROWS;
        let to = p.log_delta_first + (entry * p.num_v_heads + u.hv) * p.head_v_dim + u.row_begin + row;
        if row < u.rows { log[to] = values[i]; }
    }
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) num_workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let unit = workgroup.x + workgroup.y * num_workgroups.x;
    if unit >= p.num_units { return; }
    let split = unit % p.splits;
    u.index = index;
    u.lane = index & 7u;
    u.group = index >> 3u;
    u.hv = unit / p.splits % p.num_v_heads;
    u.seq = unit / p.splits / p.num_v_heads;
    let v_heads_per_k_head = p.num_v_heads / p.num_k_heads;
    u.h = select(u.hv / v_heads_per_k_head, u.hv % p.num_k_heads, p.tiled == 1u);
    u.row_begin = split * ROWS;
    u.rows = min(ROWS, p.head_v_dim - u.row_begin);
    let slot = bitcast<i32>(ints[p.state_indices + u.seq]);
    u.start = ints[p.cu_seqlens + u.seq];
    let num_tokens = ints[p.cu_seqlens + u.seq + 1u] - u.start;
    u.num_tokens = num_tokens;
    var pending = 0u;
    if p.num_pending != NONE { pending = ints[p.num_pending + u.seq]; }
    if slot < 0 {
        put_outputs(0u, num_tokens, true);
        return;
    }
    if num_tokens == 0u && pending == 0u { return; }
    u.state = p.state_first + u32(slot) * p.state_stride + (u.hv * p.head_v_dim + u.row_begin) * p.head_k_dim;
    u.pending_slot = u32(slot);
    if p.pending_slots != NONE { u.pending_slot = ints[p.pending_slots + u.seq]; }
    u.log_slot = u32(slot);
    if p.log_slots != NONE { u.log_slot = ints[p.log_slots + u.seq]; }
    u.logs = p.capture == CAPTURE_DELTA_LOG;
    u.logs_decay = u.logs && split == 0u;
    u.logs_key = u.logs_decay && select(u.hv % v_heads_per_k_head == 0u, u.hv < p.num_k_heads, p.tiled == 1u);

    let is_tree = TREES == 1u && p.parents != NONE;
    var entry = 0u;
    var token = 0u;
    while entry < pending || token < num_tokens {
        let entries = min(PM, pending - entry);
        // Tokens come with the last entries.
        var n = 0u;
        if entry + entries == pending { n = min(TM, num_tokens - token); }
        let begins = entry == 0u && token == 0u;
        prepare(entry, entries, token, n, begins && EARLY == 1u);
        let walks = is_tree && n > 0u && n == num_tokens;
        if walks { prepare_parents(n); }
        workgroupBarrier();
        if begins && EARLY == 0u { load_rows(); }
        for (var i = 0u; i < entries; i++) { replay_pending(i); }
        entry += entries;
        if entry == pending && token == 0u && pending > 0u && (num_tokens == 0u || p.capture != CAPTURE_FINAL) { store_rows(); }
        if walks { prepare_order(n); }
        // The lineage of the node whose state is in registers.
        var at = 0u;
        for (var i = 0u; i < n; i++) {
            var t = i;
            if walks {
                t = order[i];
                let lineage = lineages[t];
                walk_to(lineage ^ (1u << t), at);
                at = lineage;
            } else if is_tree {
                go_to_parent(token, token + t);
            }
            step(t, token);
            if p.capture == CAPTURE_PER_TOKEN { store_captured_rows(token + t); }
        }
        if DIRECT == 0u && n > 0u {
            workgroupBarrier();
            put_outputs(token, n, false);
            if u.logs { log_deltas(token, n); }
        }
        token += n;
        if entry < pending || token < num_tokens {
            storageBarrier();
            workgroupBarrier();
        }
    }
    if num_tokens > 0u && p.capture == CAPTURE_FINAL { store_rows(); }
}
