// exp, softplus, the gate's log decay and sigmoid, with errors well below a unit in the last place: there is no f64 on the
// GPU, so that numbers are carried as sums of two floats. Made of IEEE operations alone.
#pragma once
#include "prelude.h"

// hi + lo, lo at most half a unit of hi.
struct Pair {
    float hi, lo;
};

inline bool is_finite(float x) { return (as_type<uint>(x) & 0x7f800000u) != 0x7f800000u; }
inline bool is_nan(float x) { return (as_type<uint>(x) & 0x7fffffffu) > 0x7f800000u; }

// a + b without error.
inline Pair two_sum(float a, float b) {
    float sum = a + b, of_b = sum - a;
    Pair x = {sum, (a - (sum - of_b)) + (b - of_b)};
    return x;
}
// The same where a has the larger exponent.
inline Pair quick_two_sum(float a, float b) {
    float sum = a + b;
    Pair x = {sum, b - (sum - a)};
    return x;
}

// exp(x.hi + x.lo), relative error about 2^-28.
inline Pair exp_pair(float hi, float lo) {
    Pair all = {hi, 0.0f};
    if (is_nan(hi)) return all;
    if (hi > 89.0f) {
        all.hi = INFINITY;
        return all;
    }
    if (hi < -104.0f) {
        all.hi = 0.0f;
        return all;
    }
    // x = n ln 2 + r; n times the first part of ln 2 is exact, and so is the difference.
    float n = metal::rint(hi * 1.44269504f);
    Pair r = two_sum(metal::fma(n, -0.693138122558593750f, hi), metal::fma(n, -9.05800061e-6f, lo));
    float s = r.hi, q = 2.48015873e-5f;
    q = metal::fma(q, s, 1.98412698e-4f);
    q = metal::fma(q, s, 1.38888889e-3f);
    q = metal::fma(q, s, 8.33333333e-3f);
    q = metal::fma(q, s, 4.16666667e-2f);
    q = metal::fma(q, s, 1.66666667e-1f);
    q = metal::fma(q, s, 0.5f);
    q = q * s * s;
    Pair one = two_sum(1.0f, s), sum = two_sum(one.hi, q);
    Pair y = quick_two_sum(sum.hi, (one.lo + sum.lo) + r.lo * sum.hi);
    // 2^n in two factors, each a normal number.
    int half_n = (int)n / 2, rest = (int)n - half_n;
    float first = as_type<float>((uint)(half_n + 127) << 23), second = as_type<float>((uint)(rest + 127) << 23);
    all.hi = y.hi * first * second;
    all.lo = is_finite(all.hi) ? y.lo * first * second : 0.0f;
    return all;
}

// ln(1 + y) for y of 0 to 1.
inline Pair log1p_pair(Pair y) {
    // 2 artanh(y / (2 + y)), then one step of Newton's method.
    float s = y.hi / (2.0f + y.hi), z = s * s, sum = 1.0f / 15.0f;
    sum = metal::fma(sum, z, 1.0f / 13.0f);
    sum = metal::fma(sum, z, 1.0f / 11.0f);
    sum = metal::fma(sum, z, 1.0f / 9.0f);
    sum = metal::fma(sum, z, 1.0f / 7.0f);
    sum = metal::fma(sum, z, 0.2f);
    sum = metal::fma(sum, z, 1.0f / 3.0f);
    float near = 2.0f * metal::fma(s * z, sum, s);
    Pair inverse = exp_pair(-near, 0.0f);
    float off = metal::fma(y.hi, inverse.hi, inverse.hi - 1.0f);
    off += metal::fma(y.hi, inverse.lo, inverse.lo) + y.lo * inverse.hi;
    return quick_two_sum(near, off);
}

// -exp(a_log) * softplus(a + dt_bias), softplus(x) = max(x, 0) + ln(1 + exp(-|x|)).
inline Pair gate_log_decay(float a, float a_log, float dt_bias) {
    Pair x = two_sum(a, dt_bias), softplus = {x.hi, 0.0f};
    if (is_finite(x.hi)) {
        bool negative = x.hi < 0.0f;
        softplus = log1p_pair(exp_pair(negative ? x.hi : -x.hi, negative ? x.lo : -x.lo));
        if (!negative) {
            Pair sum = two_sum(x.hi, softplus.hi);
            softplus = quick_two_sum(sum.hi, sum.lo + (x.lo + softplus.lo));
        }
    } else if (x.hi < 0.0f) {
        softplus.hi = 0.0f;
    }
    Pair rate = exp_pair(a_log, 0.0f);
    Pair g = {-rate.hi * softplus.hi, 0.0f};
    if (is_finite(g.hi))
        g = quick_two_sum(g.hi, metal::fma(-rate.hi, softplus.hi, -g.hi) -
                                    metal::fma(rate.hi, softplus.lo, rate.lo * softplus.hi));
    return g;
}

// 1 / (1 + exp(-x)).
inline float sigmoid(float x) {
    if (is_nan(x)) return x;
    Pair e = exp_pair(-metal::fabs(x), 0.0f), sum = two_sum(1.0f, e.hi);
    sum.lo += e.lo;
    float top = x < 0.0f ? e.hi : 1.0f, top_lo = x < 0.0f ? e.lo : 0.0f;
    float y = top / sum.hi;
    return y + ((metal::fma(-y, sum.hi, top) + top_lo) - y * sum.lo) / sum.hi;
}
// The same within about two units in the last place, for activations.
inline float quick_sigmoid(float x) { return 1.0f / (1.0f + exp_pair(-x, 0.0f).hi); }
