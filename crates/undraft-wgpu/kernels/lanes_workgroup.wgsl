// Exchange among the lanes of a group of eight invocations, through workgroup memory. All invocations of a workgroup take
// part.

var<workgroup> exchanged: array<f32, THREADS>;

// The number of the lane whose index differs in `mask`, a constant below 8.
fn lane_xor(index: u32, x: f32, mask: u32) -> f32 {
    exchanged[index] = x;
    workgroupBarrier();
    let y = exchanged[index ^ mask];
    workgroupBarrier();
    return y;
}
