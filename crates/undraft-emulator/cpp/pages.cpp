// Pages of the host for device memory: address space is reserved once, and may be touched only where it is allocated.
#include <sys/mman.h>

#include <cstddef>

#include "watch.h"

// Address space of `bytes` bytes, at a page; null where there is none.
extern "C" void* lockstep_reserve(size_t bytes) {
    void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? nullptr : at;
}
// Lets whole pages be touched, or no longer. 0 where that was possible.
extern "C" int lockstep_protect(void* at, size_t bytes, int open) {
    return mprotect(at, bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}
extern "C" void lockstep_release(void* at, size_t bytes) { munmap(at, bytes); }
// From now on whoever touches the bytes is told of by the address sanitizer, or no longer; nothing without it.
extern "C" void lockstep_watch(void* at, size_t bytes, int on) { lockstep::watch(at, bytes, on); }
