//! `common/batches.rs` on the first GPU of this machine. Skipped, and said so, without one.

mod common;

use common::batches;

#[test]
fn sequences_of_a_large_batch_equal_each_alone() {
    common::first_gpu().iter().for_each(|gpu| {
        let heads = 12 * gpu.launcher().driver().attributes().num_sms;
        batches::sequences_of_a_large_batch_equal_each_alone(gpu, heads);
    });
}
