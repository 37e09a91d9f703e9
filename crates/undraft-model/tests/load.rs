//! Folders in all their forms, and what is refused.

mod common;
mod runner;

use std::collections::BTreeMap;
use std::path::Path;

use common::{assert_says, folder, safetensors_file};
use half::{bf16, f16};
use runner::{Mode, NEXT, ODD, Rows, cache, load, random_tokens, repository, run};
use safetensors::SafeTensors;
use undraft::Device;
use undraft_model::model::{CacheConfig, DraftStep, Forward, Logits};
use undraft_model::{Model, ModelError, Result};

/// Dtype, shape and bytes by name.
type Tensors = BTreeMap<String, (String, Vec<usize>, Vec<u8>)>;

fn tensors(path: &str) -> Tensors {
    let bytes = std::fs::read(repository(path).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
        (name.to_owned(), (format!("{:?}", view.dtype()), view.shape().to_vec(), view.data().to_vec()))
    };
    file.iter().map(tensor).collect()
}

/// A folder with the configuration of `path` and these tensors.
fn written(path: &str, tensors: &Tensors) -> tempfile::TempDir {
    let list: Vec<_> = tensors.iter().map(|(name, (d, s, b))| (name.as_str(), d.as_str(), &s[..], &b[..])).collect();
    let config = std::fs::read(repository(path).join("config.json")).unwrap();
    folder(&[("config.json", config), ("model.safetensors", safetensors_file(&list))])
}

fn open(dir: &Path) -> Result<Model> {
    Model::load(dir, &Device::cpu(), &mut |_, _| {})
}

fn rows(model: &Model) -> Rows {
    run(model, &mut cache(model), &random_tokens(model, 1, 30), Mode::Prefill)
}

/// Drafts of three pairs, for a look at the MTP head.
fn drafts(model: &Model) -> Vec<u32> {
    let mtp = model.mtp().unwrap();
    let tokens = random_tokens(model, 2, 4);
    let hidden = run(model, &mut cache(model), &tokens[..3], Mode::Prefill).hidden;
    let (mut pairs, mut drafts) = (mtp.new_cache(20).unwrap(), Vec::new());
    mtp.feed(&mut pairs, &hidden, &tokens[1..]).unwrap();
    mtp.draft(&mut pairs, 6, &mut |step| Ok(runner::argmax(step.logits)), &mut drafts).unwrap();
    drafts
}

fn bf16s(bytes: &[u8]) -> Vec<bf16> {
    bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b)).collect()
}

#[test]
fn the_type_of_the_weights_in_the_file_changes_no_bit() {
    for path in [NEXT, ODD] {
        let mut wide = tensors(path);
        for (dtype, _, bytes) in wide.values_mut().filter(|(dtype, ..)| dtype == "BF16") {
            *dtype = "F32".into();
            *bytes = bf16s(bytes).iter().flat_map(|x| x.to_f32().to_le_bytes()).collect();
        }
        let (stored, wide) = (load(path), open(written(path, &wide).path()).unwrap());
        assert!(wide.weight_bytes() > stored.weight_bytes() * 3 / 2);
        assert!(rows(&wide).bits() == rows(&stored).bits(), "{path}");
        assert_eq!(drafts(&wide), drafts(&stored));
    }
}

#[test]
fn f16_weights_are_read_as_such() {
    let (mut half, mut wide) = (tensors(ODD), tensors(ODD));
    for (name, (dtype, _, bytes)) in &mut half {
        if dtype == "BF16" {
            let values: Vec<f16> = bf16s(bytes).iter().map(|x| f16::from_f32(x.to_f32())).collect();
            (*dtype, *bytes) = ("F16".into(), values.iter().flat_map(|x| x.to_le_bytes()).collect());
            let entry = wide.get_mut(name).unwrap();
            entry.0 = "F32".into();
            entry.2 = values.iter().flat_map(|x| x.to_f32().to_le_bytes()).collect();
        }
    }
    let model = open(written(ODD, &half).path()).unwrap();
    assert!(rows(&model).bits() == rows(&open(written(ODD, &wide).path()).unwrap()).bits());
}

#[test]
fn stacked_experts_are_the_single_ones() {
    let mut stacked = Tensors::new();
    let mut parts: BTreeMap<(String, usize), [Vec<u8>; 3]> = BTreeMap::new();
    for (name, tensor) in tensors(NEXT) {
        let Some((layer, rest)) = name.split_once("experts.").filter(|(_, rest)| !rest.starts_with("gate")) else {
            stacked.insert(name, tensor);
            continue;
        };
        let (number, kind) = rest.split_once('.').unwrap();
        let kind = ["gate_proj.weight", "up_proj.weight", "down_proj.weight"].iter().position(|k| *k == kind).unwrap();
        parts.entry((layer.to_owned(), number.parse().unwrap())).or_default()[kind] = tensor.2;
    }
    for ((layer, _), [gate, up, down]) in parts {
        let mut add = |name: &str, shape: [usize; 3], bytes: &[&[u8]]| {
            let (_, _, all) =
                stacked.entry(format!("{layer}{name}")).or_insert_with(|| ("BF16".into(), shape.to_vec(), Vec::new()));
            all.extend_from_slice(&bytes.concat());
        };
        add("experts.gate_up_proj", [8, 64, 128], &[&gate, &up]);
        add("experts.down_proj", [8, 128, 32], &[&down]);
    }
    let model = open(written(NEXT, &stacked).path()).unwrap();
    assert!(rows(&model).bits() == rows(&load(NEXT)).bits());
    assert_eq!(drafts(&model), drafts(&load(NEXT)));
}

#[test]
fn head_and_mtp_head_are_told_by_their_tensors() {
    let mut all = tensors(ODD);
    let head = all.remove("lm_head.weight").unwrap();
    let untied = load(ODD);
    let tied = open(written(ODD, &all).path()).unwrap();
    assert_eq!(untied.weight_bytes() - tied.weight_bytes(), head.2.len());
    assert_eq!(rows(&tied).hidden, rows(&untied).hidden);
    assert_ne!(rows(&tied).logits, rows(&untied).logits);
    // The same values in both places are the same model.
    all.insert("lm_head.weight".into(), all["model.language_model.embed_tokens.weight"].clone());
    assert_eq!(rows(&open(written(ODD, &all).path()).unwrap()), rows(&tied));

    assert!(untied.mtp().is_some());
    all.retain(|name, _| !name.starts_with("mtp."));
    let plain = open(written(ODD, &all).path()).unwrap();
    assert!(plain.mtp().is_none());
    assert_eq!(rows(&plain), rows(&tied));
}

#[test]
fn a_model_can_be_shared_by_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    let model = load(NEXT);
    shared(&model);
    shared(&cache(&model));
    shared(&Forward::new());
}

#[test]
fn progress_counts_every_tensor() {
    let mut calls = Vec::new();
    Model::load(&repository(NEXT), &Device::cpu(), &mut |done, total| calls.push((done, total))).unwrap();
    let total = tensors(NEXT).len();
    assert_eq!(calls.first(), Some(&(0, total)));
    assert_eq!(calls.last(), Some(&(total, total)));
    assert!(calls.is_sorted());
}

#[test]
fn wrong_tensors_are_named() {
    type Change = fn(&mut Tensors);
    let cases: [(&str, Change, &[&str]); 7] = [
        ("missing", |t| drop(t.remove("model.layers.2.linear_attn.A_log")), &["model.layers.2.linear_attn.A_log"]),
        ("missing expert", |t| drop(t.remove("model.layers.0.mlp.experts.7.up_proj.weight")), &["experts.7.up_proj"]),
        ("missing in MTP", |t| drop(t.remove("mtp.norm.weight")), &["mtp.norm.weight"]),
        (
            "extra",
            |t| drop(t.insert("model.layers.9.x".into(), ("F32".into(), vec![0], Vec::new()))),
            &["model.layers.9.x", "unexpected"],
        ),
        (
            "shape",
            |t| t.get_mut("model.layers.0.linear_attn.in_proj_ba.weight").unwrap().1 = vec![128, 8],
            &["in_proj_ba", "[128, 8]", "[8, 128]"],
        ),
        (
            "dtype",
            |t| {
                let norm = t.get_mut("model.norm.weight").unwrap();
                norm.0 = "I16".into();
            },
            &["model.norm.weight", "I16"],
        ),
        (
            "NaN",
            |t| t.get_mut("model.layers.3.self_attn.q_proj.weight").unwrap().2[7] = 0x7f,
            &["model.layers.3.self_attn.q_proj.weight", "element 3"],
        ),
    ];
    for (case, change, says) in cases {
        let mut tensors = tensors(NEXT);
        if case == "NaN" {
            tensors.get_mut("model.layers.3.self_attn.q_proj.weight").unwrap().2[6] = 0xff;
        }
        change(&mut tensors);
        let error = open(written(NEXT, &tensors).path()).unwrap_err();
        assert_says(case, &error.to_string(), says);
    }
}

#[test]
fn wrong_calls_leave_the_cache_as_it_was() {
    let model = load(NEXT);
    let other = load(NEXT);
    let mut out = Forward::new();
    let new = |capacity, max_window| model.new_cache(CacheConfig { capacity, max_window });
    for capacity in [0, 2049] {
        assert!(matches!(new(capacity, 4), Err(ModelError::Capacity { max: 2048, .. })));
    }
    assert!(matches!(new(10, 0), Err(ModelError::Pool(_))));

    let mut cache = new(10, 4).unwrap();
    model.prefill(&mut cache, &[1, 2, 3], Logits::None, &mut out, &mut |_| Ok(())).unwrap();
    let before = runner::cache_bits(&model, &mut cache);
    let refuse = |error: Result<()>, says: &[&str]| assert_says("call", &error.unwrap_err().to_string(), says);
    let mut prefill =
        |model: &Model, tokens: &[u32]| model.prefill(&mut cache, tokens, Logits::None, &mut out, &mut |_| Ok(()));
    refuse(prefill(&model, &[]), &["no tokens"]);
    refuse(prefill(&model, &[5, 512]), &["token 1", "512"]);
    refuse(prefill(&model, &[0; 8]), &["8 tokens behind 3", "10"]);
    refuse(prefill(&other, &[0]), &["another"]);
    refuse(model.verify(&mut cache, &[0; 8], &mut out).map(drop), &["8 tokens behind 3"]);
    refuse(model.verify(&mut cache, &[0; 5], &mut out).map(drop), &["5 tokens", "max_window"]);
    refuse(model.verify(&mut cache, &[u32::MAX], &mut out).map(drop), &["4294967295"]);
    refuse(other.decode(&mut cache, 0, &mut out), &["another"]);
    let window = model.verify(&mut cache, &[4, 5], &mut out).unwrap();
    refuse(window.commit(3), &["3", "0..=2"]);
    let empty = model.verify(&mut cache, &[], &mut out).unwrap();
    empty.commit(0).unwrap();
    assert!(out.logits().is_empty() && out.hidden().is_empty());
    assert_eq!(cache.len(), 3);
    assert!(runner::cache_bits(&model, &mut cache) == before);

    // Room for seven more, and no further.
    model.prefill(&mut cache, &[6; 7], Logits::None, &mut out, &mut |_| Ok(())).unwrap();
    refuse(model.decode(&mut cache, 0, &mut out), &["1 tokens behind 10"]);
    cache.reset().unwrap();
    assert!(cache.is_empty());
    let again = run(&model, &mut cache, &[1, 2, 3], Mode::Decode);
    assert!(again.bits() == run(&model, &mut runner::cache(&model), &[1, 2, 3], Mode::Decode).bits());
}

#[test]
fn a_caller_can_end_a_prefill_behind_a_chunk() {
    let model = load(NEXT);
    let tokens = random_tokens(&model, 3, 600);
    let (mut cache, mut out) = (cache(&model), Forward::new());
    let mut seen = Vec::new();
    let result = model.prefill(&mut cache, &tokens, Logits::Last, &mut out, &mut |chunk| {
        seen.push((chunk.tokens.clone(), chunk.total));
        if seen.len() < 2 { Ok(()) } else { Err(ModelError::EmptyPrompt) }
    });
    assert!(matches!(result, Err(ModelError::EmptyPrompt)));
    assert_eq!(seen, [(0..256, 600), (256..512, 600)]);
    assert_eq!(cache.len(), 512);
    // It goes on from there.
    let rest = run(&model, &mut cache, &tokens[512..], Mode::Prefill);
    let all = run(&model, &mut runner::cache(&model), &tokens, Mode::Prefill);
    assert!(runner::bits(&rest.hidden) == runner::bits(&all.hidden[512 * model.config().hidden_size..]));
}

#[test]
fn wrong_calls_of_the_mtp_head() {
    let model = load(NEXT);
    let mtp = model.mtp().unwrap();
    let hidden = vec![0.5; 3 * model.config().hidden_size];
    assert!(matches!(mtp.new_cache(0), Err(ModelError::Capacity { .. })));
    let mut pairs = mtp.new_cache(4).unwrap();
    let refuse = |error: Result<()>, says: &[&str]| assert_says("call", &error.unwrap_err().to_string(), says);
    refuse(mtp.feed(&mut pairs, &hidden, &[1, 2]), &["384", "num_tokens=2", "hidden_size=128"]);
    refuse(mtp.feed(&mut pairs, &hidden, &[1, 2, 512]), &["token 2", "512"]);
    mtp.feed(&mut pairs, &hidden, &[1, 2, 3]).unwrap();
    refuse(mtp.feed(&mut pairs, &hidden, &[1, 2, 3]), &["3 tokens behind 3"]);
    refuse(load(NEXT).mtp().unwrap().feed(&mut pairs, &hidden[..128], &[1]), &["another"]);
    let mut drafts = Vec::new();
    let bad = &mut |_: DraftStep<'_>| Ok(512);
    refuse(mtp.draft(&mut pairs, 1, bad, &mut drafts).map(drop), &["512"]);
    let fails = &mut |step: DraftStep<'_>| if step.index == 0 { Ok(7) } else { Err(ModelError::EmptyPrompt) };
    refuse(mtp.draft(&mut pairs, 3, fails, &mut drafts).map(drop), &["no tokens"]);
    assert_eq!(pairs.len(), 3);
    assert!(pairs.last_hidden().is_some());
    pairs.reset();
    assert!(pairs.is_empty() && pairs.last_hidden().is_none());
}
