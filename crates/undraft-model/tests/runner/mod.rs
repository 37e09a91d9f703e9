//! Models of the repository, and ways to run tokens through them.
#![allow(dead_code)] // each test binary uses a part

use std::path::{Path, PathBuf};
use std::sync::Arc;

use undraft::Device;
use undraft::cpu::{CpuBackend, Isa, ThreadPool};
use undraft_model::Model;
use undraft_model::model::{CacheConfig, Forward, HybridCache, Logits};

/// The trained model.
pub const TRAINED: &str = "models/qwen3_5-tiny-mtp";
/// Random weights in the layout of Qwen3-Next: fused projections, experts.
pub const NEXT: &str = "testdata/models/qwen3_next-random";
/// Random weights, three value heads to a key head, K != V.
pub const ODD: &str = "testdata/models/qwen3_5-odd-random";

/// A path within the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The best instruction set, one thread.
pub fn load(path: &str) -> Model {
    load_on(path, &Device::cpu())
}

pub fn load_on(path: &str, device: &Device) -> Model {
    Model::load(&repository(path), device, &mut |_, _| {}).unwrap()
}

/// `None` (and a line that says so) if this machine does not have the instruction set.
pub fn device(isa: Isa, num_threads: usize) -> Option<Device> {
    let Ok(backend) = CpuBackend::with_isa(isa) else {
        println!("skipped: {isa} is not available on this machine");
        return None;
    };
    Some(Device::cpu_with(match num_threads {
        1 => backend,
        n => backend.with_executor(Arc::new(ThreadPool::new(n))),
    }))
}

pub fn cache(model: &Model) -> HybridCache {
    let capacity = model.config().max_position_embeddings.min(1024);
    model.new_cache(CacheConfig { capacity, max_window: 8 }).unwrap()
}

/// How tokens go through the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    Prefill,
    Decode,
    /// Windows of this many tokens.
    Verify(usize),
}

/// Logits and hidden states of some tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    pub logits: Vec<f32>,
    pub hidden: Vec<f32>,
}

impl Rows {
    pub fn add(&mut self, out: &Forward) {
        self.logits.extend_from_slice(out.logits());
        self.hidden.extend_from_slice(out.hidden());
    }

    pub fn bits(&self) -> (Vec<u32>, Vec<u32>) {
        (bits(&self.logits), bits(&self.hidden))
    }
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Runs tokens behind what the cache holds, and keeps all.
pub fn run(model: &Model, cache: &mut HybridCache, tokens: &[u32], mode: Mode) -> Rows {
    let (mut rows, mut out) = (Rows::default(), Forward::new());
    match mode {
        Mode::Prefill => model
            .prefill(cache, tokens, Logits::All, &mut out, &mut |chunk| {
                rows.add(chunk.forward);
                Ok(())
            })
            .unwrap(),
        Mode::Decode => {
            for &token in tokens {
                model.decode(cache, token, &mut out).unwrap();
                rows.add(&out);
            }
        }
        Mode::Verify(size) => {
            for window in tokens.chunks(size) {
                model.verify(cache, window, &mut out).unwrap().commit(window.len()).unwrap();
                rows.add(&out);
            }
        }
    }
    rows
}

/// Bits of all states, keys and values.
pub fn cache_bits(model: &Model, cache: &mut HybridCache) -> Vec<Vec<u32>> {
    let num_gdn = model.config().num_layers - cache.kv().len();
    let mut all: Vec<_> = cache.kv().iter().flat_map(|kv| [bits(&kv.keys()), bits(&kv.values())]).collect();
    for layer in 0..num_gdn {
        all.push(bits(&cache.recurrent_state(layer).unwrap()));
        all.push(bits(cache.conv_state(layer).unwrap()));
    }
    all
}

/// The first of the largest.
pub fn argmax(values: &[f32]) -> u32 {
    let best = (0..values.len()).reduce(|best, i| if values[i] > values[best] { i } else { best });
    best.unwrap() as u32
}

/// Random ids of the model.
pub fn random_tokens(model: &Model, seed: u64, len: usize) -> Vec<u32> {
    let mut rng = undraft_testing::Rng::new(seed);
    (0..len).map(|_| rng.below(model.config().vocab_size) as u32).collect()
}
