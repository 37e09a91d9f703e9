//! What a caller is told whose adapter is not there or cannot do the call. Skipped, and said so, without an adapter.

mod common;

use undraft_core::{Capture, DType};
use undraft_testing::cases::fused_recurrent_gated_delta_rule::DeltaRuleCase;
use undraft_testing::harness::Memory;
use undraft_testing::harness::fused_recurrent_gated_delta_rule::run;
use undraft_wgpu::wgpu::Limits;
use undraft_wgpu::{Batch, Binding, Device, DeviceOptions, WgpuBackend, WgpuError, raw};

/// The device with lower limits than it has.
fn limited(limits: Limits) -> Option<WgpuBackend> {
    common::first_device(&DeviceOptions { limits: Some(limits), ..DeviceOptions::default() })
}

/// What the recurrence says on it.
fn refusal(backend: &WgpuBackend) -> String {
    let case = DeltaRuleCase::nth(DType::F32, 0);
    run(backend, &case, Capture::DeltaLog, Memory::PLAIN).unwrap_err()
}

#[test]
fn an_adapter_that_is_not_there_is_an_error() {
    match Device::open(4096) {
        Err(e @ WgpuError::NoAdapter) => assert!(e.to_string().starts_with("no adapter found"), "{e}"),
        Err(e @ WgpuError::NoSuchAdapter { ordinal: 4096, .. }) => {
            assert!(e.to_string().starts_with("wgpu adapter 4096 was asked for, expected 0.."), "{e}");
        }
        other => panic!("expected an error, got {other:?}"),
    }
    match Device::open_by_name("no such name") {
        Err(WgpuError::NoAdapter) => {}
        Err(e @ WgpuError::NoAdapterNamed { .. }) => {
            assert!(
                e.to_string().starts_with("no wgpu adapter has a name with \"no such name\", expected one of "),
                "{e}"
            );
        }
        other => panic!("expected an error, got {other:?}"),
    }
}

#[test]
fn limits_are_named_with_the_adapter() {
    let table = [
        (
            Limits { max_storage_buffers_per_shader_stage: 7, ..Limits::default() },
            "max_storage_buffers_per_shader_stage",
        ),
        (
            Limits { max_compute_invocations_per_workgroup: 64, ..Limits::default() },
            "max_compute_invocations_per_workgroup",
        ),
        (
            Limits { max_compute_workgroup_storage_size: 1024, ..Limits::default() },
            "max_compute_workgroup_storage_size",
        ),
        (Limits { max_storage_buffer_binding_size: 64, ..Limits::default() }, "max_storage_buffer_binding_size"),
        (Limits { max_buffer_size: 512, max_storage_buffer_binding_size: 64, ..Limits::default() }, "max_buffer_size"),
    ];
    for (limits, name) in table {
        // The probe of lanes runs workgroups of 128.
        let options = DeviceOptions { limits: Some(limits), without_subgroups: true, ..DeviceOptions::default() };
        let message = match WgpuBackend::with_options(0, &options) {
            Err(WgpuError::NoAdapter) => return,
            Err(e) => e.to_string(),
            Ok(backend) => refusal(&backend),
        };
        assert!(message.contains(&format!("the limit `{name}` of adapter ")), "{name}: {message}");
    }
}

#[test]
fn parts_of_buffers_are_checked() {
    let Some(backend) = limited(Limits::default()) else { return };
    let device = backend.device();
    let buffer = device.buffer("x", 1024).unwrap();
    let whole = Binding::from(&buffer);
    let gating = |a| {
        let (b, g, beta) = (whole, whole, whole);
        raw::GatingBuffers { a, b, a_log: whole, dt_bias: whole, g, beta }
    };
    let params = raw::GatingParams { num_tokens: 1, num_v_heads: 1, decay_dim: 1, ..raw::GatingParams::default() };
    let mut batch = Batch::new(device);
    let result = batch.fused_gdn_gating(&gating(Binding::part(&buffer, 4..1024)), &params);
    assert!(matches!(result, Err(WgpuError::Alignment { got: 4, .. })), "{result:?}");
    let result = batch.fused_gdn_gating(&gating(Binding::part(&buffer, 0..2048)), &params);
    assert!(matches!(result, Err(WgpuError::OutOfBuffer { end: 2048, len: 1024, .. })), "{result:?}");
    let result = device.read(&[Binding::part(&buffer, 512..2048)]);
    assert!(matches!(result, Err(WgpuError::OutOfBuffer { end: 2048, len: 1024, .. })), "{result:?}");
    assert!(batch.is_empty());
    let odd = raw::ConvParams { out_dtype: raw::Elements::Bf16.word(), out_stride: 3, ..raw::ConvParams::default() };
    let buffers =
        raw::ConvBuffers { state: whole, log: None, out: whole, x: whole, weight: whole, bias: None, ints: whole };
    let error = batch.causal_conv1d_update(&buffers, &odd).unwrap_err();
    assert!(error.to_string().contains("stride 3, expected even numbers"), "{error}");
}
