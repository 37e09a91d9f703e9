// How invocations lie in subgroups: each tells its lane, its subgroup's size, and what the lanes beside it are.

@group(0) @binding(0) var<storage, read_write> results: array<u32>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_size) size: u32,
) {
    results[4u * index] = lane;
    results[4u * index + 1u] = size;
    results[4u * index + 2u] = subgroupShuffleXor(index, 4u) ^ subgroupShuffleXor(index, 2u) ^ subgroupShuffleXor(index, 1u);
    results[4u * index + 3u] = subgroupShuffle(index, (lane & ~7u) | 5u);
}
