// From one fiber to another: saves what a call preserves on the stack, exchanges the stacks, restores it.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && !defined(_WIN32)

// Where the stack lies is written to *from; `to` is what was written so when the other fiber left.
extern "C" void lockstep_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.globl lockstep_switch
.type lockstep_switch, @function
lockstep_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmpq *%rcx
.size lockstep_switch, .-lockstep_switch
)");

namespace lockstep {
// A stack on which the first switch calls `entry`, which never returns.
inline void* prepare_stack(void* top, void (*entry)()) {
    uint64_t* sp = (uint64_t*)((uintptr_t)top & ~(uintptr_t)15);
    *--sp = 0;  // where a call would have put the return address
    *--sp = (uint64_t)entry;
    for (int i = 0; i < 6; ++i) *--sp = 0;
    return sp;
}
}  // namespace lockstep

#elif defined(__aarch64__) && defined(__ELF__)

extern "C" void lockstep_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.globl lockstep_switch
.type lockstep_switch, %function
lockstep_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x2, sp
    str x2, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    br x30
.size lockstep_switch, .-lockstep_switch
)");

namespace lockstep {
inline void* prepare_stack(void* top, void (*entry)()) {
    uint64_t* sp = (uint64_t*)((uintptr_t)top & ~(uintptr_t)15) - 20;
    for (int i = 0; i < 20; ++i) sp[i] = 0;
    sp[11] = (uint64_t)entry;
    return sp;
}
}  // namespace lockstep

#else

#include <ucontext.h>

// Elsewhere a context lies at the top of each stack.
namespace lockstep {
constexpr size_t FALLBACK_STACK = 64 * 1024;
inline void* prepare_stack(void* top, void (*entry)()) {
    ucontext_t* context = (ucontext_t*)(((uintptr_t)top - sizeof(ucontext_t)) & ~(uintptr_t)63);
    getcontext(context);
    context->uc_stack.ss_sp = (char*)context - FALLBACK_STACK;
    context->uc_stack.ss_size = FALLBACK_STACK;
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
    return context;
}
}  // namespace lockstep

inline void lockstep_switch(void** from, void* to) {
    ucontext_t here;
    *from = &here;
    swapcontext(&here, (ucontext_t*)to);
}

#endif
