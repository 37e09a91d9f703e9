//! Time of decode, verify and prefill of a model folder, per instruction set and number of threads.
//!
//! `cargo run --release -p undraft-model --example speed -- models/qwen3_5-tiny-mtp [threads]`
//!
//! Times are the least of many, and verify is given as a ratio to decode in the same run.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use undraft::Device;
use undraft::cpu::{CpuBackend, Isa, ThreadPool};
use undraft_model::Model;
use undraft_model::model::{CacheConfig, Forward, Logits};

const PROMPT: usize = 512;
const ROUNDS: usize = 40;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().unwrap_or_else(|| "models/qwen3_5-tiny-mtp".to_owned());
    let threads: usize = args.next().map_or(Ok(1), |n| n.parse())?;
    for isa in [Isa::Avx512, Isa::Avx2, Isa::Neon] {
        let Ok(backend) = CpuBackend::with_isa(isa) else { continue };
        for num_threads in 1..=threads {
            let backend = backend.clone().with_executor(Arc::new(ThreadPool::new(num_threads)));
            let model = Model::load(Path::new(&dir), &Device::cpu_with(backend), &mut |_, _| {})?;
            println!("{isa}, {num_threads} threads, {:.1} MB of weights", model.weight_bytes() as f64 / 1e6);
            measure(&model)?;
        }
    }
    Ok(())
}

fn measure(model: &Model) -> Result<(), Box<dyn std::error::Error>> {
    let tokens: Vec<u32> = (0..PROMPT).map(|i| (i * 7919 % model.config().vocab_size) as u32).collect();
    let mut cache = model.new_cache(CacheConfig { capacity: PROMPT + 16, max_window: 16 })?;
    let mut out = Forward::new();
    let prefill = least(4, || {
        cache.reset()?;
        model.prefill(&mut cache, &tokens, Logits::Last, &mut out, &mut |_| Ok(()))
    })?;
    println!("  prefill   {:8.1} us/token", prefill / PROMPT as f64);
    let sizes = [1, 2, 3, 4, 5, 6, 8, 16];
    let mut times = [f64::MAX; 8];
    // In turn, so that a busy moment of the machine meets all of them.
    for _ in 0..ROUNDS {
        for (size, time) in sizes.iter().zip(&mut times) {
            *time = time.min(least(1, || {
                model.verify(&mut cache, &tokens[..*size], &mut out)?.rollback();
                Ok(())
            })?);
        }
    }
    for (size, time) in sizes.iter().zip(times) {
        println!("  verify({size:2}) {time:8.1} us, {:.2} x decode", time / times[0]);
    }
    if let Some(mtp) = model.mtp() {
        let mut pairs = mtp.new_cache(PROMPT)?;
        model.verify(&mut cache, &tokens[..8], &mut out)?.rollback();
        mtp.feed(&mut pairs, out.hidden(), &tokens[..8])?;
        let mut drafts = Vec::new();
        let draft = least(ROUNDS, || mtp.draft(&mut pairs, 4, &mut |_| Ok(3), &mut drafts).map(drop))?;
        println!("  draft(4)  {draft:8.1} us, {:.2} x decode", draft / times[0]);
    }
    Ok(())
}

/// Microseconds.
fn least(times: usize, mut run: impl FnMut() -> undraft_model::Result<()>) -> undraft_model::Result<f64> {
    let mut best = f64::MAX;
    for _ in 0..times {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(best)
}
