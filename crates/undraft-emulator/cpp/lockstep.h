// Blocks of threads on the CPU: every thread of a block is a fiber, the threads of a warp wait for each other in
// collectives, those of a block in barriers. Knows nothing of CUDA or any other device language.
//
// Warps of a block run one after the other up to the next barrier, lanes of a warp one after the other up to the next
// collective, in an order that the schedule chooses: what depends on the order comes out differently under another one.
// A collective or barrier that not all threads reach, or at different places, ends the block with a message.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lockstep {

constexpr unsigned LANES = 32;

struct Index {
    unsigned x, y, z;
};

// A call in the device's source. Two are the same if operation, file and line are.
struct Site {
    const char* operation;
    const char* file;
    int line;
};

// What the lanes of a warp bring to a collective and get from it.
struct Exchange {
    uint64_t value[LANES];
    uint64_t result[LANES];
    uint32_t argument[LANES];
};
// Computes the results of the lanes in `members`, once all of them have arrived; null where there are none.
using Combine = void (*)(Exchange&, uint32_t members);

struct Warp;
struct Copy;

struct Lane {
    Index thread;
    unsigned index;  // in the warp
    Warp* warp;
    // Where it waits.
    enum State : uint8_t { READY, COLLECTIVE, BARRIER, EXITED } state;
    uint32_t members;
    Combine combine;
    Site site;
    // Copies that are on their way: a list in the order of issue.
    Copy *first_copy, *last_copy;
    void* stack_pointer;
    void* stack;  // begin of the stack's memory
};

struct Block {
    Index index, grid, threads;
};

// The thread that runs, and its block.
extern thread_local Lane* lane;
extern thread_local const Block* block;

// Waits for the lanes in `members`, a bit each, and gives this lane's result.
uint64_t collective(Combine combine, uint32_t members, uint64_t value, uint32_t argument, Site site);
// Waits for all threads of the block.
void barrier(Site site);

// Begins to copy to shared memory. The bytes are there after `copies_done`; until then they are anything, or already there, as
// the schedule says.
void copy_async(void* to, const void* from, size_t bytes);
void copies_done();

// Ends the block with a message.
[[noreturn]] void fail(const char* message, Site site);

// Each lane gets the value of lane `argument`.
void gather(Exchange& e, uint32_t members);
// Each lane gets a bit for every lane whose value is not 0.
void ballot(Exchange& e, uint32_t members);

}  // namespace lockstep

// ---- for the host -----------------------------------------------------------------------------------------------

extern "C" {

// A kernel: a function of a struct in memory.
struct LockstepKernel {
    const char* name;
    size_t param_bytes;
    void (*entry)(const void* param);
    // Dynamic shared memory of the calling thread, of `most_shared` bytes; null where the kernel has none.
    unsigned char* (*shared)();
    size_t most_shared;
};

struct LockstepSchedule {
    uint32_t order;        // 0 forward, 1 reversed, 2 shuffled
    uint32_t early_copies; // whether asynchronous copies are done at once
    uint64_t seed;
    uint32_t poison;       // shared memory at the begin of a block, 16 bits, repeated
};

struct LockstepGrid {
    uint32_t blocks[3], threads[3];
    size_t shared_bytes;
};

struct LockstepPool;

// Memory for the fibers of one thread of the host at a time.
LockstepPool* lockstep_pool_new();
void lockstep_pool_free(LockstepPool*);

// Runs one block. 0, or not 0 and a message of less than `capacity` bytes, zero at the end.
int lockstep_run(LockstepPool*, const LockstepKernel*, const void* param, const LockstepGrid*, const LockstepSchedule*,
                 const uint32_t block[3], char* message, size_t capacity);
}
