// Numbers of floats that order as they do, and the largest of a workgroup.

// NaN of either sign and infinity are above all.
const ORDER_INVALID = 0xffffffffu;
const ORDER_MINUS_INFINITY = 0x007fffffu;
const INVALID = 0xffffffffu;

// Both zeros are the same.
fn order_of(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let magnitude = bits & 0x7fffffffu;
    if magnitude > INFINITY_BITS || bits == INFINITY_BITS { return ORDER_INVALID; }
    if magnitude == 0u { return 0x80000000u; }
    return select(bits | 0x80000000u, ~bits, bits != magnitude);
}

// An order and, of equal ones, the lower index above.
struct Ranked { order: u32, index: u32 }

fn above(a: Ranked, b: Ranked) -> bool {
    return a.order > b.order || (a.order == b.order && a.index < b.index);
}

var<workgroup> ranked: array<Ranked, THREADS>;

// The largest of the workgroup, in each invocation.
fn block_best(x: Ranked, index: u32) -> Ranked {
    workgroupBarrier();
    ranked[index] = x;
    workgroupBarrier();
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        if index < step && above(ranked[index + step], ranked[index]) { ranked[index] = ranked[index + step]; }
        workgroupBarrier();
    }
    return ranked[0];
}
