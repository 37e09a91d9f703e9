// What the kernels share: element types, arithmetic that rounds as it says, elementary functions.
//
// Compilers of shaders may contract a product and a sum, and some take sums and products apart and put them together anew. So no
// sum here sees a product: what has been rounded goes through `opaque`, which hides it from them. Functions of the language
// that may be inexact (exp, log, sqrt, division) are not used.

// Element types of tensors.
const F32 = 0u;
const BF16 = 1u;
const F16 = 2u;
// What a kernel is compiled for that serves both of 16 bits.
const ANY_HALF = 3u;
// What a kernel is compiled for that serves all.
const ANY = 4u;

const INFINITY_BITS = 0x7f800000u;

// The same number, of which no compiler knows that it is.
fn opaque(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ p.zero); }
// Rounded once each.
fn add(a: f32, b: f32) -> f32 { return opaque(a + b); }
fn sub(a: f32, b: f32) -> f32 { return opaque(a - b); }
fn mul(a: f32, b: f32) -> f32 { return opaque(a * b); }

// a * b + c: the device's own, rounded once where its fma is fused and twice elsewhere, the same in every kernel.
fn mad(a: f32, b: f32, c: f32) -> f32 {
    if FUSED == 1u { return fma(a, b, c); }
    return add(mul(a, b), c);
}

// hi + lo, lo at most half a unit in the last place of hi.
struct Pair { hi: f32, lo: f32 }

fn two_sum(a: f32, b: f32) -> Pair {
    let s = add(a, b);
    let of_b = sub(s, a);
    return Pair(s, add(sub(a, sub(s, of_b)), sub(b, of_b)));
}
// For |a| >= |b|.
fn fast_two_sum(a: f32, b: f32) -> Pair {
    let s = add(a, b);
    return Pair(s, sub(b, sub(s, a)));
}
// The upper 12 bits.
fn upper(x: f32) -> f32 {
    let shifted = mul(4097.0, x);
    return sub(shifted, sub(shifted, x));
}
// The product, for factors below 2^100 whose product is above 2^-100 (T. J. Dekker's, where fma is not fused).
fn two_product(a: f32, b: f32) -> Pair {
    let product = mul(a, b);
    if FUSED == 1u { return Pair(product, fma(a, b, -product)); }
    let a_upper = upper(a);
    let a_lower = sub(a, a_upper);
    let b_upper = upper(b);
    let b_lower = sub(b, b_upper);
    var rest = sub(mul(a_upper, b_upper), product);
    rest = add(rest, mul(a_upper, b_lower));
    rest = add(rest, mul(a_lower, b_upper));
    return Pair(product, add(rest, mul(a_lower, b_lower)));
}

fn is_finite(x: f32) -> bool { return (bitcast<u32>(x) & INFINITY_BITS) != INFINITY_BITS; }

// a * b + c rounded once, on every device. Where fma is not fused it is put together from sums that lose nothing, of which the
// last but one is rounded to odd (S. Boldo and G. Melquiond); results below the smallest normal number may then round twice.
fn fused(a: f32, b: f32, c: f32) -> f32 {
    if FUSED == 1u { return fma(a, b, c); }
    let product = abs(mul(a, b));
    if !is_finite(a) || !is_finite(b) || product == 0.0 { return add(mul(a, b), c); }
    // Infinite or NaN, or so large that the product does not count.
    if !is_finite(c) || (product < 1e-30 && abs(c) > 1e-18) { return c; }
    // Small numbers are made larger by 2^100 and large ones smaller, which is exact.
    var scale = 1.0;
    if product < 1e-30 { scale = 1125899906842624.0; }
    if product > 1e30 { scale = 8.881784197001252e-16; }
    let uv = two_product(mul(a, scale), mul(b, scale));
    let low = two_sum(mul(mul(c, scale), scale), uv.lo);
    let high = two_sum(uv.hi, low.hi);
    let rest = two_sum(low.lo, high.lo);
    let bits = bitcast<u32>(rest.hi);
    // To odd: away from an even number, towards what is missing.
    let towards = select(bits - 1u, bits + 1u, (rest.lo > 0.0) == (rest.hi > 0.0));
    let odd = select(bits, towards, rest.lo != 0.0 && (bits & 1u) == 0u);
    let sum = add(high.hi, bitcast<f32>(odd));
    // Powers of two.
    let back = select(select(1.0, 8.881784197001252e-16, scale > 1.0), 1125899906842624.0, scale < 1.0);
    return mul(mul(sum, back), back);
}
// Of four neighbours: the state's update, whose product `scaled` meets no sum but that of `fused`.
fn fused4(a: f32, b: vec4<f32>, c: vec4<f32>) -> vec4<f32> {
    if FUSED == 1u { return fma(vec4<f32>(a), b, c); }
    return vec4<f32>(fused(a, b.x, c.x), fused(a, b.y, c.y), fused(a, b.z, c.z), fused(a, b.w, c.w));
}
fn scaled(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    if FUSED == 1u { return a * b; }
    return vec4<f32>(mul(a.x, b.x), mul(a.y, b.y), mul(a.z, b.z), mul(a.w, b.w));
}
// Adds a . b to a sum, element by element.
fn dot_onto(a: vec4<f32>, b: vec4<f32>, sum: f32) -> f32 {
    return mad(a.w, b.w, mad(a.z, b.z, mad(a.y, b.y, mad(a.x, b.x, sum))));
}

// ---- 16-bit elements, two a word, the first in the lower half ---------------------------------------------------

fn from_bf16(h: u32) -> f32 { return bitcast<f32>(h << 16u); }
fn from_f16(h: u32) -> f32 {
    let magnitude = h & 0x7fffu;
    let normal = (magnitude << 13u) + 0x38000000u;
    let special = (magnitude << 13u) | INFINITY_BITS;
    // Units of 2^-24.
    let subnormal = bitcast<u32>(f32(magnitude) * 5.9604644775390625e-8);
    let bits = select(select(normal, special, magnitude >= 0x7c00u), subnormal, magnitude < 0x400u);
    return bitcast<f32>(bits | ((h & 0x8000u) << 16u));
}
// Nearest even; a NaN stays one.
fn to_bf16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let rounded = (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
    return select(rounded, (bits >> 16u) | 0x40u, (bits & 0x7fffffffu) > INFINITY_BITS);
}
// Nearest even; beyond the largest number lies infinity; a NaN stays one.
fn to_f16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let magnitude = bits & 0x7fffffffu;
    let normal = (magnitude + 0xfffu + ((magnitude >> 13u) & 1u) - 0x38000000u) >> 13u;
    // In units of 2^-24; adding 2^23 rounds to an integer and leaves it in the low bits.
    let units = bitcast<f32>(magnitude) * 16777216.0;
    let subnormal = bitcast<u32>(add(units, 8388608.0)) & 0x7ffu;
    var h = select(normal, subnormal, magnitude < 0x38800000u);
    h = select(h, 0x7c00u, magnitude >= 0x477ff000u);
    h = select(h, 0x7e00u, magnitude > INFINITY_BITS);
    return h | ((bits >> 16u) & 0x8000u);
}
fn to_half(dtype: u32, x: f32) -> u32 {
    if dtype == BF16 { return to_bf16(x); }
    return to_f16(x);
}
fn from_half(dtype: u32, h: u32) -> f32 {
    if dtype == BF16 { return from_bf16(h); }
    return from_f16(h);
}
// Element `i` of a tensor, of which `word` is the word that it lies in.
fn element(dtype: u32, word: u32, i: u32) -> f32 {
    if dtype == F32 { return bitcast<f32>(word); }
    return from_half(dtype, (word >> ((i & 1u) * 16u)) & 0xffffu);
}
// The word that element `i` lies in.
fn word_of(dtype: u32, i: u32) -> u32 { return select(i >> 1u, i, dtype == F32); }
fn round_to(dtype: u32, x: f32) -> f32 {
    if dtype == F32 { return x; }
    return from_half(dtype, to_half(dtype, x));
}

// ---- elementary functions in f32 --------------------------------------------------------------------------------

const LOG2_E = 1.44269504;
// ln 2 in two parts; the first has 15 bits, so that up to 9 bits times it are exact.
const LN2_HIGH = 0.693145751953125;
const LN2_LOW = 1.428606765330187e-6;
// 1.5 * 2^23: adding it leaves the nearest integer in the low bits of the mantissa.
const TO_INTEGER = 12582912.0;

// 2^n for n in -252..=254, as two factors.
fn times_power_of_two(x: f32, n: i32) -> f32 {
    let half = n >> 1u;
    let rest = n - half;
    return x * bitcast<f32>(u32(half + 127) << 23u) * bitcast<f32>(u32(rest + 127) << 23u);
}
// exp(x), within 1 ULP; 0 below -104, infinity above 89.
fn exponential(x: f32) -> f32 {
    let shifted = mad(x, LOG2_E, TO_INTEGER);
    let n = sub(shifted, TO_INTEGER);
    let r = mad(n, -LN2_LOW, mad(n, -LN2_HIGH, x));
    var q = 1.98412698e-4;
    q = mad(q, r, 1.38888889e-3);
    q = mad(q, r, 8.33333333e-3);
    q = mad(q, r, 4.16666667e-2);
    q = mad(q, r, 1.66666667e-1);
    q = mad(q, r, 0.5);
    let y = add(mad(q, mul(r, r), r), 1.0);
    let scaled = times_power_of_two(y, clamp(i32(n), -250, 250));
    return select(select(scaled, 0.0, x < -104.0), bitcast<f32>(INFINITY_BITS), x > 89.0);
}
// a - b * q where the two are near each other.
fn residue(a: f32, b: f32, q: f32) -> f32 {
    let product = two_product(b, q);
    return sub(sub(a, product.hi), product.lo);
}
// 1 / x for finite x >= 2^-100, within 1 ULP.
fn reciprocal(x: f32) -> f32 {
    var r = bitcast<f32>(0x7ef311c7u - bitcast<u32>(x));
    r = mad(r, mad(-x, r, 1.0), r);
    r = mad(r, mad(-x, r, 1.0), r);
    r = mad(r, mad(-x, r, 1.0), r);
    return mad(r, mad(-x, r, 1.0), r);
}
// a / b for such b, nearly always the number nearest to it.
fn divide(a: f32, b: f32) -> f32 {
    let r = reciprocal(b);
    let q = mul(a, r);
    return mad(residue(a, b, q), r, q);
}
// 1 / sqrt(x) for finite x > 0, nearly always the number nearest to it; infinity at 0.
fn inverse_root(x: f32) -> f32 {
    var r = bitcast<f32>(0x5f375a86u - (bitcast<u32>(x) >> 1u));
    let half = mul(0.5, x);
    r = mul(r, mad(mul(-half, r), r, 1.5));
    r = mul(r, mad(mul(-half, r), r, 1.5));
    r = mul(r, mad(mul(-half, r), r, 1.5));
    // What is missing, with the square of r in two parts.
    let square = two_product(r, r);
    let missing = mad(-x, square.lo, residue(1.0, x, square.hi));
    r = mad(mul(0.5, r), missing, r);
    return select(r, bitcast<f32>(INFINITY_BITS), x == 0.0);
}
// 1 / (1 + exp(-x)).
fn sigmoid(x: f32) -> f32 {
    let e = exponential(-abs(x));
    return divide(select(e, 1.0, x >= 0.0), add(e, 1.0));
}

// ---- what calls are given ---------------------------------------------------------------------------------------

// How the decay is given.
const DECAY_LOG = 0u;
const DECAY_LINEAR = 1u;
const DECAY_NEG_LOG = 2u;
const DECAY_GATE = 3u;
// What a window leaves.
const CAPTURE_FINAL = 0u;
const CAPTURE_PER_TOKEN = 1u;
const CAPTURE_DELTA_LOG = 2u;
// The place of a list that is not given.
const NONE = 0xffffffffu;
