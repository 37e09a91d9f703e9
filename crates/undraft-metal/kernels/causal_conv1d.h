// The taps of the causal depthwise convolution, the same for windows, trees and prompts.
#pragma once
#include "gates.h"

#define MAX_WIDTH 8

// Taps and inputs are aligned at the end: the last of MAX_WIDTH is the present token, the first MAX_WIDTH - width are unused.
struct Taps {
    float weight[MAX_WIDTH];
    float bias;
    int first, silu;

    // weight [W, C], last tap = the present token.
    void load(device const float* w, device const float* b, int width, long channels, long c, int with_silu) {
        first = MAX_WIDTH - width;
        silu = with_silu;
        UNROLL
        for (int j = 0; j < MAX_WIDTH; ++j) weight[j] = j >= first ? w[(j - first) * channels + c] : 0.0f;
        bias = b ? b[c] : 0.0f;
    }
    // Rising taps, one FMA each.
    float apply(thread const float (&x)[MAX_WIDTH]) {
        float acc = bias;
        UNROLL
        for (int j = 0; j < MAX_WIDTH; ++j)
            if (j >= first) acc = metal::fma(weight[j], x[j], acc);
        return silu ? acc * quick_sigmoid(acc) : acc;
    }
};

// Every input one place older, then the newest.
inline void shift_in(thread float (&x)[MAX_WIDTH], float newest) {
    UNROLL
    for (int j = 0; j + 1 < MAX_WIDTH; ++j) x[j] = x[j + 1];
    x[MAX_WIDTH - 1] = newest;
}
