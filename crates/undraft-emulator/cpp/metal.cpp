// Threadgroup memory of a thread of the host.
#include "metal.h"

extern "C" unsigned char* lockstep_metal_shared() {
    alignas(16) static thread_local unsigned char memory[LOCKSTEP_METAL_SHARED];
    return memory;
}
