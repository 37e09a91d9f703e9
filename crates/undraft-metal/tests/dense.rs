//! `common/dense.rs` on the default GPU of an Apple system. Skipped, and said so, elsewhere.

mod common;

use common::{default_gpu, dense};

#[test]
fn linear_of_any_rows_and_types() {
    default_gpu().iter().for_each(dense::linear);
}

#[test]
fn linear_of_experts() {
    default_gpu().iter().for_each(dense::linear_of_experts);
}

#[test]
fn norms_with_and_without_a_delta() {
    default_gpu().iter().for_each(dense::norms_with_and_without_a_delta);
}

#[test]
fn embedding_and_silu() {
    default_gpu().iter().for_each(dense::embedding_and_silu);
}

#[test]
fn the_largest_of_a_row() {
    default_gpu().iter().for_each(dense::the_largest_of_a_row);
}

#[test]
fn attention_over_a_cache() {
    default_gpu().iter().for_each(dense::attention_over_a_cache);
}

#[test]
fn experts_are_chosen_and_added_up() {
    default_gpu().iter().for_each(dense::experts_are_chosen_and_added_up);
}

#[test]
fn words_are_written_in_their_turn() {
    default_gpu().iter().for_each(dense::words_are_written_in_their_turn);
}
