// The recurrence for heads of K = UNDRAFT_K, a multiple of 32, for which the fat binary has no kernels of its own: compiled
// when a program asks for it.
#include "recurrent_kernels.cuh"

SHORT(UNDRAFT_K, 1, false, false, false, 4, UNDRAFT_K <= 128 ? 5 : 4, chain)
SHORT(UNDRAFT_K, 1, false, false, true, 4, UNDRAFT_K <= 128 ? 5 : 4, pending)
#if UNDRAFT_K <= 128
SHORT(UNDRAFT_K, 4, false, false, false, 4, 4, chain)
SHORT(UNDRAFT_K, 4, true, false, false, 8, 2, tree)
ANY(UNDRAFT_K, 2, true, any)
#else
SHORT(UNDRAFT_K, 2, false, false, false, 4, 4, chain)
SHORT(UNDRAFT_K, 2, true, false, false, 4, 3, tree)
ANY(UNDRAFT_K, 1, true, any)
#endif
