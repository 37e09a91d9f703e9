//! `common/windows.rs` on the first GPU of this machine. Skipped, and said so, without one.

mod common;

use common::windows;

#[test]
fn nodes_equal_decoding_their_path() {
    common::first_gpu().iter().for_each(|gpu| windows::nodes_equal_decoding_their_path(gpu));
}

#[test]
fn a_replay_rounds_as_ieee_754_says() {
    common::first_gpu().iter().for_each(|gpu| windows::a_replay_rounds_as_ieee_754_says(gpu));
}

#[test]
fn a_convolution_tree_equals_its_paths() {
    common::first_gpu().iter().for_each(|gpu| windows::a_convolution_tree_equals_its_paths(gpu));
}
