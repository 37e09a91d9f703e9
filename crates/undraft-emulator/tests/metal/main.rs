//! The Metal kernels, run on the CPU: the conformance suite and what it rests on.

#[path = "../../../undraft-metal/tests/common/mod.rs"]
mod common;
mod dense;
mod driver;
mod mutants;
mod replay;
mod schedules;

use std::sync::Arc;

use common::{decode, windows};
use undraft_emulator::{EmulatedMetal, Options};
use undraft_metal::MetalBackend;

fn with(options: Options) -> MetalBackend {
    MetalBackend::with_driver(Arc::new(EmulatedMetal::new(options).unwrap()))
}

fn emulated() -> Option<MetalBackend> {
    Some(with(Options::default()))
}

undraft_testing::conformance!(metal_emulated, crate::emulated);

#[test]
fn nodes_equal_decoding_their_path() {
    windows::nodes_equal_decoding_their_path(&with(Options::default()));
}

#[test]
fn a_replay_rounds_as_ieee_754_says() {
    windows::a_replay_rounds_as_ieee_754_says(&with(Options::default()));
}

#[test]
fn a_convolution_tree_equals_its_paths() {
    windows::a_convolution_tree_equals_its_paths(&with(Options::default()));
}

#[test]
fn the_compatible_family_keeps_its_promises() {
    decode::check(&with(Options::every_schedule())).unwrap();
}

#[test]
fn all_kernels_are_there() {
    with(Options::default()).launcher().prepare().unwrap();
}
