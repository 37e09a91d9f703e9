// Tokens and pending entries of the recurrence into workgroup memory.

// Element types of q, k and v, known when the kernel is compiled unless TOKENS is ANY.
fn dtype_of(given: u32) -> u32 {
    if TOKENS == ANY { return given; }
    return TOKENS;
}
fn token_element(dtype: u32, i: u32) -> f32 { return element(dtype, tokens[word_of(dtype, i)], i); }
fn gate_element(dtype: u32, i: u32) -> f32 { return element(dtype, gates[word_of(dtype, i)], i); }

// Four elements from element i on, of which `n` lie in the row: words of memory (WHOLE: they need not be looked at before all
// have been asked for), or the elements' bits.
fn fetch_four(dtype: u32, i: u32, n: u32) -> vec4<u32> {
    if WHOLE == 1u {
        if dtype == F32 { return vec4<u32>(tokens[i], tokens[i + 1u], tokens[i + 2u], tokens[i + 3u]); }
        return vec4<u32>(tokens[i >> 1u], tokens[(i >> 1u) + 1u], 0u, 0u);
    }
    var four = vec4<f32>();
    if n > 0u { four.x = token_element(dtype, i); }
    if n > 1u { four.y = token_element(dtype, i + 1u); }
    if n > 2u { four.z = token_element(dtype, i + 2u); }
    if n > 3u { four.w = token_element(dtype, i + 3u); }
    return bitcast<vec4<u32>>(four);
}
fn elements_of(dtype: u32, words: vec4<u32>) -> vec4<f32> {
    if WHOLE == 0u || dtype == F32 { return bitcast<vec4<f32>>(words); }
    return vec4<f32>(
        from_half(dtype, words.x & 0xffffu), from_half(dtype, words.x >> 16u), from_half(dtype, words.y & 0xffffu), from_half(dtype, words.y >> 16u)
    );
}
// This lane's part of q or k of a token.
fn fetch_row(is_key: bool, t: u32) -> array<vec4<u32>, NV> {
    let source = select(p.q_first, p.k_first, is_key) + (u.start + t) * select(p.q_stride, p.k_stride, is_key) + u.h * p.head_k_dim;
    let dtype = select(dtype_of(p.q_dtype), dtype_of(p.k_dtype), is_key);
    var words: array<vec4<u32>, NV>;
    for (var j = 0u; j < NV; j++) { // unroll
        let column = 4u * (u.lane + 8u * j);
        words[j] = fetch_four(dtype, source + column, p.head_k_dim - min(column, p.head_k_dim));
    }
    return words;
}
// The same normalised and rounded, as the call wants it. All lanes take part.
fn prepared_row(is_key: bool, words: array<vec4<u32>, NV>) -> array<vec4<f32>, NV> {
    let dtype = select(dtype_of(p.q_dtype), dtype_of(p.k_dtype), is_key);
    var x: array<vec4<f32>, NV>;
    var sum = 0.0;
    for (var j = 0u; j < NV; j++) { // unroll
        x[j] = elements_of(dtype, words[j]);
        sum = dot_onto(x[j], x[j], sum);
    }
    var factor = 1.0;
    if p.l2_norm == 1u { factor = inverse_root(add(sum_of_lanes(sum), p.eps)); }
    for (var j = 0u; j < NV; j++) { // unroll
        var four = x[j] * factor;
        if p.round_io == 1u {
            let to = dtype_of(p.k_dtype);
            four = vec4<f32>(round_to(to, four.x), round_to(to, four.y), round_to(to, four.z), round_to(to, four.w));
        }
        x[j] = four;
    }
    return x;
}

// What a decay factor and a beta are made of: elements, and the decay's weights.
struct Gate {
    x: f32,
    a_log: f32,
    dt_bias: f32,
}
// Of a token and channel (0 where a head has one decay).
fn fetch_decay(t: u32, channel: u32) -> Gate {
    let at = select(u.hv, u.hv * p.head_k_dim + channel, has_channels());
    var gate = Gate(gate_element(p.decay_dtype, p.decay_first + (u.start + t) * p.decay_stride + at), 0.0, 0.0);
    if p.decay_form == DECAY_GATE {
        gate.a_log = weights[p.a_log_first + u.hv];
        gate.dt_bias = weights[p.dt_bias_first + at];
    }
    return gate;
}
fn decay_factor(gate: Gate) -> f32 {
    if p.decay_form == DECAY_LINEAR { return gate.x; }
    var g = Pair(gate.x, 0.0);
    if p.decay_form == DECAY_NEG_LOG { g.hi = -gate.x; }
    if p.decay_form == DECAY_GATE { g = gate_log_decay(gate.x, gate.a_log, gate.dt_bias); }
    return pair_exp(g).hi;
}
fn fetch_beta(t: u32) -> f32 { return gate_element(p.beta_dtype, p.beta_first + (u.start + t) * p.beta_stride + u.hv); }
fn beta_factor(x: f32) -> f32 {
    var beta = x;
    if p.beta_is_logit == 1u { beta = gate_sigmoid(beta); }
    if p.round_io == 1u { beta = round_to(dtype_of(p.k_dtype), beta); }
    return beta;
}
// Entry of the log of pending entries.
fn pending_entry(i: u32) -> u32 {
    if p.pending_path != NONE { return u.pending_slot * p.pending_max + ints[p.pending_path + u.seq * p.pending_max + i]; }
    return u.pending_slot * p.pending_max + i;
}

// Pending entries entry .. entry + entries, and tokens first .. first + n; with `loads`, the state into registers. Everything is
// asked for before anything of it is used, the state last: the rest is prepared while it comes.
fn prepare(entry: u32, entries: u32, first: u32, n: u32, loads: bool) {
    var entry_keys: array<vec4<f32>, ENTRY_FOURS>;
    var entry_deltas: array<f32, ENTRY_VALUES>;
    var entry_decay = 0.0;
    if entries > 0u {
        for (var i = 0u; i < ENTRY_FOURS; i++) { // unroll
            let at = u.index + THREADS * i;
            let of_key = p.pending_k_first + (pending_entry(entry + min(at / FOURS, entries - 1u)) * p.num_k_heads + u.h) * p.head_k_dim;
            entry_keys[i] = fetch_log(of_key, 4u * (at % FOURS));
        }
        for (var i = 0u; i < ENTRY_VALUES; i++) { // unroll
            let at = u.index + THREADS * i;
            let head = pending_entry(entry + min(at / ROWS, entries - 1u)) * p.num_v_heads + u.hv;
            let row = at % ROWS;
            if WHOLE == 1u || row < u.rows { entry_deltas[i] = log[p.pending_delta_first + head * p.head_v_dim + u.row_begin + row]; }
        }
        if !has_channels() && u.index < entries {
            entry_decay = log[p.pending_decay_first + pending_entry(entry + u.index) * p.num_v_heads + u.hv];
        }
    }
    var rows: array<array<vec4<u32>, NV>, TURNS>;
    var v: array<f32, VALUES>;
    // Lanes of decays and of betas: far from each other, and from those that rows of q and k come to first.
    let decay_of = u.index - (THREADS - TM);
    let beta_of = u.index - THREADS / 2u;
    var decay_gate: Gate;
    var beta_gate: f32;
    if n > 0u {
        for (var turn = 0u; turn < TURNS; turn++) { // unroll
            let i = turn * GROUPS + u.group;
            if i < 2u * n { rows[turn] = fetch_row((i & 1u) == 0u, first + (i >> 1u)); }
        }
        for (var i = 0u; i < VALUES; i++) { // unroll
            let at = u.index + THREADS * i;
            let row = at % ROWS;
            if at / ROWS < n && (WHOLE == 1u || row < u.rows) {
                v[i] = token_element(dtype_of(p.v_dtype), p.v_first + (u.start + first + at / ROWS) * p.v_stride + u.hv * p.head_v_dim + u.row_begin + row);
            }
        }
        if !has_channels() && decay_of < n { decay_gate = fetch_decay(first + decay_of, 0u); }
        if beta_of < n { beta_gate = fetch_beta(first + beta_of); }
    }
    if loads { load_rows(); }

    if entries > 0u {
        for (var i = 0u; i < ENTRY_FOURS; i++) { // unroll
            let at = u.index + THREADS * i;
            if at < PM * FOURS { pending_keys[at] = entry_keys[i]; }
        }
        for (var i = 0u; i < ENTRY_VALUES; i++) { // unroll
            let at = u.index + THREADS * i;
            if at < PM * ROWS { pending_deltas[at] = entry_deltas[i]; }
        }
        if has_channels() {
            prepare_pending_channels(entry, entries);
        } else if u.index < entries {
            pending_decays[u.index * DECAY_FOURS] = vec4<f32>(entry_decay);
        }
    }
    if n == 0u { return; }
    for (var i = 0u; i < VALUES; i++) { // unroll
        let at = u.index + THREADS * i;
        if at < TM * ROWS { values[at] = v[i]; }
    }
    if has_channels() {
        prepare_channels(first, n);
    } else if decay_of < n {
        let factor = decay_factor(decay_gate);
        decays[decay_of * DECAY_FOURS] = vec4<f32>(factor);
        let entry_of = u.log_slot * p.log_max + first + decay_of;
        if u.logs_decay { log[p.log_decay_first + entry_of * p.num_v_heads + u.hv] = factor; }
    }
    if beta_of < n { betas[beta_of] = beta_factor(beta_gate); }
    for (var turn = 0u; turn < TURNS; turn++) { // unroll
        let i = turn * GROUPS + u.group;
        let is_key = (i & 1u) == 0u;
        let t = i >> 1u;
        let row = prepared_row(is_key, rows[turn]);
        if i < 2u * n {
            for (var j = 0u; j < NV; j++) { // unroll
                if is_key { keys[t * FOURS + u.lane + 8u * j] = row[j]; } else { queries[t * FOURS + u.lane + 8u * j] = row[j]; }
            }
            if is_key && u.logs_key {
                let to = p.log_k_first + ((u.log_slot * p.log_max + first + t) * p.num_k_heads + u.h) * p.head_k_dim;
                for (var j = 0u; j < NV; j++) { // unroll
                    let column = 4u * (u.lane + 8u * j);
                    if column < p.head_k_dim { log[to + column] = row[j].x; }
                    if column + 1u < p.head_k_dim { log[to + column + 1u] = row[j].y; }
                    if column + 2u < p.head_k_dim { log[to + column + 2u] = row[j].z; }
                    if column + 3u < p.head_k_dim { log[to + column + 3u] = row[j].w; }
                }
            }
        }
    }
}
// Four numbers of a key of the log.
fn fetch_log(of_key: u32, column: u32) -> vec4<f32> {
    let i = of_key + column;
    if WHOLE == 1u { return vec4<f32>(log[i], log[i + 1u], log[i + 2u], log[i + 3u]); }
    var four = vec4<f32>();
    if column < p.head_k_dim { four.x = log[i]; }
    if column + 1u < p.head_k_dim { four.y = log[i + 1u]; }
    if column + 2u < p.head_k_dim { four.z = log[i + 2u]; }
    if column + 3u < p.head_k_dim { four.w = log[i + 3u]; }
    return four;
}
// Decays of channels: of tokens first .. first + n.
fn prepare_channels(first: u32, n: u32) {
    for (var i = u.index; i < n * KP; i += THREADS) {
        let t = i / KP;
        let channel = i % KP;
        var factor = 1.0;
        if channel < p.head_k_dim {
            factor = decay_factor(fetch_decay(first + t, channel));
            let head = (u.log_slot * p.log_max + first + t) * p.num_v_heads + u.hv;
            if u.logs_decay { log[p.log_decay_first + head * p.head_k_dim + channel] = factor; }
        }
        decays[i >> 2u][i & 3u] = factor;
    }
}
// Of pending entries.
fn prepare_pending_channels(entry: u32, entries: u32) {
    for (var i = u.index; i < entries * KP; i += THREADS) {
        let head = pending_entry(entry + i / KP) * p.num_v_heads + u.hv;
        let channel = i % KP;
        var factor = 1.0;
        if channel < p.head_k_dim { factor = log[p.pending_decay_first + head * p.head_k_dim + channel]; }
        pending_decays[i >> 2u][i & 3u] = factor;
    }
}
