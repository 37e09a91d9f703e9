// Exchange among the lanes of a group of eight invocations, through the subgroup that they lie in. All invocations of a
// workgroup take part.

// The number of the lane whose index differs in `mask`, a constant below 8.
fn lane_xor(index: u32, x: f32, mask: u32) -> f32 { return subgroupShuffleXor(x, mask); }
