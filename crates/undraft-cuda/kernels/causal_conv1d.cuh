// The taps of the causal depthwise convolution, the same for windows, trees and prompts.
#pragma once
#include "prelude.cuh"

#define MAX_WIDTH 8

// Taps and inputs are aligned at the end: the last of MAX_WIDTH is the present token, the first MAX_WIDTH - width are unused.
struct Taps {
    float weight[MAX_WIDTH];
    float bias;
    int first, silu;

    // weight [W, C], last tap = the present token.
    __device__ __forceinline__ void load(const float* w, const float* b, int width, i64 channels, i64 c, int with_silu) {
        first = MAX_WIDTH - width;
        silu = with_silu;
#pragma unroll
        for (int j = 0; j < MAX_WIDTH; ++j) weight[j] = j >= first ? w[(j - first) * channels + c] : 0.0f;
        bias = b ? b[c] : 0.0f;
    }
    // Rising taps, one FMA each.
    __device__ __forceinline__ float apply(const float (&x)[MAX_WIDTH]) const {
        float acc = bias;
#pragma unroll
        for (int j = 0; j < MAX_WIDTH; ++j)
            if (j >= first) acc = __fmaf_rn(weight[j], x[j], acc);
        return silu ? __fmul_rn(acc, sigmoid32(acc)) : acc;
    }
};

// Every input one place older, then the newest.
__device__ __forceinline__ void shift_in(float (&x)[MAX_WIDTH], float newest) {
#pragma unroll
    for (int j = 0; j + 1 < MAX_WIDTH; ++j) x[j] = x[j + 1];
    x[MAX_WIDTH - 1] = newest;
}
