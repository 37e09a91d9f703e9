// A graph of `ggml_gated_delta_net` on the CPU, with a plan and a thread pool of one thread, both made once.
//
// In C, so that the layouts of ggml's structs come from its headers.

#include <stdlib.h>

#include "ggml-cpu.h"
#include "ggml.h"

struct gdn_graph {
    struct ggml_context * ctx;
    struct ggml_threadpool * pool;
    struct ggml_cgraph * graph;
    struct ggml_cplan plan;
    void * work;
    // q, k, v, g, beta, state.
    struct ggml_tensor * inputs[6];
    struct ggml_tensor * out;
    // Of the copy into a cache, null without one: the snapshots, a view of `out`; the view of the cache that is written; the
    // result of `ggml_cpy`, which is a view of that one.
    struct ggml_tensor * snapshots;
    struct ggml_tensor * targets[2];
};

void gdn_graph_free(struct gdn_graph * self) {
    if (self == NULL) {
        return;
    }
    if (self->pool != NULL) {
        ggml_threadpool_free(self->pool);
    }
    if (self->ctx != NULL) {
        ggml_free(self->ctx);
    }
    free(self->work);
    free(self);
}

// The output is o [num_tokens, hv, dim], then the snapshots [snapshots, hv, dim, dim], the last state first. With
// `num_slots` > 0 the graph then copies the snapshots into a cache [snapshots, num_slots, hv, dim, dim], as llama.cpp
// does. Null where memory is lacking. ggml aborts on sizes that do not fit each other: the caller has checked them.
struct gdn_graph * gdn_graph_new(int64_t h, int64_t hv, int64_t dim, int64_t decay_dim, int64_t num_tokens,
                                 int64_t snapshots, int64_t num_slots) {
    struct gdn_graph * self = calloc(1, sizeof(*self));
    if (self == NULL) {
        return NULL;
    }
    // Metadata alone; all data are the caller's.
    const size_t num_tensors = 32;
    struct ggml_init_params params = {
        .mem_size = num_tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(num_tensors, false),
        .mem_buffer = NULL,
        .no_alloc = true,
    };
    struct ggml_threadpool_params one_thread = ggml_threadpool_params_default(1);
    self->ctx = ggml_init(params);
    self->pool = ggml_threadpool_new(&one_thread);
    if (self->ctx == NULL || self->pool == NULL) {
        gdn_graph_free(self);
        return NULL;
    }

    struct ggml_context * ctx = self->ctx;
    struct ggml_tensor ** in = self->inputs;
    in[0] = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, dim, h, num_tokens, 1);
    in[1] = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, dim, h, num_tokens, 1);
    in[2] = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, dim, hv, num_tokens, 1);
    in[3] = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, decay_dim, hv, num_tokens, 1);
    in[4] = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, 1, hv, num_tokens, 1);
    in[5] = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, dim, dim, hv, 1);
    self->out = ggml_gated_delta_net(ctx, in[0], in[1], in[2], in[3], in[4], in[5], snapshots);
    struct ggml_tensor * last = self->out;

    if (num_slots > 0) {
        const int64_t state_len = hv * dim * dim;
        const size_t state_size = state_len * sizeof(float), o_size = num_tokens * hv * dim * sizeof(float);
        struct ggml_tensor * cache = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, state_len, num_slots * snapshots);
        self->snapshots = ggml_view_3d(ctx, self->out, state_len, 1, snapshots, state_size, state_size, o_size);
        self->targets[0] = ggml_view_3d(ctx, cache, state_len, 1, snapshots, state_size, num_slots * state_size, 0);
        self->targets[1] = last = ggml_cpy(ctx, self->snapshots, self->targets[0]);
    }

    self->graph = ggml_new_graph_custom(ctx, num_tensors, false);
    ggml_build_forward_expand(self->graph, last);
    self->plan = ggml_graph_plan(self->graph, 1, self->pool);
    const size_t line = 64;
    self->work = aligned_alloc(line, (self->plan.work_size / line + 1) * line);
    self->plan.work_data = self->work;
    if (self->work == NULL) {
        gdn_graph_free(self);
        return NULL;
    }
    return self;
}

// `inputs` are q, k, v, g, beta and state; `target` is the first plane's state of the slot that is written, or null for a
// graph without a cache. 0 where all went well.
int gdn_graph_compute(struct gdn_graph * self, const float * const * inputs, float * out, float * target) {
    for (int i = 0; i < 6; i++) {
        self->inputs[i]->data = (void *) inputs[i];
    }
    self->out->data = out;
    if (self->snapshots != NULL) {
        self->snapshots->data = (char *) out + self->snapshots->view_offs;
        self->targets[0]->data = target;
        self->targets[1]->data = target;
    }
    return ggml_graph_compute(self->graph, &self->plan) == GGML_STATUS_SUCCESS ? 0 : 1;
}
