//! The dense parts of a model, every launch in several orders.

use undraft_emulator::Options;

use crate::common::dense;
use crate::with;

#[test]
fn linear_of_any_rows_and_types() {
    dense::linear(&with(Options::every_schedule()));
}

#[test]
fn linear_of_experts() {
    dense::linear_of_experts(&with(Options::every_schedule()));
}

#[test]
fn norms_with_and_without_a_delta() {
    dense::norms_with_and_without_a_delta(&with(Options::every_schedule()));
}

#[test]
fn embedding_and_silu() {
    dense::embedding_and_silu(&with(Options::every_schedule()));
}

#[test]
fn the_largest_of_a_row() {
    dense::the_largest_of_a_row(&with(Options::every_schedule()));
}

#[test]
fn attention_over_a_cache() {
    dense::attention_over_a_cache(&with(Options::every_schedule()));
}

#[test]
fn experts_are_chosen_and_added_up() {
    dense::experts_are_chosen_and_added_up(&with(Options::every_schedule()));
}

#[test]
fn words_are_written_in_their_turn() {
    dense::words_are_written_in_their_turn(&with(Options::every_schedule()));
}
