//! The suite as `#[test]` functions.

use undraft_core::{Backend, DType, Op};

use super::{Suite, run_one};
use crate::skip_absent;

/// Runs one entry of the plan as a test. A back end that this machine does not have is a printed skip, or a failure where
/// `UNDRAFT_REQUIRE` (names with commas between) lists it.
///
/// # Panics
/// If the back end fails the suite, or is required and absent.
pub fn assert_conforms<B: Backend>(name: &str, make: impl FnOnce() -> Option<B>, op: Op, suite: Suite, dtype: DType) {
    let Some(backend) = make() else {
        skip_absent(name);
        return;
    };
    let report = run_one(&backend, op, suite, dtype);
    if let Err(e) = report.passed {
        panic!("{name}: {} {} {}: {e}", op.name(), suite.name(), dtype.name());
    }
}

/// Stamps a module with one test per operation, suite and dtype.
///
/// ```ignore
/// undraft_testing::conformance!(cpu_avx2, || CpuBackend::with_isa(Isa::Avx2).ok());
/// ```
///
/// The closure gives `None` where the machine lacks what the back end needs.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $make:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $crate::conformance!(@op $name, $make, fused_gdn_gating, FusedGdnGating);
            $crate::conformance!(@op $name, $make, causal_conv1d_update, CausalConv1dUpdate);
            $crate::conformance!(@op $name, $make, causal_conv1d_fn, CausalConv1dFn);
            $crate::conformance!(@op $name, $make, fused_recurrent_gated_delta_rule, FusedRecurrentGatedDeltaRule);
            $crate::conformance!(@op $name, $make, chunk_gated_delta_rule, ChunkGatedDeltaRule);
            $crate::conformance!(@op $name, $make, rms_norm_gated, RmsNormGated);

            mod commit_states {
                #[allow(unused_imports)]
                use super::*;
                $crate::conformance!(@test values_f32, $name, $make, CommitStates, Values, F32);
                $crate::conformance!(@test exactness_f32, $name, $make, CommitStates, Exactness, F32);
                $crate::conformance!(@test golden, $name, $make, CommitStates, Golden, F32);
            }
        }
    };
    (@op $name:ident, $make:expr, $stem:ident, $op:ident) => {
        mod $stem {
            #[allow(unused_imports)]
            use super::*;
            $crate::conformance!(@test values_f32, $name, $make, $op, Values, F32);
            $crate::conformance!(@test values_bf16, $name, $make, $op, Values, Bf16);
            $crate::conformance!(@test values_f16, $name, $make, $op, Values, F16);
            $crate::conformance!(@test exactness_f32, $name, $make, $op, Exactness, F32);
            $crate::conformance!(@test exactness_bf16, $name, $make, $op, Exactness, Bf16);
            $crate::conformance!(@test exactness_f16, $name, $make, $op, Exactness, F16);
            $crate::conformance!(@test golden, $name, $make, $op, Golden, F32);
        }
    };
    (@test $test:ident, $name:ident, $make:expr, $op:ident, $suite:ident, $dtype:ident) => {
        #[test]
        fn $test() {
            $crate::conformance::assert_conforms(
                stringify!($name),
                $make,
                $crate::Op::$op,
                $crate::Suite::$suite,
                $crate::DType::$dtype,
            );
        }
    };
}
