//! The queue of a device: writes, recorded calls and dropped memory, in the order of the calls.

use undraft_model::gpu::Gpu;

const LEN: usize = 5;

/// `silu(gate) * up` for gates and what they gate.
fn want(gate: f32, up: f32) -> f32 {
    gate / (1.0 + (-gate).exp()) * up
}

fn gate_up(gate: f32, up: f32) -> Vec<f32> {
    [[gate; LEN], [up; LEN]].concat()
}

#[track_caller]
fn near(gpu: &crate::Gpu, buffer: &<crate::Gpu as Gpu>::Buffer<f32>, want: f32) {
    let mut got = [f32::NAN; LEN];
    gpu.read(buffer, &mut got).unwrap();
    assert!(got.iter().all(|x| (x - want).abs() <= 1e-5 * want.abs()), "{got:?}, expected {want}");
}

#[test]
fn what_is_written_later_changes_nothing_before() {
    let Some(device) = crate::device() else { return };
    let gpu = <crate::Gpu as Gpu>::of(&device).unwrap();
    let mut from = gpu.copy_of(&gate_up(2.0, 3.0)).unwrap();
    let [first, second, third] = [0; 3].map(|_| gpu.uninit::<f32>(LEN).unwrap());
    gpu.silu_mul(&from, &first, 1, LEN).unwrap();
    gpu.write(&mut from, &gate_up(-1.0, 7.0)).unwrap();
    gpu.silu_mul(&from, &second, 1, LEN).unwrap();
    gpu.write(&mut from, &[4.0]).unwrap();
    gpu.silu_mul(&from, &third, 1, LEN).unwrap();
    gpu.clear(&mut from).unwrap();
    near(&gpu, &first, want(2.0, 3.0));
    near(&gpu, &second, want(-1.0, 7.0));
    let mut got = [0.0; 2];
    gpu.read(&third, &mut got).unwrap();
    assert!((got[0] - want(4.0, 7.0)).abs() < 1e-4 && (got[1] - want(-1.0, 7.0)).abs() < 1e-4, "{got:?}");
    near(&gpu, &from, 0.0);
}

#[test]
fn recorded_calls_see_what_is_there_when_they_are_made() {
    let Some(device) = crate::device() else { return };
    let gpu = <crate::Gpu as Gpu>::of(&device).unwrap();
    let mut from = gpu.copy_of(&gate_up(2.0, 3.0)).unwrap();
    // Twice as long, so that the second call reads what the first one has written.
    let (middle, out) = (gpu.zeroed::<f32>(2 * LEN).unwrap(), gpu.zeroed::<f32>(LEN).unwrap());
    let recording = gpu
        .record(|| {
            gpu.silu_mul(&from, &middle, 1, LEN)?;
            gpu.silu_mul(&middle, &out, 1, LEN)
        })
        .unwrap();
    near(&gpu, &middle, 0.0);
    // More than are ever on their way at a time.
    for round in 1..=70 {
        gpu.write(&mut from, &gate_up(round as f32, 1.0)).unwrap();
        // SAFETY: the buffers are still there, and the calls read no numbers of places.
        unsafe { gpu.replay(&recording).unwrap() };
    }
    near(&gpu, &middle, want(70.0, 1.0));
    near(&gpu, &out, 0.0);
    gpu.synchronize().unwrap();
}

/// Memory that work needs is there until the work is done.
#[test]
fn memory_is_dropped_behind_the_work_on_it() {
    let Some(device) = crate::device() else { return };
    let gpu = <crate::Gpu as Gpu>::of(&device).unwrap();
    let out = gpu.uninit::<f32>(LEN).unwrap();
    for round in 0..3 {
        let from = gpu.copy_of(&gate_up(1.0 + round as f32, 2.0)).unwrap();
        gpu.silu_mul(&from, &out, 1, LEN).unwrap();
        drop(from);
        // Gets the same memory where it is given out again too early.
        let other = gpu.copy_of(&gate_up(f32::NAN, f32::NAN)).unwrap();
        near(&gpu, &out, want(1.0 + round as f32, 2.0));
        drop(other);
    }
}
