// dense_argmax: the largest of the parts of every row.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | parts | [num_rows, num_parts, 2]: order and index | u32 | in |
// | out | [num_rows]; 2^32 - 1 for a row with NaN or plus infinity, or of minus infinity alone | u32 | out |
//
// One workgroup a row.

@group(0) @binding(0) var<storage, read> parts: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) num_workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let row = workgroup.x + workgroup.y * num_workgroups.x;
    if row >= p.num_rows { return; }
    var best = Ranked(0u, 0u);
    for (var i = index; i < p.num_parts; i += THREADS) {
        let at = 2u * (row * p.num_parts + i);
        let candidate = Ranked(parts[at], parts[at + 1u]);
        if above(candidate, best) { best = candidate; }
    }
    best = block_best(best, index);
    let valid = best.order != ORDER_INVALID && best.order > ORDER_MINUS_INFINITY;
    if index == 0u { out[p.out_first + row] = select(INVALID, best.index, valid); }
}
