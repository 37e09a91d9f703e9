//! The conformance suite on the first adapter of this machine. Without one it is skipped, and said so; with
//! `UNDRAFT_REQUIRE=wgpu` that is a failure.

mod common;

use undraft_wgpu::{DeviceOptions, WgpuBackend};

fn first_device() -> Option<WgpuBackend> {
    common::first_device(&DeviceOptions::default())
}

/// What WebGPU promises and no more, no subgroups, and two rows of a state at once.
fn least_device() -> Option<WgpuBackend> {
    let limits = Some(undraft_wgpu::wgpu::Limits::default());
    let rows_at_once = Some(2);
    common::first_device(&DeviceOptions { without_subgroups: true, rows_at_once, limits, ..DeviceOptions::default() })
}

undraft_testing::conformance!(wgpu, crate::first_device);

/// The kernels whose lanes exchange numbers, without subgroups.
mod least {
    mod fused_recurrent_gated_delta_rule {
        undraft_testing::conformance!(@test values_f32, wgpu, crate::least_device, FusedRecurrentGatedDeltaRule, Values, F32);
        undraft_testing::conformance!(@test golden, wgpu, crate::least_device, FusedRecurrentGatedDeltaRule, Golden, F32);
    }
    mod rms_norm_gated {
        undraft_testing::conformance!(@test values_bf16, wgpu, crate::least_device, RmsNormGated, Values, Bf16);
        undraft_testing::conformance!(@test exactness_f32, wgpu, crate::least_device, RmsNormGated, Exactness, F32);
    }
}
