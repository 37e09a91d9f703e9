//! Kernels with one mistake each, for tests that look whether it is found: name, text of the kernel, what stands there instead.

/// Of the recurrence, as kernels `mutant_<name>` in the place of `recurrent_f32_k64`.
pub(crate) const OF_RECURRENCE: [(&str, &str, &str); 13] = [
    ("misaligned", "load_four<S>(at + first)", "load_four<S>(at + 1 + first)"),
    ("without_decay", "                s[r][j] = s[r][j] * factor;\n", ""),
    (
        "replay_in_two_roundings",
        "metal::fma(float4(delta[row_of(r)]), kj, decayed)",
        "float4(delta[row_of(r)]) * kj + decayed",
    ),
    (
        "order_by_position",
        "- row_sum(chains[r])",
        "- row_sum(t % 2 ? float4(chains[r][2], chains[r][1], chains[r][0], chains[r][3]) : chains[r])",
    ),
    ("scale_before_sum", "p->scale * o", "o"),
    ("other_head_map", "h = p->tiled ?", "h = !p->tiled ?"),
    ("siblings_in_a_row", "        if (parent == first + t - 1) return;\n", "        return;\n"),
    (
        "state_not_kept",
        "        if (tokens > 0 && p->capture == CAPTURE_FINAL) store(state());\n",
        "        store(state());\n",
    ),
    ("logit_as_value", "if (p->beta_is_logit) beta = sigmoid(beta);", ""),
    ("delta_before_beta", " - row_sum(chains[r])) * beta;", " - row_sum(chains[r]));"),
    (
        "past_the_last_row",
        "            if (!inside(row)) continue;\n            device Element* at = to",
        "            device Element* at = to",
    ),
    (
        "without_barrier",
        "            prepare_window(first, n);\n            threadgroup_barrier(mem_flags::mem_threadgroup);\n",
        "            prepare_window(first, n);\n",
    ),
    (
        "without_barrier_before",
        "            threadgroup_barrier(mem_flags::mem_threadgroup);\n            prepare_window(first, n);\n",
        "            prepare_window(first, n);\n",
    ),
];

/// Of the compatible family, as kernels `mutant_<name>_{1,2,4}` in the place of `gated_delta_net_decode_capture_f32_{1,2,4}`.
pub(crate) const OF_DECODE: [(&str, &str, &str); 6] = [
    ("grows", "exp_pair(-g[gate], 0.0f)", "exp_pair(g[gate], 0.0f)"),
    ("grouped", "head % n_k_heads", "head / (n_v_heads / n_k_heads)"),
    ("without_beta", " * beta[gate];", ";"),
    ("captures_by_sequence", "state_capture[token * state_len", "state_capture[(token - seq * n_tokens) * state_len"),
    (
        "scale_in_state",
        "            s[j] = metal::fma(delta, kt[j], s[j]);",
        "            s[j] = metal::fma(delta, kt[j] * q_scale, s[j]);",
    ),
    (
        "captures_before",
        "state_capture[token * state_len + in_state + j] = s[j];",
        "state_capture[token * state_len + in_state + j] = s[j] - delta * kt[j];",
    ),
];

/// Of the dense parts, as kernels `mutant_<name>_<kernel>` in the place of the kernels of a library.
pub(crate) const OF_DENSE: [(&str, &str, &str, &str); 8] = [
    (
        "sum_without_barrier",
        "dense_rms_norm",
        "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    float sum = 0.0f;",
        "    float sum = 0.0f;",
    ),
    (
        "scores_without_barrier",
        "dense_attention",
        "scores[j + index] = dot;\n    }\n    threadgroup_barrier(mem_flags::mem_threadgroup);\n",
        "scores[j + index] = dot;\n    }\n",
    ),
    ("sees_the_next_position", "dense_attention", "(int)(position - first) + 1", "(int)(position - first) + 2"),
    ("segments_of_equal_weight", "dense_attention", "exp_pair(of[D] - most, 0.0f).hi", "1.0f"),
    (
        "order_by_rows",
        "dense_linear",
        "= metal::fma(v[r][3], u[3], sum);",
        "= T == 1 ? metal::fma(v[r][3], u[3], sum) : sum + v[r][3] * u[3];",
    ),
    ("last_of_equal_ones", "dense_argmax", "a.index < b.index", "a.index > b.index"),
    ("falling_numbers", "dense_moe", "(ushort)rank) < mine", "(ushort)rank) > mine"),
    (
        "turns_the_other_way",
        "dense_rotate",
        "first ? along - across : along + across",
        "first ? along + across : along - across",
    ),
];

fn replaced(text: &str, name: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "mutant {name}: the kernel has no longer the text `{from}`");
    text.replace(from, to)
}

/// Stem and text of each; `library` gives the text of the dense parts' libraries.
pub(crate) fn texts(recurrence: &str, decode: &str, library: impl Fn(&str) -> String) -> Vec<(String, String)> {
    let recurrences = OF_RECURRENCE.iter().map(|&(name, from, to)| {
        let text = replaced(recurrence, name, from, to);
        let (head, _) = text.split_once("RECURRENT_OF(F32State, f32)").expect("kernels begin with those of f32");
        (format!("mutant_{name}"), format!("{head}RECURRENT(mutant_{name}, F32State, 64, 4)\n"))
    });
    let decodes = OF_DECODE.iter().map(|&(name, from, to)| {
        let text = replaced(decode, name, from, to);
        let text = text.replace("gated_delta_net_decode_f32_##NSG", &format!("plain_{name}_##NSG"));
        (
            format!("mutant_{name}"),
            text.replace("gated_delta_net_decode_capture_f32_##NSG", &format!("mutant_{name}_##NSG")),
        )
    });
    let dense = OF_DENSE.iter().map(|&(name, stem, from, to)| {
        let text = replaced(&library(stem), name, from, to);
        (format!("mutant_{name}"), text.replace("dense_", &format!("mutant_{name}_dense_")))
    });
    recurrences.chain(decodes).chain(dense).collect()
}
