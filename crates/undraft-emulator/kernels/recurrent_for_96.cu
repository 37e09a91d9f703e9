// The kernels that a GPU's program compiles for heads of K = 96.
#define UNDRAFT_K 96
#include "recurrent_for.cuh"
