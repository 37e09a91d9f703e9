// The kernels that a GPU's program compiles for heads of K = 192.
#define UNDRAFT_K 192
#include "recurrent_for.cuh"
