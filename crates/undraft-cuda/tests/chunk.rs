//! `common/chunk.rs` on the first GPU of this machine. Skipped, and said so, without one.

mod common;

#[test]
fn long_prompts_are_near_the_recurrence() {
    common::first_gpu().iter().for_each(|gpu| common::chunk::long_prompts_are_near_the_recurrence(gpu, 4000));
}
