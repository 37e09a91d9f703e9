//! Whole generations held against plain decoding, round by round.

mod acceptance;
mod drafters;
mod edges;
mod errors;
mod pairs;
mod plain;
mod rejection;
mod scripted;
mod scripts;
mod together;
mod trace;
mod trees;

use serde_json::Value;
use undraft::Device;
use undraft::cpu::Isa;
use undraft_model::Model;
use undraft_model::sampling::SamplingParams;

use crate::runner::{TRAINED, device, load_on, random_tokens, repository};

/// Rounds that each test holds against plain decoding, at the least.
const SCRIPTED_TRAINED: usize = 1460;
const SCRIPTED_NEXT: usize = 2920;
const SCRIPTED_ODD: usize = 2920;
const SCRIPTED_ISAS: usize = 500;
const GOLDEN_MTP: usize = 700;
const MTP_TRAINED: usize = 780;
const MTP_RANDOM: usize = 1300;
const LOOKUP: usize = 3700;
const REJECTION: usize = 250;
const SCRIPTED_TREES: usize = 1000;
const TREE_ISAS: usize = 100;
const MTP_TREES: usize = 1000;
const TOGETHER: usize = 1000;
const ADAPTIVE: usize = 2000;
const _: () = {
    let scripted = SCRIPTED_TRAINED + SCRIPTED_NEXT + SCRIPTED_ODD + SCRIPTED_ISAS;
    let drafters = GOLDEN_MTP + MTP_TRAINED + MTP_RANDOM + LOOKUP + REJECTION;
    let trees = SCRIPTED_TREES + TREE_ISAS + MTP_TREES;
    assert!(scripted + drafters + trees + TOGETHER + ADAPTIVE >= 14_000);
};

/// Prints a test's rounds, and asserts that it has not become thin.
#[track_caller]
fn count(name: &str, rounds: usize, at_least: usize) {
    println!("{name}: {rounds} rounds are those of plain decoding");
    assert!(rounds >= at_least, "{name}: {rounds} rounds, expected at least {at_least}");
}

/// Two threads for the trained model; the random ones are too small for more than one.
fn load(path: &str) -> Model {
    let num_threads = if path == TRAINED { 2 } else { 1 };
    load_on(path, &device(Isa::best(), num_threads).unwrap_or_else(Device::cpu))
}

fn greedy() -> SamplingParams {
    SamplingParams::default()
}

fn sampled(seed: u64) -> SamplingParams {
    SamplingParams { temperature: 0.8, top_k: 40, top_p: 0.9, seed }
}

/// A file with golden values of the trained model.
fn golden(name: &str) -> Value {
    let file = repository("testdata/golden/qwen3_5-tiny-mtp").join(name);
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A prompt of the golden values for the trained model, random ids for another.
fn prompt(path: &str, model: &Model, name: &str) -> Vec<u32> {
    match path {
        TRAINED => ids(&golden("prompts.json")[name]["input_ids"]),
        _ => random_tokens(model, 31 + name.len() as u64, 11),
    }
}
