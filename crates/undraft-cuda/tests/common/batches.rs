//! Batches of so many heads that other kernels run them, and that the last heads are shared out finer.

use undraft_core::{Backend, Capture, DType, GdnDims};
use undraft_testing::Rng;
use undraft_testing::cases::Windows;
use undraft_testing::cases::fused_recurrent_gated_delta_rule::DeltaRuleCase;
use undraft_testing::compare::bits;
use undraft_testing::harness::Memory;
use undraft_testing::harness::fused_recurrent_gated_delta_rule::run;

/// Outputs and states of sequences in a batch of at least `heads` heads are those of each sequence alone, bit for bit.
pub fn sequences_of_a_large_batch_equal_each_alone(backend: &dyn Backend, heads: usize) {
    // The last tile of a head is not full.
    let dims = GdnDims::new(2, 8, 128, 44).unwrap();
    let num_seqs = heads.div_ceil(dims.num_v_heads());
    let rng = &mut Rng::new(29);
    for (state, longest) in [(DType::F32, 4), (DType::F32, 8), (DType::Bf16, 4), (DType::F16, 8)] {
        let tokens: Vec<usize> = (0..num_seqs).map(|seq| longest - seq % 3).collect();
        let windows = Windows::chains(tokens.clone(), (0..num_seqs as i32).rev().collect(), num_seqs);
        let mut case = DeltaRuleCase::draw(rng, DType::Bf16, 0, dims, windows).with_state_dtype(state);
        case.draw_pending(rng);
        case.num_pending.iter_mut().for_each(|n| *n = (*n).min(8));
        for capture in [Capture::DeltaLog, Capture::Final] {
            let all = run(backend, &case, capture, Memory::PLAIN).unwrap().expect("these sizes are taken");
            for seq in [0, num_seqs / 2, num_seqs - 1] {
                let alone = case.pick(&[(seq, 0..tokens[seq])]).relocated(&[0], 1);
                let alone = run(backend, &alone, capture, Memory::PLAIN).unwrap().expect("these sizes are taken");
                let (first, row) = (tokens[..seq].iter().sum::<usize>(), dims.value_dim());
                let (slot, len) = (num_seqs - 1 - seq, dims.state_len());
                let out = &all.out[first * row..][..tokens[seq] * row];
                let axes = [("token", tokens[seq]), ("head", dims.num_v_heads()), ("row", dims.head_v_dim())];
                bits("out", &alone.out, out, &axes).unwrap_or_else(|e| panic!("sequence {seq}: {e}"));
                let axes = [("head", dims.num_v_heads()), ("row", dims.head_v_dim()), ("column", dims.head_k_dim())];
                let state = &all.state[slot * len..][..len];
                bits("state", &alone.state, state, &axes).unwrap_or_else(|e| panic!("sequence {seq}: {e}"));
            }
        }
    }
}
