//! Decode and verify next to a copy of the same states, which together exceed the caches.
//!
//! `cargo bench -p undraft-cpu`; `undraft bench` prints the same as ratios.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use undraft_core::ops::{DeltaRuleInputs, FusedRecurrentArgs};
use undraft_core::{Backend, Beta, CaptureMut, Decay, DeltaLogMut, GdnDims, HeadMap, QkNorm, Rounding, Rows, RowsMut};
use undraft_cpu::{AlignedBuffer, CpuBackend};

const NUM_SLOTS: usize = 256;

fn recurrent(criterion: &mut Criterion) {
    let dims = GdnDims::new(16, 32, 128, 128).expect("sizes are in range");
    let backend = CpuBackend::new();
    let len = dims.state_len();
    let mut state = AlignedBuffer::zeroed(NUM_SLOTS * len).expect("memory for the states");
    let mut copy = AlignedBuffer::zeroed(len).expect("memory for a copy");
    state.iter_mut().enumerate().for_each(|(i, x)| *x = (i % 101) as f32 / 101.0 - 0.5);
    let mut group = criterion.benchmark_group(format!("{}/16_32_128", backend.caps().backend));
    group.throughput(Throughput::Bytes(8 * len as u64));
    let mut slot = 0;
    group.bench_function("copy", |bencher| {
        bencher.iter(|| {
            slot = (slot + 1) % NUM_SLOTS;
            copy.copy_from_slice(&state[slot * len..(slot + 1) * len]);
            black_box(&mut copy);
        });
    });
    // Tokens of the window, and of the window before that the call replays first.
    for (name, t, num_pending, keeps_log) in [
        ("decode_1", 1, 0, false),
        ("verify_1_commit_1", 1, 1, true),
        ("verify_4_commit_2", 4, 2, true),
        ("verify_8_commit_4", 8, 4, true),
    ] {
        let row: Vec<f32> = (0..t * dims.value_dim()).map(|i| (i % 37) as f32 / 37.0 - 0.4).collect();
        let gate = vec![0.1; t * dims.num_v_heads()];
        let mut out = vec![0.0; t * dims.value_dim()];
        let mut log_k = vec![0.01; NUM_SLOTS * t * dims.key_dim()];
        let mut log_decay = vec![0.99; NUM_SLOTS * t * dims.num_v_heads()];
        let mut log_delta = vec![0.01; NUM_SLOTS * t * dims.value_dim()];
        let cu_seqlens = [0, t as i32];
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                slot = (slot + 1) % NUM_SLOTS;
                let inputs = DeltaRuleInputs {
                    dims,
                    q: Rows::new(&row[..], dims.value_dim()),
                    k: Rows::new(&row[..], dims.value_dim()),
                    v: Rows::new(&row[..], dims.value_dim()),
                    decay: Decay::Linear(&gate),
                    beta: Beta::Value(&gate),
                    scale: DeltaRuleInputs::default_scale(&dims),
                    head_map: HeadMap::Grouped,
                    qk_norm: QkNorm::L2Norm { eps: 1e-6 },
                    rounding: Rounding::F32,
                    cu_seqlens: &cu_seqlens,
                    state_indices: &[slot as i32],
                    parents: &[],
                };
                let args = FusedRecurrentArgs {
                    inputs,
                    num_slots: NUM_SLOTS,
                    state: (&mut state[..]).into(),
                    log: Some(DeltaLogMut {
                        k: &mut log_k,
                        decay: &mut log_decay,
                        delta: &mut log_delta,
                        max_tokens: t,
                    }),
                    num_pending: &[num_pending],
                    pending_path: &[],
                    capture: if keeps_log { CaptureMut::DeltaLog } else { CaptureMut::Final },
                    out: RowsMut::new(&mut out[..], dims.value_dim()),
                };
                let checked = args.check().expect("arguments fit");
                backend.fused_recurrent_gated_delta_rule(checked).expect("the CPU has this operation");
            });
        });
    }
    group.finish();
}

criterion_group!(benches, recurrent);
criterion_main!(benches);
