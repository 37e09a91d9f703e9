// Draft trees of the recurrence: the state after a token's parent.

fn parent_of(t: u32) -> i32 { return bitcast<i32>(ints[p.parents + u.start + t]); }

// Parents of nodes 0 .. n into workgroup memory, in the place of their order.
fn prepare_parents(n: u32) {
    if u.index < n { order[u.index] = ints[p.parents + u.start + u.index]; }
}
// The order of a walk from parents to children, in rising order among those of one parent, which goes back to the state before the
// window as seldom as can be: a node comes after its ancestors, and after the branches that leave its own at a smaller node.
fn prepare_order(n: u32) {
    var own = 0u;
    if u.index < n {
        for (var a = i32(u.index); a >= 0; a = bitcast<i32>(order[a])) { own |= 1u << u32(a); }
        lineages[u.index] = own;
    }
    workgroupBarrier();
    if u.index < n {
        var before = 0u;
        for (var t = 0u; t < n; t++) {
            let other = lineages[t];
            let differs = own ^ other;
            let first_is_others = (differs & (~differs + 1u) & other) != 0u;
            let is_ancestor = (own & other) == other;
            let is_below = (own & other) == own;
            if t != u.index && (is_ancestor || (first_is_others && !is_below)) { before++; }
        }
        order[before] = u.index;
    }
    workgroupBarrier();
}
// From the state after `at` (a lineage) to that after `ancestors`; a branch starts from the state before the window.
fn walk_to(ancestors: u32, at: u32) {
    if ancestors == at { return; }
    load_rows();
    // Owners wrote the deltas.
    workgroupBarrier();
    for (var rest = ancestors; rest != 0u; rest &= rest - 1u) { replay_token(countTrailingZeros(rest)); }
}

// The state after the parent of token t into registers, which hold that after the token before. Tokens from `first` on are in
// workgroup memory.
fn go_to_parent(first: u32, t: u32) {
    let parent = parent_of(t);
    if parent == i32(t) - 1 { return; }
    if p.capture == CAPTURE_PER_TOKEN && parent >= 0 {
        load_captured_rows(u32(parent));
        return;
    }
    load_rows();
    var depth = 0u;
    for (var a = parent; a >= 0; a = parent_of(u32(a))) { depth++; }
    // Owners wrote the deltas.
    workgroupBarrier();
    for (; depth > 0u; depth--) {
        var a = parent;
        for (var i = 1u; i < depth; i++) { a = parent_of(u32(a)); }
        if u32(a) >= first {
            replay_token(u32(a) - first);
        } else {
            prepare_distant(u32(a));
            replay_pending(0u);
            workgroupBarrier();
        }
    }
}
// An ancestor that is no longer in workgroup memory: its log entry in the place of pending entries. What this workgroup did not
// log, it prepares again.
fn prepare_distant(a: u32) {
    let row = prepared_row(true, fetch_row(true, a));
    if u.group == 0u {
        for (var j = 0u; j < NV; j++) { // unroll
            pending_keys[u.lane + 8u * j] = row[j];
        }
    }
    if !has_channels() {
        if u.index == 0u { pending_decays[0] = vec4<f32>(decay_factor(fetch_decay(a, 0u))); }
    } else {
        for (var c = u.index; c < KP; c += THREADS) {
            var factor_of_channel = 1.0;
            if c < p.head_k_dim { factor_of_channel = decay_factor(fetch_decay(a, c)); }
            pending_decays[c >> 2u][c & 3u] = factor_of_channel;
        }
    }
    let head = (u.log_slot * p.log_max + a) * p.num_v_heads + u.hv;
    for (var i = u.index; i < u.rows; i += THREADS) {
        pending_deltas[i] = log[p.log_delta_first + head * p.head_v_dim + u.row_begin + i];
    }
    workgroupBarrier();
}
