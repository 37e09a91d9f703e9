#include "lockstep.h"

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "switch.h"
#include "watch.h"

namespace lockstep {

thread_local Lane* lane;
thread_local const Block* block;

struct Copy {
    void* to;
    const void* from;
    size_t bytes;
    Copy* next;
};

// Numbers that only have to differ from round to round (splitmix64).
struct Shuffle {
    uint64_t state;
    uint64_t next() {
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }
    void apply(uint8_t* order, unsigned n) {
        for (unsigned i = n; i > 1; --i) std::swap(order[i - 1], order[next() % i]);
    }
};

struct Run;

struct Warp {
    Exchange exchange;
    Run* run;
    Lane* lanes;
    unsigned count;
    uint8_t order[LANES];
    unsigned position;  // in the order, of the lane that runs
    unsigned exited;
    bool parked;  // all lanes wait in the same barrier

    uint32_t everyone() const { return count == LANES ? ~0u : (1u << count) - 1; }
    void begin_round();
    Lane* next_ready();
    bool release();
    bool release_groups();
};

// A block that runs.
struct Run {
    LockstepSchedule schedule;
    Shuffle shuffle;
    Block block;
    void (*entry)(const void*);
    const void* param;
    std::vector<Lane> lanes;
    std::vector<Warp> warps;
    void* scheduler;  // its stack pointer, while a fiber runs
    // A signal that a fiber has got, and the address that it could not use.
    volatile int signal;
    void* volatile address;
    std::string failure;

    void set_failure(std::string message) {
        if (failure.empty()) failure = std::move(message);
    }
};

static thread_local Run* running;

static std::string describe(const Site& site) {
    return std::string(site.operation) + " (" + site.file + ":" + std::to_string(site.line) + ")";
}
static std::string describe(const Lane& l) {
    std::string who = "thread " + std::to_string(l.thread.x);
    if (l.state == Lane::EXITED) return who + " has returned";
    if (l.state == Lane::READY) return who + " runs";
    return who + " waits in " + describe(l.site);
}
static bool same(const Site& a, const Site& b) {
    return a.line == b.line && std::strcmp(a.operation, b.operation) == 0 && std::strcmp(a.file, b.file) == 0;
}
static bool same_collective(const Lane& a, const Lane& b) {
    return a.combine == b.combine && a.members == b.members && a.site.line == b.site.line &&
           (a.site.operation == b.site.operation || std::strcmp(a.site.operation, b.site.operation) == 0) &&
           (a.site.file == b.site.file || std::strcmp(a.site.file, b.site.file) == 0);
}

// ---- fibers -----------------------------------------------------------------------------------------------------

static void to_scheduler() {
    Lane* me = lane;
    lockstep_switch(&me->stack_pointer, running->scheduler);
}

// Lets the next lane run; comes back when this one is released.
static void yield() {
    Lane* me = lane;
    Warp& warp = *me->warp;
    Lane* next = warp.next_ready();
    while (!next && warp.release()) {
        warp.begin_round();
        next = warp.next_ready();
    }
    if (!next) return to_scheduler();
    if (next == me) return;
    lane = next;
    lockstep_switch(&me->stack_pointer, next->stack_pointer);
}

static void fiber() {
    running->entry(running->param);
    if (lane->first_copy) fail("the thread returns while copies are on their way", Site{"return", "", 0});
    lane->state = Lane::EXITED;
    ++lane->warp->exited;
    yield();
    // Nobody releases a lane that has returned.
    __builtin_unreachable();
}

void fail(const char* message, Site site) {
    running->set_failure(std::string(message) + ": thread " + std::to_string(lane->thread.x) + " in " + describe(site));
    to_scheduler();
    // The block is not taken up again.
    __builtin_unreachable();
}

void Warp::begin_round() {
    position = ~0u;
    if (run->schedule.order == 2) run->shuffle.apply(order, count);
}
Lane* Warp::next_ready() {
    while (++position < count) {
        Lane& l = lanes[order[position]];
        if (l.state == Lane::READY) return &l;
    }
    return nullptr;
}

// After a round, in which every lane came to wait or returned: releases those whose collective is complete. False where
// nobody can go on, be it in a barrier or by a mistake, which is then told.
bool Warp::release() {
    if (exited == count) return false;
    const Lane& first = lanes[0];
    bool together = exited == 0 && first.state != Lane::READY && (first.state == Lane::BARRIER || (first.members & everyone()) == everyone());
    for (unsigned i = 1; together && i < count; ++i)
        together = lanes[i].state == first.state && same_collective(lanes[i], first);
    if (!together) return release_groups();
    if (first.state == Lane::BARRIER) {
        parked = true;
        return false;
    }
    if (first.combine) first.combine(exchange, everyone());
    for (unsigned i = 0; i < count; ++i) lanes[i].state = Lane::READY;
    return true;
}

// The same where lanes wait for different things, as masks of fewer lanes allow.
bool Warp::release_groups() {
    bool any = false;
    const Lane *waits = nullptr, *missing = nullptr;
    for (unsigned i = 0; i < count; ++i) {
        Lane& l = lanes[i];
        if (l.state != Lane::COLLECTIVE) continue;
        uint32_t members = l.members & everyone();
        if (!(members >> i & 1)) {
            run->set_failure("a lane takes part in a collective of others: " + describe(l));
            return false;
        }
        const Lane* other = nullptr;
        for (unsigned j = 0; j < count && !other; ++j)
            if (members >> j & 1 && !(lanes[j].state == Lane::COLLECTIVE && same_collective(lanes[j], l))) other = &lanes[j];
        if (other) {
            if (!waits) waits = &l, missing = other;
            continue;
        }
        if (l.combine) l.combine(exchange, members);
        for (unsigned j = 0; j < count; ++j)
            if (members >> j & 1) lanes[j].state = Lane::READY;
        any = true;
    }
    if (any) return true;
    if (waits) {
        run->set_failure("a collective that not all lanes reach: " + describe(*waits) + ", " + describe(*missing));
        return false;
    }
    // All wait in barriers or have returned, but not in the same barrier.
    const Lane* barrier = nullptr;
    for (unsigned i = 0; i < count; ++i)
        if (lanes[i].state == Lane::BARRIER) barrier = &lanes[i];
    for (unsigned i = 0; i < count; ++i)
        if (lanes[i].state != Lane::BARRIER || !same(lanes[i].site, barrier->site)) missing = &lanes[i];
    run->set_failure("a barrier that not all threads reach: " + describe(*barrier) + ", " + describe(*missing));
    return false;
}

uint64_t collective(Combine combine, uint32_t members, uint64_t value, uint32_t argument, Site site) {
    Lane* me = lane;
    Exchange& exchange = me->warp->exchange;
    exchange.value[me->index] = value;
    exchange.argument[me->index] = argument;
    me->combine = combine, me->members = members, me->site = site;
    me->state = Lane::COLLECTIVE;
    yield();
    return exchange.result[me->index];
}

void barrier(Site site) {
    Lane* me = lane;
    me->combine = nullptr, me->members = ~0u, me->site = site;
    me->state = Lane::BARRIER;
    yield();
}

void gather(Exchange& e, uint32_t members) {
    for (unsigned i = 0; i < LANES; ++i)
        if (members >> i & 1) e.result[i] = e.value[e.argument[i] % LANES];
}
void ballot(Exchange& e, uint32_t members) {
    uint32_t bits = 0;
    for (unsigned i = 0; i < LANES; ++i) bits |= (uint32_t)(members >> i & 1 && e.value[i]) << i;
    for (unsigned i = 0; i < LANES; ++i) e.result[i] = bits;
}

// ---- memory -----------------------------------------------------------------------------------------------------

// The word again and again, from the first byte on.
static void poison(unsigned char* at, size_t bytes, uint32_t word) {
    uint16_t half = (uint16_t)word;
    for (size_t i = 0; i + 2 <= bytes; i += 2) std::memcpy(at + i, &half, 2);
    if (bytes % 2) at[bytes - 1] = (unsigned char)half;
}

void copy_async(void* to, const void* from, size_t bytes) {
    if (((uintptr_t)to | (uintptr_t)from) % bytes != 0)
        fail("a copy between addresses that are not aligned to its size", Site{"copy_async", "", 0});
    if (running->schedule.early_copies) {
        std::memcpy(to, from, bytes);
        return;
    }
    poison((unsigned char*)to, bytes, running->schedule.poison);
    Copy* copy = new Copy{to, from, bytes, nullptr};
    Lane* me = lane;
    (me->first_copy ? me->last_copy->next : me->first_copy) = copy;
    me->last_copy = copy;
}
void copies_done() {
    Lane* me = lane;
    while (Copy* copy = me->first_copy) {
        std::memcpy(copy->to, copy->from, copy->bytes);
        me->first_copy = copy->next;
        delete copy;
    }
}

// ---- signals ----------------------------------------------------------------------------------------------------

// What an access to memory that is not there, a division by 0, or a trap where the language leaves it open what happens, ends
// with: not the program, but the block.
constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
static struct sigaction others[sizeof(SIGNALS) / sizeof(*SIGNALS)];

static void on_signal(int signal, siginfo_t* info, void*) {
    if (running && lane) {
        running->signal = signal;
        running->address = info->si_addr;
        void* nowhere;
        lockstep_switch(&nowhere, running->scheduler);
    }
    // Not of a kernel: it happens again, to whoever was there before.
    for (size_t i = 0; i < sizeof(SIGNALS) / sizeof(*SIGNALS); ++i)
        if (SIGNALS[i] == signal) sigaction(signal, &others[i], nullptr);
}
static void catch_signals() {
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction action;
        std::memset(&action, 0, sizeof(action));
        action.sa_sigaction = on_signal;
        // The handler is left by a switch of stacks, so that the signal must not stay blocked.
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigemptyset(&action.sa_mask);
        for (size_t i = 0; i < sizeof(SIGNALS) / sizeof(*SIGNALS); ++i) sigaction(SIGNALS[i], &action, &others[i]);
    });
    // Threads of Rust have a stack for signals.
    stack_t now;
    if (sigaltstack(nullptr, &now) == 0 && !(now.ss_flags & SS_DISABLE)) return;
    alignas(16) static thread_local char memory[16384];
    stack_t own;
    own.ss_sp = memory, own.ss_size = sizeof(memory), own.ss_flags = 0;
    sigaltstack(&own, nullptr);
}
static const char* name_of(int signal) {
    if (signal == SIGILL) return "behaviour that the language does not define";
    return signal == SIGFPE ? "a division by 0" : signal == SIGBUS ? "a misaligned access" : "an access to memory that is not there";
}

// ---- blocks -----------------------------------------------------------------------------------------------------

// Of each stack. Below lies what may not be touched, as much as a compiler for ARM passes over without a look.
constexpr size_t STACK = 128 * 1024, CLOSED = 64 * 1024;
// Stacks begin at different offsets, so that their tops do not share the sets of a cache.
static size_t stagger(size_t i) { return i * 832 % 16384; }
// Behind dynamic shared memory, to find writes past its end.
constexpr size_t SHARED_GUARD = 256;
constexpr uint32_t GUARD_WORD = 0x7fd5;

static bool run_warp(Run& run, Warp& warp) {
    warp.begin_round();
    lane = warp.next_ready();
    lockstep_switch(&run.scheduler, lane->stack_pointer);
    if (run.signal) {
        char address[32];
        std::snprintf(address, sizeof(address), "%p", run.address);
        run.set_failure("thread " + std::to_string(lane->thread.x) + ": " + name_of(run.signal) + ", at " + address);
    }
    return run.failure.empty();
}

static void run_block(Run& run) {
    std::vector<uint8_t> order(run.warps.size());
    while (true) {
        for (size_t i = 0; i < order.size(); ++i) order[i] = (uint8_t)i;
        if (run.schedule.order == 1) std::reverse(order.begin(), order.end());
        if (run.schedule.order == 2) run.shuffle.apply(order.data(), (unsigned)order.size());
        for (uint8_t w : order)
            if (!run_warp(run, run.warps[w])) return;
        const Lane *waits = nullptr, *missing = nullptr;
        for (const Warp& warp : run.warps)
            if (warp.parked && !waits) waits = &warp.lanes[0];
        for (const Warp& warp : run.warps)
            if (waits && !missing && !(warp.parked && same(waits->site, warp.lanes[0].site))) missing = &warp.lanes[0];
        if (!waits) return;
        if (missing) {
            run.set_failure("a barrier that not all threads reach: " + describe(*waits) + ", " + describe(*missing));
            return;
        }
        for (Warp& warp : run.warps) {
            warp.parked = false;
            for (unsigned i = 0; i < warp.count; ++i) warp.lanes[i].state = Lane::READY;
        }
    }
}

}  // namespace lockstep

using namespace lockstep;

struct LockstepPool {
    std::vector<void*> stacks;
    Run run;

    ~LockstepPool() {
        for (void* stack : stacks) munmap(stack, STACK + CLOSED);
    }
    bool grow(size_t n) {
        while (stacks.size() < n) {
            void* stack = mmap(nullptr, STACK + CLOSED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (stack == MAP_FAILED) return false;
            mprotect(stack, CLOSED, PROT_NONE);
            stacks.push_back(stack);
        }
        return true;
    }
};

extern "C" LockstepPool* lockstep_pool_new() { return new LockstepPool; }
extern "C" void lockstep_pool_free(LockstepPool* pool) { delete pool; }

extern "C" int lockstep_run(LockstepPool* pool, const LockstepKernel* kernel, const void* param, const LockstepGrid* grid,
                            const LockstepSchedule* schedule, const uint32_t index[3], char* message, size_t capacity) {
    auto failed = [&](const std::string& why) {
        std::snprintf(message, capacity, "%s", why.c_str());
        return 1;
    };
    const uint32_t* t = grid->threads;
    size_t threads = (size_t)t[0] * t[1] * t[2];
    if (threads == 0 || threads > 1024) return failed("a block has 1 to 1024 threads");
    if (!pool->grow(threads)) return failed("no memory for the stacks of a block");
    Run& run = pool->run;
    run.schedule = *schedule;
    uint64_t number = index[0] + (uint64_t)grid->blocks[0] * (index[1] + (uint64_t)grid->blocks[1] * index[2]);
    run.shuffle.state = schedule->seed + number;
    run.block = Block{{index[0], index[1], index[2]}, {grid->blocks[0], grid->blocks[1], grid->blocks[2]}, {t[0], t[1], t[2]}};
    run.entry = kernel->entry;
    run.param = param;
    run.failure.clear();
    run.signal = 0;
    run.lanes.resize(threads);
    run.warps.resize((threads + LANES - 1) / LANES);
    for (size_t i = 0; i < threads; ++i) {
        Lane& l = run.lanes[i];
        l = Lane{};
        l.thread = Index{(unsigned)(i % t[0]), (unsigned)(i / t[0] % t[1]), (unsigned)(i / t[0] / t[1])};
        l.index = i % LANES;
        l.warp = &run.warps[i / LANES];
        l.stack = pool->stacks[i];
        l.stack_pointer = prepare_stack((char*)pool->stacks[i] + CLOSED + STACK - stagger(i), fiber);
    }
    for (size_t w = 0; w < run.warps.size(); ++w) {
        Warp& warp = run.warps[w];
        warp.run = &run;
        warp.lanes = &run.lanes[w * LANES];
        warp.count = (unsigned)std::min<size_t>(LANES, threads - w * LANES);
        warp.exited = 0;
        warp.parked = false;
        for (unsigned i = 0; i < warp.count; ++i) warp.order[i] = (uint8_t)(schedule->order == 1 ? warp.count - 1 - i : i);
    }
    unsigned char* shared = kernel->shared ? kernel->shared() : nullptr;
    if (grid->shared_bytes > 0 && (!shared || grid->shared_bytes + SHARED_GUARD > kernel->most_shared))
        return failed("the kernel has not so much shared memory");
    if (shared) {
        poison(shared, grid->shared_bytes, schedule->poison);
        poison(shared + grid->shared_bytes, SHARED_GUARD, GUARD_WORD);
    }

    catch_signals();
    running = &run;
    lockstep::block = &run.block;
    const size_t beyond = shared ? kernel->most_shared - grid->shared_bytes : 0;
    watch(shared + grid->shared_bytes, beyond, true);
    run_block(run);
    watch(shared + grid->shared_bytes, beyond, false);
    lane = nullptr;
    running = nullptr;
    lockstep::block = nullptr;
    // Of a block that has failed, whose threads are not taken up again.
    for (Lane& l : run.lanes) {
        while (Copy* copy = l.first_copy) {
            l.first_copy = copy->next;
            delete copy;
        }
    }
    if (shared && run.failure.empty()) {
        unsigned char expected[SHARED_GUARD];
        poison(expected, SHARED_GUARD, GUARD_WORD);
        if (std::memcmp(expected, shared + grid->shared_bytes, SHARED_GUARD) != 0)
            run.set_failure("a write past the end of shared memory");
    }
    if (run.failure.empty()) return 0;
    return failed("block (" + std::to_string(index[0]) + ", " + std::to_string(index[1]) + ", " + std::to_string(index[2]) + "): " + run.failure);
}
