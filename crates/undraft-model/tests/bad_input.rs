//! Files that lie, lack, exceed or are broken: each an error that names the place, what was found and what was expected.

mod common;

use std::path::Path;

use common::{assert_says, f32_bytes, folder, model_dirs, one_tensor, raw_safetensors, safetensors_file, set};
use proptest::prelude::*;
use serde_json::{Value, json};
use undraft_model::ModelConfig;
use undraft_model::config::GenerationConfig;
use undraft_model::text::TextCodec;
use undraft_model::weights::Weights;

/// File names with their bytes.
type Files = Vec<(&'static str, Vec<u8>)>;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The base of configuration cases: flat, nested, with experts.
fn config(model: usize) -> Value {
    let dir = &model_dirs()[model];
    serde_json::from_str(&std::fs::read_to_string(dir.join("config.json")).unwrap()).unwrap()
}

fn config_error(config: &str) -> String {
    ModelConfig::from_json(config, Path::new("x/config.json")).unwrap_err().to_string()
}

#[test]
fn configuration_values() {
    let missing = None;
    let cases: &[(usize, &str, Option<Value>, &[&str])] = &[
        (0, "hidden_size", Some(json!(0)), &["`hidden_size` is 0", "1..=1048576"]),
        (0, "hidden_size", Some(json!(-3)), &["`hidden_size` is -3", "1..=1048576"]),
        (0, "hidden_size", Some(json!(1u64 << 40)), &["is 1099511627776", "1..=1048576"]),
        (0, "hidden_size", Some(json!(256.0)), &["is 256.0", "an integer"]),
        (0, "hidden_size", Some(json!("256")), &["is \"256\"", "an integer"]),
        (0, "hidden_size", Some(json!([256])), &["a list of 1", "an integer"]),
        (0, "hidden_size", missing.clone(), &["`hidden_size` is missing", "1..=1048576"]),
        (0, "hidden_size", Some(Value::Null), &["`hidden_size` is missing"]),
        (1, "text_config.hidden_size", Some(json!(-3)), &["`text_config.hidden_size` is -3"]),
        (1, "text_config.head_dim", missing.clone(), &["`text_config.head_dim` is missing"]),
        (1, "text_config", Some(json!(7)), &["`text_config` is 7", "an object"]),
        (0, "vocab_size", Some(json!(0)), &["`vocab_size` is 0"]),
        (0, "vocab_size", Some(json!(1u64 << 33)), &["`vocab_size` is 8589934592", "1..=16777216"]),
        (0, "num_hidden_layers", Some(json!(0)), &["`num_hidden_layers` is 0", "1..=4096"]),
        (0, "num_hidden_layers", Some(json!(9)), &["`layer_types` is a list of 8", "`num_hidden_layers` = 9"]),
        (0, "layer_types.2", Some(json!("mamba")), &["`layer_types[2]` is \"mamba\"", "\"linear_attention\""]),
        (0, "layer_types", Some(json!("full")), &["`layer_types` is \"full\"", "a list"]),
        (2, "full_attention_interval", Some(json!(0)), &["`full_attention_interval` is 0"]),
        (0, "num_key_value_heads", Some(json!(3)), &["`num_attention_heads` is 4", "`num_key_value_heads` = 3"]),
        (0, "num_key_value_heads", Some(json!(0)), &["`num_key_value_heads` is 0"]),
        (0, "linear_num_value_heads", Some(json!(5)), &["`linear_num_value_heads` is 5", "`linear_num_key_heads` = 2"]),
        (
            1,
            "text_config.linear_num_value_heads",
            Some(json!(5)),
            &["`text_config.linear_num_value_heads` is 5", "`text_config.linear_num_key_heads` = 2"],
        ),
        (0, "linear_key_head_dim", Some(json!(257)), &["`linear_key_head_dim` is 257", "1..=256"]),
        (0, "linear_value_head_dim", Some(json!(0)), &["`linear_value_head_dim` is 0", "1..=256"]),
        (0, "linear_conv_kernel_dim", Some(json!(1)), &["`linear_conv_kernel_dim` is 1", "2..=8"]),
        (0, "linear_conv_kernel_dim", Some(json!(9)), &["`linear_conv_kernel_dim` is 9", "2..=8"]),
        (0, "rms_norm_eps", Some(json!(0)), &["`rms_norm_eps` is 0", "1.0"]),
        (0, "rms_norm_eps", Some(json!(-1e-6)), &["`rms_norm_eps` is -1e-6"]),
        (0, "rms_norm_eps", Some(json!("1e-6")), &["`rms_norm_eps` is \"1e-6\"", "a number"]),
        (0, "max_position_embeddings", Some(json!(0)), &["`max_position_embeddings` is 0"]),
        (0, "rope_parameters.rope_theta", Some(json!(0)), &["`rope_parameters.rope_theta` is 0"]),
        (0, "rope_parameters.rope_theta", missing.clone(), &["`rope_theta` is missing", "1.0..=1e15"]),
        (
            0,
            "rope_parameters.rope_type",
            Some(json!("yarn")),
            &["`rope_parameters.rope_type` is \"yarn\"", "\"default\""],
        ),
        (2, "rope_scaling", Some(json!({"type": "linear"})), &["`rope_scaling.type` is \"linear\"", "\"default\""]),
        (0, "rope_parameters.partial_rotary_factor", Some(json!(1.5)), &["is 1.5", "0.0..=1.0"]),
        (
            0,
            "rope_parameters.partial_rotary_factor",
            Some(json!(0.0)),
            &["`rope_parameters.partial_rotary_factor` is 0.0, which rotates 0 of `head_dim` = 128", "even"],
        ),
        (2, "partial_rotary_factor", Some(json!(0.33)), &["`partial_rotary_factor` is 0.33", "rotates 21", "even"]),
        (0, "hidden_act", Some(json!("gelu")), &["`hidden_act` is \"gelu\"", "\"silu\""]),
        (0, "attention_bias", Some(json!(true)), &["`attention_bias` is true", "false"]),
        (0, "attn_output_gate", Some(json!(false)), &["`attn_output_gate` is false", "true"]),
        (0, "quantization_config", Some(json!({"bits": 4})), &["`quantization_config` is an object", "bf16"]),
        (0, "model_type", Some(json!("llama")), &["`model_type` is \"llama\"", "qwen3_5_text", "qwen3_next"]),
        (0, "model_type", missing.clone(), &["`model_type` is missing", "qwen3_5_text"]),
        (1, "text_config.model_type", Some(json!("qwen3_5_moe_text")), &["`text_config.model_type`", "qwen3_5_text"]),
        (2, "num_experts", missing.clone(), &["`num_experts` is missing"]),
        (2, "num_experts_per_tok", Some(json!(9)), &["`num_experts_per_tok` is 9", "1..=8"]),
        (2, "mlp_only_layers", Some(json!([1, 4])), &["`mlp_only_layers[1]` is 4", "0..=3"]),
        (2, "decoder_sparse_step", Some(json!(0)), &["`decoder_sparse_step` is 0"]),
        (2, "norm_topk_prob", Some(json!(1)), &["`norm_topk_prob` is 1", "true or false"]),
        (2, "moe_intermediate_size", Some(json!(-1)), &["`moe_intermediate_size` is -1"]),
    ];
    for (model, path, value, parts) in cases {
        let mut config = config(*model);
        set(&mut config, path, value.clone());
        let case = format!("{path} = {value:?}");
        assert_says(&case, &config_error(&config.to_string()), &[&["`x/config.json`"], *parts].concat());
    }
}

#[test]
fn sizes_that_are_fine_one_by_one() {
    let mut config = config(0);
    set(&mut config, "vocab_size", Some(json!(1 << 24)));
    set(&mut config, "hidden_size", Some(json!(1 << 20)));
    assert_says("product", &config_error(&config.to_string()), &["`vocab_size` = 16777216 x `hidden_size` = 1048576"]);
}

#[test]
fn configurations_that_are_no_configuration() {
    for (text, parts) in [
        ("", &["EOF"][..]),
        ("[]", &["invalid type: sequence", "expected a map"]),
        ("{\"model_type\": \"qwen3_next\"", &["EOF", "line 1"]),
        ("{\"hidden_size\": NaN}", &["line 1"]),
        ("{\"hidden_size\": 1e999}", &["number out of range", "line 1"]),
        ("{} {}", &["trailing characters"]),
        (&format!("{{\"a\": {}", "[".repeat(100_000)), &["recursion limit"]),
    ] {
        assert_says(text.get(..20).unwrap_or(text), &config_error(text), &[&["`x/config.json`"], parts].concat());
    }
}

#[test]
fn configuration_files() {
    let from_dir = |dir: &Path| ModelConfig::from_dir(dir).unwrap_err().to_string();
    assert_says("none", &from_dir(folder(&[]).path()), &["config.json", "cannot read", "No such file"]);
    let not_utf8 = folder(&[("config.json", b"{\"a\": \"\xff\"}".to_vec())]);
    assert_says("not UTF-8", &from_dir(not_utf8.path()), &["config.json", "not valid UTF-8", "byte 7"]);
    let huge = folder(&[("config.json", vec![b' '; (4 << 20) + 1])]);
    assert_says("huge", &from_dir(huge.path()), &["config.json", "4194304 bytes"]);
    let dir = folder(&[]);
    std::fs::create_dir(dir.path().join("config.json")).unwrap();
    assert_says("a folder", &from_dir(dir.path()), &["config.json", "not a regular file"]);
}

#[test]
fn generation_values() {
    for (text, parts) in [
        ("[]", &["invalid type: sequence", "expected a map"][..]),
        ("{\"eos_token_id\": -1}", &["`eos_token_id` is -1", "0..=4294967295"]),
        ("{\"eos_token_id\": [1, \"x\"]}", &["`eos_token_id` is \"x\""]),
        ("{\"eos_token_id\": 4294967296}", &["`eos_token_id` is 4294967296"]),
        ("{\"temperature\": -0.5}", &["`temperature` is -0.5", "0.0..="]),
        ("{\"top_k\": 1.5}", &["`top_k` is 1.5", "an integer"]),
        ("{\"top_p\": 2}", &["`top_p` is 2", "0.0..=1.0"]),
        ("{\"do_sample\": \"yes\"}", &["`do_sample` is \"yes\"", "true or false"]),
    ] {
        let dir = folder(&[("generation_config.json", text.into())]);
        let message = GenerationConfig::from_dir(dir.path()).unwrap_err().to_string();
        assert_says(text, &message, &[&["generation_config.json"], parts].concat());
    }
}

/// A header with one tensor `a`.
fn header(dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
}

fn two(first: &str, second: &str) -> String {
    let tensor = |offsets| format!(r#"{{"dtype":"F32","shape":[2],"data_offsets":{offsets}}}"#);
    format!(r#"{{"a":{},"b":{}}}"#, tensor(first), tensor(second))
}

#[test]
fn safetensors_headers() {
    let claims = |claimed: u64| [&claimed.to_le_bytes()[..], &one_tensor()[8..]].concat();
    let raw = |header: String, data_len: usize| raw_safetensors(&header, &vec![0; data_len]);
    let whole = one_tensor();
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("empty", vec![], &["0 bytes", "at least 8"]),
        ("seven bytes", vec![0; 7], &["7 bytes", "at least 8"]),
        ("length alone", 100u64.to_le_bytes().to_vec(), &["claims 100 bytes", "only 0"]),
        ("header behind the end", claims(5000), &["claims 5000 bytes", "truncated"]),
        ("header of 16 EB", claims(u64::MAX), &["claims 18446744073709551615 bytes", "at most 100000000"]),
        ("header of i64::MAX", claims(i64::MAX as u64), &["at most 100000000"]),
        ("header cut", claims(20), &["header cannot be read", "EOF"]),
        ("no header", claims(0), &["header cannot be read"]),
        ("not UTF-8", raw_safetensors_bytes(b"{\"\xff\": 1}"), &["not valid UTF-8", "byte 2"]),
        ("not JSON", raw("{a}".into(), 0), &["header cannot be read"]),
        ("a list", raw("[]".into(), 0), &["expected an object of tensors"]),
        ("deep", raw("{\"a\":".repeat(1000), 0), &["header cannot be read"]),
        ("data cut", whole[..whole.len() - 1].to_vec(), &["`a`", "0..8", "7 bytes of data", "truncated"]),
        ("data too long", [&whole[..], &[0; 3]].concat(), &["11 bytes of data", "expected 8"]),
        ("wrong length", raw(header("F32", "[3]", "[0,8]"), 8), &["`a`", "[3]", "8 bytes", "expected 12"]),
        ("wrong dtype", raw(header("BF16", "[2]", "[0,8]"), 8), &["`a`", "BF16", "8 bytes", "expected 4"]),
        ("unknown dtype", raw(header("F7", "[2]", "[0,8]"), 8), &["`a`", "F7", "BF16"]),
        ("negative shape", raw(header("F32", "[-2]", "[0,8]"), 8), &["`a`", "-2"]),
        ("fractional shape", raw(header("F32", "[2.0]", "[0,8]"), 8), &["`a`", "2.0"]),
        (
            "shape overflows",
            raw(header("F32", "[4294967296,4294967296]", "[0,8]"), 8),
            &["`a`", "[4294967296, 4294967296]"],
        ),
        ("bits overflow", raw(header("F32", "[2305843009213693952]", "[0,8]"), 8), &["`a`", "2305843009213693952"]),
        ("half a byte", raw(header("F4", "[3]", "[0,2]"), 2), &["`a`", "F4", "2 bytes", "12 bits"]),
        ("offsets fall", raw(header("F32", "[2]", "[8,0]"), 8), &["`a`", "8..0", "8 bytes of data"]),
        ("offsets beyond", raw(header("F32", "[2]", "[0,1000000000000]"), 8), &["`a`", "0..1000000000000"]),
        ("offsets negative", raw(header("F32", "[2]", "[-8,0]"), 8), &["`a`", "-8"]),
        ("one offset", raw(header("F32", "[2]", "[0]"), 8), &["`a`", "length 1"]),
        ("gap", raw(two("[0,8]", "[12,20]"), 20), &["`b`", "byte 12", "expected 8"]),
        ("gap in front", raw(header("F32", "[2]", "[4,12]"), 12), &["`a`", "byte 4", "expected 0"]),
        ("overlap", raw(two("[0,8]", "[4,12]"), 12), &["`b`", "byte 4", "expected 8", "overlaps"]),
        ("same bytes", raw(two("[0,8]", "[0,8]"), 8), &["`b`", "byte 0", "expected 8", "overlaps"]),
        ("no shape", raw(r#"{"a":{"dtype":"F32","data_offsets":[0,8]}}"#.into(), 8), &["`a`", "missing field `shape`"]),
        ("name twice", raw(two("[0,8]", "[8,16]").replace("\"b\"", "\"a\""), 16), &["`a`", "twice"]),
    ];
    for (case, bytes, parts) in cases {
        let dir = folder(&[(SINGLE, bytes)]);
        let message = Weights::open(dir.path()).unwrap_err().to_string();
        assert_says(case, &message, &[&[SINGLE], parts].concat());
    }
}

fn raw_safetensors_bytes(header: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header].concat()
}

#[test]
fn folders_of_weights() {
    let index = |map: Value| json!({"metadata": {}, "weight_map": map}).to_string().into_bytes();
    let other = || safetensors_file(&[("b", "F32", &[1], &f32_bytes(&[0.5]))]);
    let (a, b) = ("a.safetensors", "b.safetensors");
    let cases: Vec<(&str, Files, &[&str])> = vec![
        ("nothing", vec![("config.json", vec![])], &["holds no weights", SINGLE, INDEX]),
        ("index of nothing", vec![(INDEX, index(json!({})))], &["holds no weights"]),
        ("no weight_map", vec![(INDEX, b"{}".to_vec())], &[INDEX, "missing field `weight_map`"]),
        ("no JSON", vec![(INDEX, b"{".to_vec())], &[INDEX, "EOF"]),
        ("no UTF-8", vec![(INDEX, b"\xc3\x28".to_vec())], &[INDEX, "not valid UTF-8", "byte 0"]),
        ("number as file", vec![(INDEX, index(json!({"a": 3})))], &[INDEX, "invalid type: integer `3`"]),
        ("no shard", vec![(INDEX, index(json!({"a": a})))], &[INDEX, "`a`", "`a.safetensors`", "no such file"]),
        ("above", vec![(INDEX, index(json!({"a": "../a.safetensors"})))], &[INDEX, "`a`", "`../a.safetensors`"]),
        ("absolute", vec![(INDEX, index(json!({"a": "/etc/passwd"})))], &[INDEX, "`a`", "`/etc/passwd`"]),
        ("a folder", vec![(INDEX, index(json!({"a": "."})))], &[INDEX, "`a`", "`.`", "the name of a file"]),
        (
            "not in its shard",
            vec![(INDEX, index(json!({"a": a, "b": a}))), (a, one_tensor())],
            &[INDEX, "`b`", "`a.safetensors`", "does not hold it"],
        ),
        (
            "in the other shard",
            vec![(INDEX, index(json!({"a": b, "b": a}))), (a, one_tensor()), (b, other())],
            &[INDEX, "`a`", "`b.safetensors`", "does not hold it"],
        ),
        ("twice", vec![(a, one_tensor()), (b, one_tensor())], &["`a`", "a.safetensors", "b.safetensors", "once"]),
        ("shard of lies", vec![(a, one_tensor()), (b, vec![1; 9])], &["b.safetensors", "claims"]),
    ];
    for (case, files, parts) in cases {
        let message = Weights::open(folder(&files).path()).unwrap_err().to_string();
        assert_says(case, &message, parts);
    }
    let message = Weights::open(Path::new("/no/such/folder")).unwrap_err().to_string();
    assert_says("no folder", &message, &["/no/such/folder", "No such file"]);
}

#[test]
fn tensors_that_are_not_as_the_model_needs_them() {
    let nan = [1.0, f32::NAN, f32::INFINITY];
    let half = [0x00, 0x3c, 0x00, 0xfc]; // F16: 1, -inf
    let mut long = vec![0.0; 10_000];
    long[9_999] = f32::NEG_INFINITY;
    let bf16 = [0x80, 0x3f, 0xc0, 0x7f]; // BF16: 1, NaN
    let file = safetensors_file(&[
        ("model.layers.0.mlp.up_proj.weight", "F32", &[3], &f32_bytes(&nan)),
        ("half", "F16", &[2], &half),
        ("brain", "BF16", &[2, 1], &bf16),
        ("long", "F32", &[100, 100], &f32_bytes(&long)),
        ("bytes", "U8", &[2], &[1, 2]),
        ("eight", "F8_E4M3", &[2], &[1, 2]),
    ]);
    let dir = folder(&[(SINGLE, file)]);
    let weights = Weights::open(dir.path()).unwrap();
    let storage = |name| weights.get(name).and_then(|tensor| tensor.to_storage()).unwrap_err().to_string();
    let widened = |name| weights.get(name).and_then(|tensor| tensor.to_f32_vec()).unwrap_err().to_string();
    for (name, parts) in [
        ("model.layers.0.mlp.up_proj.weight", &["`model.layers.0.mlp.up_proj.weight`", "NaN at element 1"][..]),
        ("half", &["`half`", "-inf at element 1"]),
        ("brain", &["`brain`", "NaN at element 1"]),
        ("long", &["`long`", "-inf at element 9999"]),
        ("bytes", &["`bytes`", "dtype U8", "BF16, F16 or F32"]),
        ("eight", &["`eight`", "dtype F8_E4M3", "BF16, F16 or F32"]),
    ] {
        for message in [storage(name), widened(name)] {
            assert_says(name, &message, &[&[SINGLE], parts].concat());
        }
    }
    let shape = weights.get("brain").and_then(|tensor| tensor.expect_shape(&[1, 2])).unwrap_err().to_string();
    assert_says("shape", &shape, &["`brain`", SINGLE, "[2, 1]", "expected [1, 2]"]);
    let missing = weights.get("model.layers.0.mlp.gate_proj.weight").unwrap_err().to_string();
    let dir_name = dir.path().to_str().unwrap();
    assert_says("missing", &missing, &["`model.layers.0.mlp.gate_proj.weight`", dir_name, "up_proj.weight`"]);
    let far = weights.get("lm_head.weight").unwrap_err().to_string();
    assert_says("missing", &far, &["`lm_head.weight`", dir_name]);
    assert!(!far.contains("nearest"), "{far}");
}

fn tokenizer_error(tokenizer: &[u8], vocab_size: usize) -> String {
    let dir = folder(&[("tokenizer.json", tokenizer.to_vec())]);
    TextCodec::from_dir(dir.path(), vocab_size).unwrap_err().to_string()
}

#[test]
fn tokenizers() {
    let good = common::small_tokenizer();
    let added = json!({
        "id": 9, "content": "<|x|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true,
    });
    let cases: &[(&str, Option<Value>, &[&str])] = &[
        ("model.vocab.c", Some(json!(7)), &["`c` has id 7", "`vocab_size` = 5"]),
        ("model.vocab.c", Some(json!(-1)), &["-1"]),
        ("model.vocab.c", Some(json!(u64::MAX)), &["id 18446744073709551615"]),
        ("added_tokens.0", Some(added), &["`<|x|>` has id 9", "`vocab_size` = 5"]),
        ("added_tokens.0.id", Some(json!(2)), &["`added_tokens[0].id` is 2 for `<|end|>`", "expected 4"]),
        ("added_tokens", Some(json!(3)), &["invalid type: integer `3`"]),
        ("model.merges", Some(json!([["a", "c"]])), &["`model.merges[0]` is (`a`, `c`)", "`ac` in `model.vocab`"]),
        ("model.merges", Some(json!(["a b", "ab"])), &["`model.merges[1]` is one word"]),
        ("model.merges", Some(json!([["", "longer than any"]])), &["`model.merges[0]`", "``"]),
        ("model.merges", None, &["missing field `merges`"]),
        ("model.vocab", None, &["missing field `vocab`"]),
        ("model.type", Some(json!("Unigram")), &["`model.type` is \"Unigram\"", "\"BPE\""]),
        ("model.dropout", Some(json!(0.5)), &["`model.dropout` is 0.5", "null"]),
        ("model.continuing_subword_prefix", Some(json!("##")), &["`model.continuing_subword_prefix` is \"##\""]),
        ("decoder", Some(Value::Null), &["`decoder.type` is null", "\"ByteLevel\""]),
        ("decoder", Some(json!({"type": "Metaspace"})), &["`decoder.type` is \"Metaspace\"", "\"ByteLevel\""]),
        ("pre_tokenizer", Some(json!({"type": "Nonsense"})), &["no usable tokenizer"]),
        ("version", Some(json!("9.9")), &["9.9"]),
    ];
    for (path, value, parts) in cases {
        let mut tokenizer = good.clone();
        set(&mut tokenizer, path, value.clone());
        let message = tokenizer_error(tokenizer.to_string().as_bytes(), 5);
        assert_says(&format!("{path} = {value:?}"), &message, &[&["tokenizer.json"], *parts].concat());
    }
    assert_says("too few rows", &tokenizer_error(good.to_string().as_bytes(), 4), &["`<|end|>` has id 4", "= 4"]);
    assert_says("empty", &tokenizer_error(b"", 5), &["tokenizer.json", "EOF"]);
    assert_says("not UTF-8", &tokenizer_error(b"\"\x80\"", 5), &["tokenizer.json", "not valid UTF-8", "byte 1"]);
}

#[test]
fn files_beside_the_tokenizer() {
    let tokenizer = common::small_tokenizer().to_string().into_bytes();
    for (file, bytes, parts) in [
        ("tokenizer_config.json", &b"{"[..], &["EOF"][..]),
        ("tokenizer_config.json", b"[1]", &["invalid type: sequence", "expected a map"]),
        ("tokenizer_config.json", b"{\"chat_template\": 1}", &["`chat_template` is 1"]),
        ("tokenizer_config.json", b"{\"chat_template\": [{\"name\": \"x\"}]}", &["`chat_template`", "\"default\""]),
        ("chat_template.jinja", b"\xff", &["not valid UTF-8", "byte 0"]),
    ] {
        let dir = folder(&[("tokenizer.json", tokenizer.clone()), (file, bytes.to_vec())]);
        let message = TextCodec::from_dir(dir.path(), 5).unwrap_err().to_string();
        assert_says(file, &message, &[&[file], parts].concat());
    }
}

/// Changes, cuts and lengthens bytes.
fn damage() -> impl Strategy<Value = Vec<(prop::sample::Index, u8, u8)>> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..20), 1..6)
}

fn damaged(mut bytes: Vec<u8>, damage: &[(prop::sample::Index, u8, u8)]) -> Vec<u8> {
    for (at, byte, kind) in damage {
        if bytes.is_empty() {
            break;
        }
        let at = at.index(bytes.len());
        match kind {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, *byte),
            2 => drop(bytes.remove(at)),
            3..10 => bytes[at] = b"0123456789-.,:[]{}\" eE"[*byte as usize % 22],
            _ => bytes[at] ^= 1 << (byte % 8),
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Neither a panic nor memory by a number in the file; and the `safetensors` crate would agree.
    #[test]
    fn damaged_safetensors(damage in damage()) {
        let file = safetensors_file(&[
            ("model.embed_tokens.weight", "BF16", &[3, 2], &[0; 12]),
            ("model.norm.weight", "F32", &[2], &f32_bytes(&[1.0, 2.0])),
            ("lm_head.weight", "F16", &[2, 2], &[0; 8]),
        ]);
        let bytes = damaged(file, &damage);
        let dir = folder(&[(SINGLE, bytes.clone())]);
        let theirs = safetensors::SafeTensors::deserialize(&bytes);
        match Weights::open(dir.path()) {
            Ok(weights) => {
                prop_assert!(theirs.is_ok(), "accepted, but not by the crate: {:?}", theirs.err());
                for name in weights.names() {
                    if let Ok(tensor) = weights.get(name) {
                        let _ = (tensor.to_storage(), tensor.to_f32_vec());
                    }
                }
            }
            Err(error) => {
                let message = error.to_string();
                prop_assert!(message.contains(SINGLE));
                prop_assert!(theirs.is_err() || message.contains("twice"), "refused, but not by the crate: {message}");
            }
        }
    }

    #[test]
    fn damaged_configurations(model in 0usize..3, damage in damage()) {
        let text = config(model).to_string();
        let bytes = damaged(text.into_bytes(), &damage);
        let dir = folder(&[("config.json", bytes)]);
        if let Err(error) = ModelConfig::from_dir(dir.path()) {
            prop_assert!(error.to_string().contains("config.json"));
        }
        let _ = GenerationConfig::from_dir(dir.path());
    }

    #[test]
    fn damaged_tokenizers(damage in damage()) {
        let bytes = damaged(common::small_tokenizer().to_string().into_bytes(), &damage);
        let dir = folder(&[("tokenizer.json", bytes)]);
        if let Ok(Some(codec)) = TextCodec::from_dir(dir.path(), 5) {
            let ids = codec.encode("abc<|end|> é").unwrap_or_default();
            let _ = codec.decode(&ids);
        }
    }

    #[test]
    fn damaged_indices(damage in damage()) {
        let index = json!({"weight_map": {"a": "a.safetensors"}}).to_string().into_bytes();
        let dir = folder(&[(INDEX, damaged(index, &damage)), ("a.safetensors", one_tensor())]);
        let _ = Weights::open(dir.path());
    }
}
