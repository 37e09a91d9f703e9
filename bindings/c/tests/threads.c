/* Pools in threads of their own with one device and the same layers, and one pool in two threads. */
#include <pthread.h>

#include "support.h"

enum { NUM_WINDOWS = 200 };

static Model model;

typedef struct {
    undraft_pool *pool;
    undraft_slot slot;
    uint64_t first;
} Job;

/* Windows of three tokens of which two stay, with a message asked for and freed in between. */
static void *run(void *argument) {
    const Job *job = (const Job *)argument;
    for (uint64_t i = 0; i < NUM_WINDOWS; i++) {
        const uint64_t tokens[3] = {job->first + 2 * i, job->first + 2 * i + 1, 1000000 + i};
        run_window(&model, job->pool, job->slot, tokens, 3, 2, NULL);
        FAILS(UNDRAFT_NOT_IN_USE, "slot 0", undraft_slot_free(job->pool, 0, &message));
    }
    return NULL;
}

static void run_two(Job *a, Job *b) {
    pthread_t threads[2];
    REQUIRE(pthread_create(&threads[0], NULL, run, a) == 0 && pthread_create(&threads[1], NULL, run, b) == 0);
    REQUIRE(pthread_join(threads[0], NULL) == 0 && pthread_join(threads[1], NULL) == 0);
}

int main(void) {
    undraft_device_options options = undraft_device_options_init();
    options.num_threads = 2;
    model = make_model(&options);
    undraft_pool *pools[2] = {make_pool(&model, 2, 3, UNDRAFT_F32), make_pool(&model, 1, 3, UNDRAFT_F32)};
    undraft_pool *shared = make_pool(&model, 2, 3, UNDRAFT_F32), *plain = make_pool(&model, 2, 1, UNDRAFT_F32);
    Job own[2] = {{pools[0], alloc_slot(pools[0]), 1}, {pools[1], alloc_slot(pools[1]), 100001}};
    Job both[2] = {{shared, alloc_slot(shared), 1}, {shared, alloc_slot(shared), 100001}};
    run_two(&own[0], &own[1]);
    run_two(&both[0], &both[1]);
    for (int i = 0; i < 2; i++) {
        const undraft_slot reference = alloc_slot(plain);
        for (uint64_t t = 0; t < 2 * NUM_WINDOWS; t++) {
            const uint64_t token = own[i].first + t;
            run_window(&model, plain, reference, &token, 1, 1, NULL);
        }
        REQUIRE(same_states(&model, own[i].pool, own[i].slot, plain, reference));
        REQUIRE(same_states(&model, shared, both[i].slot, plain, reference));
    }
    OK(undraft_pool_free(pools[0], &message));
    OK(undraft_pool_free(pools[1], &message));
    OK(undraft_pool_free(shared, &message));
    OK(undraft_pool_free(plain, &message));
    free_model(&model);
    puts("threads: ok");
    return 0;
}
