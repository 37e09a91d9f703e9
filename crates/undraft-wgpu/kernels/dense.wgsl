// What the kernels of the dense parts share. Every sum runs in an order that follows from the sizes of the layer and from
// positions, never from the number of tokens of a call.

// Shares of a sum over a workgroup.
const SHARES = 8u;

var<workgroup> of_invocations: array<f32, THREADS>;
var<workgroup> of_shares: array<f32, SHARES>;

// Sum over the workgroup, the same bits in each invocation: neighbours in order, then their shares in order.
fn block_sum(x: f32, index: u32) -> f32 {
    of_invocations[index] = x;
    workgroupBarrier();
    if index < SHARES {
        var share = 0.0;
        for (var i = 0u; i < THREADS / SHARES; i++) { share = add(share, of_invocations[index * (THREADS / SHARES) + i]); }
        of_shares[index] = share;
    }
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < SHARES; i++) { sum = add(sum, of_shares[i]); }
    return sum;
}

// The largest number of a workgroup.
fn block_max(x: f32, index: u32) -> f32 {
    of_invocations[index] = x;
    workgroupBarrier();
    if index < SHARES {
        var share = of_invocations[index * (THREADS / SHARES)];
        for (var i = 1u; i < THREADS / SHARES; i++) { share = max(share, of_invocations[index * (THREADS / SHARES) + i]); }
        of_shares[index] = share;
    }
    workgroupBarrier();
    var most = of_shares[0];
    for (var i = 1u; i < SHARES; i++) { most = max(most, of_shares[i]); }
    return most;
}
