//! Kernels with planted mistakes: the emulator finds each.

use std::mem::MaybeUninit;
use std::sync::Arc;

use undraft_core::{Capture, GdnDims};
use undraft_cuda::driver::{DeviceBuffer, DevicePtr, Driver, Launch, Stream};
use undraft_cuda::{CudaBackend, CudaError};
use undraft_emulator::{EmulatedDriver, Options, Order, Poison, Schedule};
use undraft_testing::cases::Windows;
use undraft_testing::cases::fused_recurrent_gated_delta_rule::DeltaRuleCase;
use undraft_testing::harness::Memory;
use undraft_testing::harness::fused_recurrent_gated_delta_rule::run as run_recurrent;
use undraft_testing::{DType, Rng};

/// `FaultParams` of `kernels/faults.cu`.
#[repr(C)]
struct FaultParams {
    input: DevicePtr,
    out: DevicePtr,
}

const BLOCKS: u32 = 3;
const THREADS: usize = 128;

fn input() -> Vec<f32> {
    (0..THREADS).map(|i| (i * i % 97) as f32).collect()
}

/// What the kernel has written, or the driver's words.
fn run(options: Options, kernel: &str, shared: u32) -> Result<Vec<f32>, String> {
    let driver: Arc<dyn Driver> = Arc::new(EmulatedDriver::new(options).unwrap());
    let stream = Stream::new(&driver).unwrap();
    let input = DeviceBuffer::from_slice(&stream, &input()).unwrap();
    let mut values = vec![-1.0; BLOCKS as usize * THREADS];
    let out = DeviceBuffer::from_slice(&stream, &values).unwrap();
    let params = [input.address(), out.address()].map(u64::to_ne_bytes).concat();
    let params: Vec<MaybeUninit<u8>> = params.into_iter().map(MaybeUninit::new).collect();
    assert_eq!(params.len(), size_of::<FaultParams>());
    let function = driver.function(kernel).unwrap();
    let launch =
        Launch { function, blocks: (BLOCKS, 1), threads: THREADS as u32, shared, overlap: false, params: &params };
    // SAFETY: the parameter points to as many elements as the kernels of `faults.cu` take; the wrong ones among them go an
    // element further, which lies in a guard of the emulator.
    unsafe { driver.launch(stream.handle(), &launch).unwrap() };
    match out.read(&stream, 0, &mut values) {
        Ok(()) => Ok(values),
        Err(CudaError::OtherDriver { call: "cuLaunchKernel", why }) => Err(why),
        Err(e) => panic!("{kernel}: {e}"),
    }
}

/// Shared memory for a float a thread.
const SHARED: u32 = 4 * THREADS as u32;

fn assert_found(kernel: &str, expected: &[&str]) {
    let why = run(Options::every_schedule(), kernel, SHARED).expect_err(kernel);
    for part in expected.iter().chain(&[kernel]) {
        assert!(why.contains(part), "{kernel}: expected `{part}` in: {why}");
    }
}

#[test]
fn right_kernels_pass() {
    let x = input();
    let warp_sum = |t: usize| x[t / 32 * 32..][..32].iter().sum::<f32>();
    let halves: Vec<f32> = (0..THREADS).map(|t| if t % 32 < 16 { x[t ^ 1] } else { x[t] + x[t ^ 2] }).collect();
    let expected: Vec<f32> = (0..THREADS).map(|t| x[(t + 37) % THREADS] + warp_sum(t)).collect();
    let crossed: Vec<f32> = (0..THREADS).map(|t| halves[t / 32 * 32 + 31 - t % 32]).collect();
    for threads in [1, 3] {
        let options = Options { threads, ..Options::every_schedule() };
        assert_eq!(run(options.clone(), "right", SHARED).unwrap(), expected.repeat(BLOCKS as usize));
        assert_eq!(run(options, "right_in_halves", 0).unwrap(), crossed.repeat(BLOCKS as usize));
    }
}

#[test]
fn collectives_that_not_all_lanes_reach_are_found() {
    let missing = "a collective that not all lanes reach: ";
    assert_found("shuffle_in_branch", &[missing, "__shfl_xor_sync (", "faults.cu:", "has returned"]);
    assert_found(
        "different_shuffles",
        &[missing, "thread 0 waits in __shfl_xor_sync", "thread 16 waits in __shfl_xor_sync"],
    );
    assert_found("returned_before_shuffle", &[missing, "thread 40 has returned"]);
    assert_found("barrier_meets_shuffle", &[missing, "waits in __syncthreads (", "waits in __shfl_xor_sync ("]);
    assert_found("shuffle_of_others", &["a lane takes part in a collective of others: thread 16 "]);
}

#[test]
fn barriers_that_not_all_threads_reach_are_found() {
    let missing = "a barrier that not all threads reach: ";
    assert_found("barrier_in_branch", &[missing, "waits in __syncthreads (", "has returned"]);
    assert_found("barrier_in_half_a_warp", &[missing, "has returned"]);
    assert_found(
        "different_barriers",
        &[missing, "thread 0 waits in __syncthreads (", "thread 64 waits in __syncthreads ("],
    );
}

#[test]
fn results_that_depend_on_the_order_of_threads_are_found() {
    for kernel in ["missing_barrier", "missing_warp_barrier", "missing_second_barrier", "blocks_in_order"] {
        assert_found(kernel, &["is another one under", "than under"]);
        // One order alone gives some result.
        run(Options::default(), kernel, SHARED).unwrap();
    }
}

#[test]
fn writes_outside_of_memory_are_found() {
    let outside = format!("a write outside of the allocation of {} bytes", BLOCKS as usize * THREADS * 4);
    assert_found("past_the_end", &[&outside]);
    assert_found("before_the_begin", &[&outside]);
    assert_found("past_shared_memory", &["a write past the end of shared memory"]);
    let why = run(Options::default(), "missing_barrier", 0).unwrap_err();
    assert!(why.contains("a write past the end of shared memory"), "{why}");
}

#[test]
fn accesses_that_end_a_program_end_the_launch() {
    assert_found("wild_pointer", &["thread 0: an access to memory that is not there, at 0x"]);
    assert_found("null_pointer", &["thread 0: an access to memory that is not there, at "]);
    assert_found("too_large_a_frame", &["thread 0: an access to memory that is not there, at 0x"]);
    // Elsewhere it gives some number, as on a GPU.
    if cfg!(target_arch = "x86_64") {
        assert_found("division_by_zero", &["thread 0: a division by 0, at 0x"]);
    }
    run(Options::default(), "right", SHARED).unwrap();
}

#[test]
fn reads_of_what_nobody_has_written_are_found() {
    assert_found("unwritten_shared_memory", &["is another one under"]);
    let values = run(Options::default(), "unwritten_shared_memory", SHARED).unwrap();
    assert_eq!(values.iter().filter(|x| x.is_nan()).count(), BLOCKS as usize);
}

#[test]
fn misused_asynchronous_copies_are_found() {
    for kernel in ["missing_copies_done", "source_changes_under_copy", "copies_of_others"] {
        assert_found(kernel, &["is another one under"]);
    }
    let values = run(Options::default(), "missing_copies_done", SHARED).unwrap();
    assert!(values.iter().all(|x| x.is_nan()), "{values:?}");
    assert_found("returns_before_copies", &["the thread returns while copies are on their way"]);
    assert_found("misaligned_copy", &["a copy between addresses that are not aligned to its size"]);
}

/// The recurrence on the kernel for short chains with K = 64, or on what takes its place.
fn recurrence(options: Options) -> Result<(), String> {
    let backend = CudaBackend::with_driver(Arc::new(EmulatedDriver::new(options).unwrap())).unwrap();
    let rng = &mut Rng::new(17);
    let dims = GdnDims::new(1, 2, 64, 96).unwrap();
    let windows = Windows::chains(vec![4, 7, 8], vec![2, 0, 1], 3);
    let mut case = DeltaRuleCase::draw(rng, DType::F32, 0, dims, windows);
    case.draw_pending(rng);
    // As many entries as this kernel takes.
    case.num_pending.iter_mut().for_each(|n| *n = (*n).min(8));
    run_recurrent(&backend, &case, Capture::DeltaLog, Memory::PLAIN).map(|outcome| assert!(outcome.is_some()))
}

#[test]
fn mutants_of_the_recurrence_are_found() {
    recurrence(Options::every_schedule()).unwrap();
    for mutant in ["mutant_without_barrier", "mutant_without_copies_done", "mutant_without_end"] {
        let substitutes = vec![("recurrent_f32_k64_r4_chain".to_owned(), mutant.to_owned())];
        let why = recurrence(Options { substitutes, ..Options::every_schedule() }).expect_err(mutant);
        assert!(why.contains(mutant), "{why}");
    }
}

#[test]
fn schedules_are_what_they_say() {
    for order in [Order::Forward, Order::Reversed, Order::Shuffled { seed: 5 }] {
        for (poison, early_copies) in [(Poison::Nan, true), (Poison::Small, false)] {
            let options = Options::with_schedule(Schedule { order, early_copies, poison });
            let values = run(options.clone(), "missing_barrier", SHARED).unwrap();
            let small = values.contains(&f32::from_bits(0x3e3e_3e3e));
            assert_eq!((small, values.iter().any(|x| x.is_nan())), (poison == Poison::Small, poison == Poison::Nan));
            let copied = run(options, "missing_copies_done", SHARED).unwrap();
            assert_eq!(copied == input().repeat(BLOCKS as usize), early_copies);
        }
    }
}
