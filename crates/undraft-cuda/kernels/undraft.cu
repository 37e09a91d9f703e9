// All kernels, one translation unit.
#include "causal_conv1d_fn.cu"
#include "causal_conv1d_update.cu"
#include "chunk_gated_delta_rule.cu"
#include "commit_states.cu"
#include "fused_gdn_gating.cu"
#include "fused_recurrent_gated_delta_rule.cu"
#include "rms_norm_gated.cu"
