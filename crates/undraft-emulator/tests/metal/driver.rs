//! The safe layer over a driver, and what a launch refuses.

use std::sync::Arc;

use undraft_emulator::{EmulatedMetal, Options};
use undraft_metal::dense::{LinearParams, MoeParams};
use undraft_metal::driver::{Commands, Dispatch, Driver, EncoderHandle};
use undraft_metal::raw::{DecodeParams, Elements, Launcher, RecurrentParams};
use undraft_metal::{DeviceBuffer, MetalError, sources};

fn driver() -> Arc<dyn Driver> {
    Arc::new(EmulatedMetal::new(Options::default()).unwrap())
}

#[test]
fn a_buffer_holds_what_was_written() {
    let driver = driver();
    let mut buffer = DeviceBuffer::from_slice(&driver, &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
    buffer.write(1, &[7.0, 8.0]).unwrap();
    let mut back = [0.0; 3];
    buffer.read(1, &mut back).unwrap();
    assert_eq!(back, [7.0, 8.0, 4.0]);
    assert_eq!(buffer.slice_from(2).unwrap().offset(), 8);
    assert_eq!(buffer.write(3, &[0.0, 0.0]), Err(MetalError::OutOfBuffer { start: 3, end: 5, len: 4 }));
    let none = DeviceBuffer::<f32>::uninit(&driver, 0).unwrap();
    assert!(none.slice().is_none() && none.is_empty());
    let huge = DeviceBuffer::<f32>::uninit(&driver, usize::MAX);
    assert!(matches!(huge, Err(MetalError::TooLarge { .. })), "{huge:?}");
}

#[test]
fn sizes_that_no_kernel_takes_are_refused() {
    let launcher = Launcher::new(driver());
    let encoder = EncoderHandle(1);
    let decode = DecodeParams { head_k_dim: 96, head_v_dim: 8, num_k_heads: 1, num_v_heads: 1, ..Default::default() };
    // SAFETY: refused before anything is encoded.
    let e = unsafe { launcher.gated_delta_net_decode(encoder, &decode) }.unwrap_err();
    assert_eq!(e.to_string(), "`gated_delta_net_decode`: `head_k_dim` is 96, expected 32, 64 or 128");
    let sizes = RecurrentParams { num_k_heads: 2, num_v_heads: 3, head_k_dim: 8, head_v_dim: 8, ..Default::default() };
    // SAFETY: as above.
    let e = unsafe { launcher.fused_recurrent_gated_delta_rule(encoder, &sizes, Default::default()) }.unwrap_err();
    let expected = "`fused_recurrent_gated_delta_rule`: `num_v_heads` is 3, expected a multiple of `num_k_heads`";
    assert_eq!(e.to_string(), expected);
    let columns = LinearParams { in_features: 30, rows_per_x: 1, ..Default::default() };
    // SAFETY: as above.
    let e = unsafe { launcher.dense_linear(encoder, &columns, Elements::F32) }.unwrap_err();
    assert_eq!(e.to_string(), "`dense_linear`: `in_features` is 30, expected a multiple of 4");
    let experts = MoeParams { num_experts: 40, top_k: 33, ..Default::default() };
    // SAFETY: as above.
    let e = unsafe { launcher.dense_moe_route(encoder, &experts) }.unwrap_err();
    assert_eq!(e.to_string(), "`dense_moe_route`: `top_k` is 33, expected at most 32 and `num_experts`");
}

#[test]
fn work_of_no_threadgroups_needs_no_encoder() {
    let launcher = Launcher::new(driver());
    let params = RecurrentParams { num_k_heads: 1, num_v_heads: 1, head_k_dim: 8, head_v_dim: 8, ..Default::default() };
    // SAFETY: nothing is encoded.
    unsafe { launcher.fused_recurrent_gated_delta_rule(EncoderHandle(77), &params, Default::default()) }.unwrap();
}

#[test]
fn calls_that_do_not_fit_are_refused() {
    let driver = driver();
    let pipeline = driver.pipeline(sources::FUSED_GDN_GATING, "fused_gdn_gating").unwrap();
    let dispatch = Dispatch {
        pipeline,
        buffers: &[],
        params_slot: 0,
        params: &[],
        threadgroup_bytes: 0,
        threadgroups: [1, 1, 1],
        threads: [48, 1, 1],
    };
    let commands = Commands::begin(&driver).unwrap();
    // SAFETY: refused before anything is encoded.
    let e = unsafe { driver.dispatch(commands.encoder(), &dispatch) }.unwrap_err();
    let expected = "`dispatchThreadgroups` failed: 48 threads a threadgroup, expected a multiple of 32 up to 1024";
    assert_eq!(e.to_string(), expected);
    commands.commit().unwrap().wait().unwrap();
    let e = driver.pipeline(sources::COMMIT_STATES, "nothing").unwrap_err();
    assert_eq!(e.to_string(), "no pipeline of the kernel `nothing`: there is no such kernel");
}

/// An address that is not there ends the work, not the program.
#[test]
fn a_missing_buffer_is_found() {
    let driver = driver();
    let launcher = Launcher::new(driver.clone());
    let params = DecodeParams {
        head_k_dim: 32,
        head_v_dim: 1,
        num_k_heads: 1,
        num_v_heads: 1,
        num_tokens: 1,
        num_seqs: 1,
        ..Default::default()
    };
    let commands = Commands::begin(&driver).unwrap();
    // SAFETY: no device runs this but the emulator, which finds it.
    unsafe { launcher.gated_delta_net_decode(commands.encoder(), &params) }.unwrap();
    let why = commands.finish().unwrap_err().to_string();
    assert!(why.contains("an access to memory that is not there"), "{why}");
}
