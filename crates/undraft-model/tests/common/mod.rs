//! Small model folders, right and wrong, for the tests of loading.
#![allow(dead_code)] // each test binary uses a part

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// A path within the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The model folders of the repository.
pub fn model_dirs() -> [PathBuf; 3] {
    ["models/qwen3_5-tiny-mtp", "testdata/models/qwen3_5-odd-random", "testdata/models/qwen3_next-random"]
        .map(repository)
}

/// A temporary folder with these files.
pub fn folder(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

/// A safetensors file of this header text and these data, whatever they say.
pub fn raw_safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// A right safetensors file of (name, dtype, shape, data).
pub fn safetensors_file(tensors: &[(&str, &str, &[usize], &[u8])]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let end = data.len() + bytes.len();
        header.insert((*name).to_owned(), json!({"dtype": dtype, "shape": shape, "data_offsets": [data.len(), end]}));
        data.extend_from_slice(bytes);
    }
    raw_safetensors(&Value::Object(header).to_string(), &data)
}

/// Little-endian bytes of f32.
pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// A file with one f32 tensor `a` of shape [2].
pub fn one_tensor() -> Vec<u8> {
    safetensors_file(&[("a", "F32", &[2], &f32_bytes(&[1.0, -2.0]))])
}

/// A byte-level tokenizer of the letters a, b, c, the pair "ab" and one added token, ids 0..=4.
pub fn small_tokenizer() -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{
            "id": 4, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3}, "merges": [["a", "b"]],
        },
    })
}

/// Sets the value at a path of keys (`text_config.hidden_size`); `None` removes it.
pub fn set(json: &mut Value, path: &str, value: Option<Value>) {
    let (parent, key) = match path.rsplit_once('.') {
        Some((parent, key)) => (format!("/{}", parent.replace('.', "/")), key),
        None => (String::new(), path),
    };
    let parent = json.pointer_mut(&parent).unwrap();
    match (parent, value) {
        (Value::Object(map), Some(value)) => drop(map.insert(key.to_owned(), value)),
        (Value::Object(map), None) => drop(map.remove(key)),
        (Value::Array(list), Some(value)) => list[key.parse::<usize>().unwrap()] = value,
        (parent, value) => panic!("cannot set `{path}` of {parent} to {value:?}"),
    }
}

/// Asserts that a message has each of these parts.
#[track_caller]
pub fn assert_says(case: &str, message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{case}: `{part}` is not in: {message}");
    }
    assert!(!message.contains('\n'), "{case}: more than one line: {message}");
}
