// dense_embed: rows of an embedding, widened.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | table | [vocab_size, len] | f32, bf16, f16 | in |
// | tokens | [num_tokens], ids beyond the table read its last row | u32 | in |
// | out | [num_tokens, len] | f32 | out |
//
// One invocation an element.

@group(0) @binding(0) var<storage, read> table: array<u32>;
@group(0) @binding(1) var<storage, read> tokens: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) num_workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let i = (workgroup.x + workgroup.y * num_workgroups.x) * THREADS + index;
    if i >= p.num_tokens * p.len { return; }
    let token = min(tokens[p.tokens_first + i / p.len], p.vocab_size - 1u);
    let at = token * p.len + i % p.len;
    out[p.out_first + i] = element(p.dtype, table[word_of(p.dtype, at)], at);
}
