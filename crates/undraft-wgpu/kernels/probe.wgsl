// What a device's arithmetic is like: results of operations on numbers that the host sends. `results[4 + i]` is told by
// invocation i.

@group(0) @binding(0) var<storage, read_write> results: array<u32>;

@compute @workgroup_size(THREADS)
fn main(@builtin(local_invocation_index) index: u32) {
    if index == 0u {
        results[0] = bitcast<u32>(fma(p.x, p.x, p.y));
        results[1] = bitcast<u32>(p.smallest * p.half);
        results[2] = bitcast<u32>(fma(p.smallest, p.half, p.nothing));
        results[3] = bitcast<u32>(fma(p.one, p.one, p.tie));
    }
}
