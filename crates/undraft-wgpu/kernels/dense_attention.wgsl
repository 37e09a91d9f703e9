// dense_attention: the parts of all segments added up in order, times the sigmoid of the gate.
//
// | name | shape | dtype | direction |
// | --- | --- | --- | --- |
// | parts | [num_tokens, num_heads, num_segments, D + 2]: weighted values, maximum, sum | f32 | in |
// | gate | [num_tokens, num_heads], heads 2 D and tokens gate_stride elements apart | f32 | in |
// | words | element len_at: positions held; token t stands at that + offset + t | u32 | in |
// | out | [num_tokens, num_heads, D] | f32 | out |
//
// One workgroup a (head, token).

const SEGMENT = 128u;

@group(0) @binding(0) var<storage, read> parts: array<f32>;
@group(0) @binding(1) var<storage, read> gate: array<f32>;
@group(0) @binding(2) var<storage, read> words: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) num_workgroups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let unit = workgroup.x + workgroup.y * num_workgroups.x;
    if unit >= p.num_tokens * p.num_heads { return; }
    let head = unit % p.num_heads;
    let t = unit / p.num_heads;
    let D = p.head_dim;
    let segments = (words[p.len_at] + p.offset + t) / SEGMENT + 1u;
    let first = p.parts_first + unit * p.num_segments * (D + 2u);
    var most = parts[first + D];
    for (var s = 1u; s < segments; s++) { most = max(most, parts[first + s * (D + 2u) + D]); }
    for (var i = index; i < D; i += THREADS) {
        var acc = 0.0;
        var sum = 0.0;
        for (var s = 0u; s < segments; s++) {
            let part = first + s * (D + 2u);
            let factor = exponential(sub(parts[part + D], most));
            acc = mad(parts[part + i], factor, acc);
            sum = mad(parts[part + D + 1u], factor, sum);
        }
        let open = sigmoid(gate[p.gate_first + t * p.gate_stride + head * 2u * D + i]);
        out[p.out_first + unit * D + i] = mul(divide(acc, sum), open);
    }
}
