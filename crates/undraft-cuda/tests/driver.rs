//! `common/driver.rs` on the first GPU of this machine. Skipped, and said so, without one.

mod common;

use common::driver;

macro_rules! on_the_first_gpu {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                common::first_gpu().iter().for_each(|gpu| driver::$name(gpu.launcher().driver()));
            }
        )*
    };
}
on_the_first_gpu!(
    buffers_hold_what_is_copied_to_them,
    ranges_beyond_a_buffer_are_errors,
    a_parameter_of_another_length_is_an_error,
    a_graph_replays_what_was_recorded,
    a_recording_ends_with_its_failure,
);
