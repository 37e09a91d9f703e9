// Memory that kernels must not touch, as the address sanitizer is told of it.
#pragma once
#include <cstddef>

#ifdef LOCKSTEP_ADDRESS_SANITIZER
extern "C" void __asan_poison_memory_region(void const volatile* at, size_t bytes);
extern "C" void __asan_unpoison_memory_region(void const volatile* at, size_t bytes);
#endif

namespace lockstep {

inline void watch(void* at, size_t bytes, bool on) {
#ifdef LOCKSTEP_ADDRESS_SANITIZER
    on ? __asan_poison_memory_region(at, bytes) : __asan_unpoison_memory_region(at, bytes);
#else
    (void)at, (void)bytes, (void)on;
#endif
}

}  // namespace lockstep
