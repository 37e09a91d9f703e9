//! Weights that are as they should be: layouts of folders, names, dtypes and unaligned data.

mod common;

use common::{f32_bytes, folder, model_dirs, raw_safetensors, safetensors_file};
use half::{bf16, f16};
use undraft_model::weights::{WeightData, WeightDtype, Weights};

#[test]
fn folders_of_the_repository() {
    fn shared_by_threads<T: Send + Sync>() {}
    shared_by_threads::<Weights>();
    for (dir, prefix) in model_dirs().into_iter().zip(["model.", "model.language_model.", "model."]) {
        let weights = Weights::open(&dir).unwrap();
        assert_eq!(weights.prefix(), prefix);
        assert!(weights.contains_prefix("mtp."));
        assert!(weights.contains(&format!("{prefix}norm.weight")));
        let names: Vec<&str> = weights.names().collect();
        assert!(names.is_sorted() && names.len() > 40);
        assert_eq!(weights.unused(), names);
        for name in names {
            let tensor = weights.get(name).unwrap();
            assert_eq!(tensor.bytes().len(), tensor.shape().iter().product::<usize>() * tensor.dtype().size());
            assert_eq!(tensor.to_f32_vec().unwrap().len(), tensor.to_storage().unwrap().len());
        }
        weights.expect_all_used().unwrap();
    }
}

#[test]
fn the_crate_reads_the_same_bytes() {
    let [_, _, dir] = model_dirs();
    let file = std::fs::read(dir.join("model.safetensors")).unwrap();
    let theirs = safetensors::SafeTensors::deserialize(&file).unwrap();
    let ours = Weights::open(&dir).unwrap();
    assert_eq!(ours.names().count(), theirs.len());
    for (name, tensor) in theirs.iter() {
        let view = ours.get(name).unwrap();
        assert_eq!((view.shape(), view.bytes()), (tensor.shape(), tensor.data()), "{name}");
    }
}

#[test]
fn three_dtypes_at_odd_addresses() {
    let values = [0.0f32, -1.5, 65504.0, 0.25];
    let bf16_bytes: Vec<u8> = values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
    let f16_bytes: Vec<u8> = values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
    for padding in 0..4 {
        // Spaces behind the header move the data.
        let header = format!(
            r#"{{"b":{{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}},"f":{{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]}},"h":{{"dtype":"F16","shape":[4,1],"data_offsets":[24,32]}}}}{}"#,
            " ".repeat(padding)
        );
        let data = [bf16_bytes.clone(), f32_bytes(&values), f16_bytes.clone()].concat();
        let dir = folder(&[("model.safetensors", raw_safetensors(&header, &data))]);
        let weights = Weights::open(dir.path()).unwrap();
        let f = weights.get("f").unwrap().expect_shape(&[2, 2]).unwrap();
        assert_eq!((f.name(), f.dtype(), f.shape()), ("f", WeightDtype::F32, &[2, 2][..]));
        assert_eq!(f.file(), dir.path().join("model.safetensors"));
        assert_eq!(f.to_storage().unwrap(), WeightData::F32(values.to_vec()));
        assert_eq!(f.to_f32_vec().unwrap(), values);
        let b = weights.get("b").unwrap();
        assert_eq!(b.to_storage().unwrap(), WeightData::Bf16(values.map(bf16::from_f32).to_vec()));
        assert_eq!(b.to_f32_vec().unwrap(), values.map(|x| bf16::from_f32(x).to_f32()));
        let h = weights.get("h").unwrap();
        assert_eq!(h.to_storage().unwrap(), WeightData::F16(values.map(f16::from_f32).to_vec()));
        assert_eq!(h.to_f32_vec().unwrap(), values);
    }
}

#[test]
fn without_an_index_every_file_counts() {
    let a = safetensors_file(&[("a", "F32", &[1], &f32_bytes(&[1.0]))]);
    let b = safetensors_file(&[("b", "F32", &[0, 3], &[]), ("c", "F32", &[], &f32_bytes(&[2.0]))]);
    let dir = folder(&[("x.safetensors", a), ("y.safetensors", b), ("z.txt", vec![1])]);
    let weights = Weights::open(dir.path()).unwrap();
    assert_eq!(weights.names().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(weights.get("b").unwrap().to_storage().unwrap().is_empty());
    assert_eq!(weights.get("c").unwrap().expect_shape(&[]).unwrap().to_f32_vec().unwrap(), [2.0]);
}

#[test]
fn what_nobody_asked_for_is_told() {
    let one: &[u8] = &f32_bytes(&[1.0]);
    let names = ["model.norm.weight", "model.visual.patch", "mtp.fc.weight", "mtp.norm.weight", "other"];
    let tensors = names.map(|name| (name, "F32", &[1usize][..], one));
    let dir = folder(&[("model.safetensors", safetensors_file(&tensors))]);
    let weights = Weights::open(dir.path()).unwrap();
    weights.get("model.norm.weight").unwrap();
    assert!(weights.contains("other")); // asking whether it is there is no use of it
    assert_eq!(weights.unused(), ["mtp.fc.weight", "mtp.norm.weight", "other"]);
    weights.ignore_prefix("mtp.");
    assert_eq!(weights.unused(), ["other"]);
    let message = weights.expect_all_used().unwrap_err().to_string();
    assert!(message.contains("unexpected tensor `other`") && message.contains("config.json"), "{message}");
}

#[test]
fn shards_may_hold_more_than_the_index_lists() {
    let file = safetensors_file(&[
        ("listed", "F32", &[1], &f32_bytes(&[1.0])),
        ("not_listed", "F32", &[1], &f32_bytes(&[2.0])),
    ]);
    let index = br#"{"metadata": {"total_size": 8}, "weight_map": {"listed": "x.safetensors"}}"#.to_vec();
    let dir = folder(&[("model.safetensors.index.json", index), ("x.safetensors", file)]);
    let weights = Weights::open(dir.path()).unwrap();
    weights.get("listed").unwrap();
    assert_eq!(weights.unused(), ["not_listed"]);
}
