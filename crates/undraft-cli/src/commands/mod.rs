//! One file a subcommand; each gives whether its checks passed.

pub mod bench;
pub mod devices;
pub mod generate;
pub mod selftest;
