// dense_argmax_parts: the largest of every PART elements of every row, of equal ones the first.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | x | [num_rows, len] | f32 | in |
// | parts | [num_rows, num_parts, 2]: order and index | u32 | out |
//
// One workgroup a (part, row).

const PART = 1024u;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> parts: array<u32>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) num_workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let unit = workgroup.x + workgroup.y * num_workgroups.x;
    if unit >= p.num_rows * p.num_parts { return; }
    let row = unit / p.num_parts * p.len;
    let first = unit % p.num_parts * PART;
    var best = Ranked(0u, 0u);
    for (var i = first + index; i < min(first + PART, p.len); i += THREADS) {
        let candidate = Ranked(order_of(x[row + i]), i);
        if above(candidate, best) { best = candidate; }
    }
    best = block_best(best, index);
    if index == 0u {
        parts[2u * unit] = best.order;
        parts[2u * unit + 1u] = best.index;
    }
}
