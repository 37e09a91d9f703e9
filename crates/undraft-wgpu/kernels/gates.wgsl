// The gates, in pairs of f32: what f64 is used for elsewhere.

fn pair_add(a: Pair, b: Pair) -> Pair {
    let s = two_sum(a.hi, b.hi);
    return fast_two_sum(s.hi, add(s.lo, add(a.lo, b.lo)));
}
fn pair_mul(a: Pair, b: Pair) -> Pair {
    let product = two_product(a.hi, b.hi);
    return fast_two_sum(product.hi, mad(a.lo, b.hi, mad(a.hi, b.lo, product.lo)));
}

// exp(x), within 2^-26 of it; 0 below -104.
fn pair_exp(x: Pair) -> Pair {
    let shifted = mad(x.hi, LOG2_E, TO_INTEGER);
    let n = sub(shifted, TO_INTEGER);
    let low = two_product(n, LN2_LOW);
    let reduced = two_sum(mad(n, -LN2_HIGH, x.hi), -low.hi);
    let r = fast_two_sum(reduced.hi, add(sub(reduced.lo, low.lo), x.lo));
    var q = 2.48015873e-5;
    q = mad(q, r.hi, 1.98412698e-4);
    q = mad(q, r.hi, 1.38888889e-3);
    q = mad(q, r.hi, 8.33333333e-3);
    q = mad(q, r.hi, 4.16666667e-2);
    q = mad(q, r.hi, 1.66666667e-1);
    q = mad(q, r.hi, 0.5);
    let tail = mad(q, mul(r.hi, r.hi), mad(r.lo, r.hi, r.lo));
    let first = two_sum(1.0, r.hi);
    let y = fast_two_sum(first.hi, add(first.lo, tail));
    let power = clamp(i32(n), -250, 250);
    let nothing = x.hi < -104.0;
    return Pair(select(times_power_of_two(y.hi, power), 0.0, nothing), select(times_power_of_two(y.lo, power), 0.0, nothing));
}
// a / b for b in 1..=4.
fn pair_div(a: Pair, b: Pair) -> Pair {
    let r = reciprocal(b.hi);
    let q = mul(a.hi, r);
    let rest = mad(-q, b.lo, add(residue(a.hi, b.hi, q), a.lo));
    return fast_two_sum(q, mul(rest, r));
}
// ln(1 + exp(x)) = max(x, 0) + ln(1 + y) with y = exp(-|x|), and ln(1 + y) = 2 artanh(s) with s = y / (2 + y) <= 1/3.
fn pair_softplus(x: Pair) -> Pair {
    let positive = x.hi > 0.0;
    let sign = select(1.0, -1.0, positive);
    let y = pair_exp(Pair(mul(sign, x.hi), mul(sign, x.lo)));
    let s = pair_div(y, pair_add(Pair(2.0, 0.0), y));
    let square = mul(s.hi, s.hi);
    var series = 5.88235294e-2;
    series = mad(series, square, 6.66666667e-2);
    series = mad(series, square, 7.69230769e-2);
    series = mad(series, square, 9.09090909e-2);
    series = mad(series, square, 1.11111111e-1);
    series = mad(series, square, 1.42857143e-1);
    series = mad(series, square, 0.2);
    series = mad(series, square, 3.33333333e-1);
    let rest = mad(mul(s.hi, square), series, s.lo);
    let logarithm = fast_two_sum(mul(2.0, s.hi), mul(2.0, rest));
    // A NaN is not positive and stays one.
    if !positive { return logarithm; }
    return pair_add(x, logarithm);
}
// -exp(A_log) * softplus(a + dt_bias).
fn gate_log_decay(a: f32, a_log: f32, dt_bias: f32) -> Pair {
    let x = two_sum(a, dt_bias);
    // There softplus is exp, and one exp instead of two products keeps its bits where small parts of numbers are taken for 0.
    if x.hi < -40.0 {
        let g = pair_exp(pair_add(x, Pair(a_log, 0.0)));
        return Pair(-g.hi, -g.lo);
    }
    let g = pair_mul(pair_exp(Pair(a_log, 0.0)), pair_softplus(x));
    return Pair(-g.hi, -g.lo);
}
// 1 / (1 + exp(-x)), nearly always the number nearest to it.
fn gate_sigmoid(x: f32) -> f32 {
    let y = pair_exp(Pair(-abs(x), 0.0));
    if x < -40.0 { return y.hi; }
    let above = pair_add(Pair(1.0, 0.0), y);
    if x >= 0.0 { return pair_div(Pair(1.0, 0.0), above).hi; }
    return pair_div(y, above).hi;
}
