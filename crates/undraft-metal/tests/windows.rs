//! `common/windows.rs` and `common/decode.rs` on the default GPU of an Apple system. Skipped, and said so, elsewhere.

mod common;

use common::{decode, windows};

#[test]
fn nodes_equal_decoding_their_path() {
    common::default_gpu().iter().for_each(|gpu| windows::nodes_equal_decoding_their_path(gpu));
}

#[test]
fn a_replay_rounds_as_ieee_754_says() {
    common::default_gpu().iter().for_each(|gpu| windows::a_replay_rounds_as_ieee_754_says(gpu));
}

#[test]
fn a_convolution_tree_equals_its_paths() {
    common::default_gpu().iter().for_each(|gpu| windows::a_convolution_tree_equals_its_paths(gpu));
}

#[test]
fn the_compatible_family_keeps_its_promises() {
    common::default_gpu().iter().for_each(|gpu| decode::check(gpu).unwrap());
}

#[test]
fn all_kernels_compile() {
    common::default_gpu().iter().for_each(|gpu| gpu.launcher().prepare().unwrap());
}
