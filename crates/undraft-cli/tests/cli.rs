//! The command line as a user meets it: exit codes, outputs, sentences.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn undraft(args: &[&str], stdin: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_undraft"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The child may end on bad usage before it reads.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child.wait_with_output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = undraft(args, b"");
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Exit code 2 and an error that holds all these parts.
fn refused(args: &[&str], stdin: &[u8], parts: &[&str]) {
    let output = undraft(args, stdin);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    for part in parts {
        assert!(stderr.contains(part), "{args:?} says {stderr:?}, expected {part:?} in it");
    }
    assert!(!stderr.contains("panicked"), "{stderr}");
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

#[test]
fn without_a_prompt_it_continues_an_example_and_compares() {
    let output = undraft(&["generate", "--max-tokens", "24"], b"");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("no prompt given") && stderr.contains("identical: yes"), "{stderr}");
    assert!(stderr.contains("tokens a round") && stderr.contains("speed ratio"), "{stderr}");
    assert!(output.stdout.len() > 20);
}

#[test]
fn greedy_text_is_that_of_the_golden_prompts_however_it_is_given() {
    let golden: Value =
        serde_json::from_slice(&std::fs::read(testdata("golden/qwen3_5-tiny-mtp/prompts.json")).unwrap()).unwrap();
    let (prompt, want) = (golden["short"]["text"].as_str().unwrap(), &golden["short"]["greedy_f32"]);
    let ids: Vec<String> = golden["short"]["input_ids"].as_array().unwrap().iter().map(Value::to_string).collect();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt.txt");
    std::fs::write(&file, prompt).unwrap();
    let common = ["generate", "--json", "--max-tokens", "64", "--ignore-eos"];
    for draft in ["none", "mtp", "lookup", "mtp-tree", "mtp+lookup"] {
        let got = json(&[&common[..], &["--prompt", prompt, "--draft", draft, "--compare"]].concat());
        assert_eq!(&got["token_ids"], want, "{draft}");
        assert_eq!(got["compare"]["identical"], true, "{draft}");
        assert_eq!(got["text"], golden["short"]["greedy_text"], "{draft}");
    }
    let by_file = json(&[&common[..], &["--prompt-file", file.to_str().unwrap()]].concat());
    let by_ids = json(&[&common[..], &["--prompt-ids", &ids.join(",")]].concat());
    assert_eq!((&by_file["token_ids"], &by_ids["token_ids"]), (want, want));
    assert_eq!(by_ids["text"], Value::Null);
    let by_stdin = undraft(&common, prompt.as_bytes());
    let by_stdin: Value = serde_json::from_slice(&by_stdin.stdout).unwrap();
    assert_eq!(&by_stdin["token_ids"], want);
}

#[test]
fn sampled_tokens_do_not_depend_on_drafts_window_threads_or_instruction_set() {
    let base =
        ["generate", "--json", "--prompt", "def f(", "--max-tokens", "40", "--temperature", "0.9", "--top-k", "50"];
    let base = [&base[..], &["--top-p", "0.95", "--seed", "7"]].concat();
    let plain = json(&[&base[..], &["--draft", "none"]].concat());
    for more in [
        &["--draft", "mtp", "--window", "1"][..],
        &["--draft", "mtp", "--window", "5", "--threads", "1"],
        &["--draft", "lookup", "--window", "4", "--threads", "3"],
        &["--draft", "mtp", "--isa", "scalar"],
        &["--draft", "mtp-tree", "--window", "9", "--tree-widths", "4,2,1"],
        &["--draft", "mtp-tree", "--window", "auto"],
        &["--draft", "mtp+lookup", "--window", "auto:5"],
    ] {
        assert_eq!(json(&[&base[..], more].concat())["token_ids"], plain["token_ids"], "{more:?}");
    }
    let other = [&base[..base.len() - 1], &["8"]].concat();
    let other = json(&other);
    assert_ne!(other["token_ids"], plain["token_ids"]);
}

#[test]
fn memory_and_the_adaptive_window_are_told() {
    let args = ["generate", "--prompt", "def f(", "--max-tokens", "40", "--ignore-eos", "--window", "auto:4"];
    let output = undraft(&args, b"");
    let stderr = String::from_utf8(output.stderr).unwrap();
    for part in ["auto, at most 4", "mostly", "probes", "keys and values", "states and logs", "peak"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    let report = &json(&[&args[..], &["--json"]].concat())["report"];
    let bytes = |name: &str| report[name].as_u64().unwrap();
    assert_eq!(bytes("cache_bytes"), bytes("kv_bytes") + bytes("state_bytes"));
    assert!(bytes("kv_bytes") > 0 && bytes("drafter_bytes") > 0);
    if cfg!(target_os = "linux") {
        assert!(bytes("peak_bytes") > bytes("weight_bytes"), "{report}");
    }
    let rounds = report["adaptive_window"]["rounds_by_drafts"].as_array().unwrap();
    assert_eq!(rounds.len(), 5);
    // The last round may have no room for drafts, and nobody is asked then.
    let asked = rounds.iter().map(|n| n.as_u64().unwrap()).sum::<u64>();
    assert!((asked..=asked + 1).contains(&bytes("rounds")), "{report}");
}

#[test]
fn a_model_without_tokenizer_takes_and_prints_ids() {
    let model = testdata("models/qwen3_next-random");
    let model = model.to_str().unwrap();
    let args = ["generate", "--model", model, "--prompt-ids", "3,17,9", "--max-tokens", "6", "--ignore-eos"];
    let output = undraft(&args, b"");
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.trim().split(',').filter(|id| id.parse::<u32>().is_ok()).count(), 6, "{text}");
    refused(&["generate", "--model", model, "--prompt", "x"], b"", &["tokenizer.json", "--prompt-ids"]);
}

#[test]
fn dumped_logits_are_those_of_the_prompt_and_of_every_token() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("logits.safetensors");
    let args =
        ["generate", "--json", "--prompt", "import os", "--max-tokens", "9", "--dump-logits", file.to_str().unwrap()];
    let got = json(&args);
    let bytes = std::fs::read(&file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let num_prompt = got["prompt_ids"].as_array().unwrap().len();
    let num_tokens = got["token_ids"].as_array().unwrap().len();
    let (prompt, generated) = (tensors.tensor("prompt_logits").unwrap(), tensors.tensor("generated_logits").unwrap());
    assert_eq!(prompt.shape(), [num_prompt, 4096]);
    assert_eq!(generated.shape(), [num_tokens, 4096]);
    assert_eq!(prompt.data()[(num_prompt - 1) * 4096 * 4..], generated.data()[..4096 * 4]);
    for (row, id) in generated.data().chunks(4096 * 4).zip(got["token_ids"].as_array().unwrap()) {
        let row: Vec<f32> = row.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let best = (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best });
        assert_eq!(id, &Value::from(best));
    }
    let nowhere = dir.path().join("no/such/folder.safetensors");
    refused(
        &["generate", "--prompt", "x", "--max-tokens", "1", "--dump-logits", nowhere.to_str().unwrap()],
        b"",
        &["cannot write"],
    );
}

#[test]
fn chat_uses_the_template() {
    let chat = json(&["generate", "--json", "--chat", "--prompt", "What is a list?", "--max-tokens", "8"]);
    let plain = json(&["generate", "--json", "--prompt", "What is a list?", "--max-tokens", "8"]);
    assert_eq!(chat["prompt_ids"][0], 4087); // <|im_start|>
    assert!(chat["prompt_ids"].as_array().unwrap().len() > plain["prompt_ids"].as_array().unwrap().len() + 4);
}

#[test]
fn bad_usage_and_input_exit_with_2_and_say_what_was_expected() {
    refused(&["generate", "--prompt", ""], b"", &["no tokens", "at least one"]);
    refused(&["generate"], &[0xff, 0xfe], &["standard input", "UTF-8"]);
    refused(&["generate", "--prompt", "x", "--max-tokens", "0"], b"", &["--max-tokens", "at least 1"]);
    refused(&["generate", "--prompt", "x", "--temperature", "-1"], b"", &["temperature"]);
    refused(&["generate", "--prompt", "x", "--temperature", "nan"], b"", &["temperature"]);
    refused(&["generate", "--prompt", "x", "--top-p", "1.5"], b"", &["top_p"]);
    for window in ["65", "auto:0", "auto:65", "auto5", "-1"] {
        let args = ["generate", "--prompt", "x", &format!("--window={window}")];
        refused(&args, b"", &["--window", window, "0..=64", "auto:1..=64"]);
    }
    let rejection = ["generate", "--prompt", "x", "--draft", "mtp-tree", "--acceptance", "rejection"];
    refused(&rejection, b"", &["rejection", "chains", "mtp-tree"]);
    refused(&["generate", "--prompt", "x", "--tree-widths", "2"], b"", &["--tree-widths", "mtp-tree"]);
    let widths = ["generate", "--prompt", "x", "--draft", "mtp-tree", "--tree-widths", "2,0"];
    refused(&widths, b"", &["width", "0", "1..=64"]);
    refused(&["generate", "--prompt", "x", "--threads", "0"], b"", &["--threads", "1..=1024"]);
    refused(&["generate", "--prompt", "x", "--prompt-ids", "1"], b"", &["cannot be used with"]);
    refused(&["generate", "--prompt-ids", "4096"], b"", &["4096"]);
    refused(&["generate", "--prompt-ids", "1,x"], b"", &["invalid value"]);
    refused(&["generate", "--model", "no/such/model"], b"", &["no/such/model"]);
    refused(&["generate", "--prompt-file", "no/such/file"], b"", &["no/such/file"]);
    let long = "word ".repeat(9000);
    refused(&["generate"], long.as_bytes(), &["tokens", "4095", "context"]);
    let compare = ["generate", "--prompt", "x", "--compare", "--acceptance", "rejection", "--temperature", "1"];
    refused(&compare, b"", &["--temperature 0"]);
    refused(&["generate", "--draft", "everything"], b"", &["possible values"]);
    refused(&["bench", "--heads", "16-32"], b"", &["16-32", "H/HV"]);
    refused(&["bench", "--heads", "16/40"], b"", &["num_v_heads", "40", "multiple"]);
    refused(&["bench", "--dim", "300"], b"", &["head_k_dim", "1..=256"]);
    refused(&["bench", "--batch", "0"], b"", &["--batch"]);
    refused(&["nonsense"], b"", &["nonsense"]);
}

#[test]
fn a_cuda_device_that_is_not_there_is_an_error_that_says_so() {
    let output = undraft(&["generate", "--prompt", "import", "--device", "cuda:4000"], b"");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    let (no_driver, no_device) = ("no NVIDIA driver found", "CUDA device 4000 was asked for");
    assert!(stderr.contains(no_driver) || stderr.contains(no_device), "{stderr}");
    assert!(output.stdout.is_empty());
    let refused = |args: &[&str], parts: &[&str]| refused(&[&["generate", "--prompt", "a"], args].concat(), b"", parts);
    refused(&["--device", "gpu"], &["`gpu` is no device, expected cpu, cuda, cuda:N, metal, wgpu or wgpu:N"]);
    refused(&["--device", "cuda", "--threads", "2"], &["`--threads` needs `--device cpu`"]);
    refused(&["--device", "cuda", "--isa", "scalar"], &["`--isa` needs `--device cpu`"]);
    let devices = json(&["devices", "--json"]);
    assert_eq!(devices["devices"][0]["name"], "cpu");
    assert_eq!(devices["devices"][1]["name"], "cuda:0");
}

/// Where there is a Metal device it generates, and gives the tokens of plain decoding.
#[test]
fn a_metal_device_that_is_not_there_is_an_error_that_says_so() {
    let args = ["generate", "--prompt", "import", "--max-tokens", "8", "--compare", "--device", "metal"];
    let output = undraft(&args, b"");
    let stderr = String::from_utf8(output.stderr).unwrap();
    if output.status.success() {
        assert!(stderr.contains("identical: yes"), "{stderr}");
    } else {
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        let (no_system, no_device) = ("this is no Apple system", "this system has no Metal device");
        assert!(stderr.contains(no_system) || stderr.contains(no_device), "{stderr}");
        assert!(output.stdout.is_empty());
    }
    let refused = |args: &[&str], parts: &[&str]| refused(&[&["generate", "--prompt", "a"], args].concat(), b"", parts);
    refused(&["--device", "metal", "--threads", "2"], &["`--threads` needs `--device cpu`"]);
    refused(&["--device", "metal:1"], &["`metal:1` is no device"]);
}

#[test]
fn a_bench_on_cuda_refuses_what_it_cannot_do() {
    let output = undraft(&["bench", "--device", "cuda:4000"], b"");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    let (no_driver, no_device) = ("no NVIDIA driver found", "CUDA device 4000 was asked for");
    assert!(stderr.contains(no_driver) || stderr.contains(no_device), "{stderr}");
    assert!(output.stdout.is_empty());
    let refused = |args: &[&str], part: &str| refused(&[&["bench", "--device", "cuda"], args].concat(), b"", &[part]);
    refused(&["--threads", "1"], "`--threads` needs `--device cpu`");
    refused(&["--isa", "scalar"], "`--isa` needs `--device cpu`");
    refused(&["--op", "fork-join"], "`--op fork-join` needs `--device cpu`");
    refused(&["--op", "threads"], "`--op threads` needs `--device cpu`");
    refused(&["--op", "chunk", "--batch", "8"], "`--batch` needs `--op recurrent`");
    refused(&["--op", "chunk", "--state-bytes", "65536"], "`--state-bytes` needs `--op recurrent`");
    refused(&["--tokens", "65"], "`--tokens` has 65, expected 1..=64");
}

/// On the first GPU, if there is one.
#[test]
fn a_bench_on_cuda_prints_each_time_next_to_a_copy() {
    let devices = json(&["devices", "--json"]);
    if let Some(why) = devices["devices"][1].get("unavailable") {
        println!("skipped: {why}");
        return;
    }
    for state in ["f32", "bf16", "f16"] {
        let args = ["bench", "--device", "cuda", "--json", "--batch", "1,3", "--state", state];
        let bench = json(&[&args[..], &["--state-bytes", "65536"]].concat());
        let rows = bench["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 2 * 7);
        assert!(rows.iter().all(|row| row["ratio_to_copy"].as_f64().unwrap() > 0.0));
        let chunk = ["bench", "--device", "cuda", "--json", "--op", "chunk", "--tokens", "70", "--state", state];
        assert_eq!(json(&chunk)["rows"].as_array().unwrap().len(), 2);
    }
}

/// On the first GPU, if there is one.
#[test]
fn a_cuda_device_gives_the_text_of_plain_decoding() {
    let devices = json(&["devices", "--json"]);
    if let Some(why) = devices["devices"][1].get("unavailable") {
        println!("skipped: {why}");
        return;
    }
    for draft in ["none", "mtp", "lookup", "mtp+lookup"] {
        for temperature in ["0", "0.8"] {
            let args = ["generate", "--json", "--device", "cuda", "--prompt", "import os", "--max-tokens", "64"];
            let got = json(&[&args[..], &["--draft", draft, "--temperature", temperature, "--compare"]].concat());
            assert_eq!(got["compare"]["identical"], true, "{draft}, temperature {temperature}");
        }
    }
    let tree = ["generate", "--device", "cuda", "--prompt", "import os", "--draft", "mtp-tree"];
    refused(&tree, b"", &["`--draft mtp-tree` is not there on `cuda` yet"]);
}

#[test]
fn damaged_models_are_refused_by_name() {
    let good = testdata("models/qwen3_next-random");
    let dir = tempfile::tempdir().unwrap();
    let copy = |change: &dyn Fn(&mut Vec<u8>, &mut Vec<u8>)| -> String {
        let mut config = std::fs::read(good.join("config.json")).unwrap();
        let mut weights = std::fs::read(good.join("model.safetensors")).unwrap();
        change(&mut config, &mut weights);
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        std::fs::write(dir.path().join("model.safetensors"), weights).unwrap();
        dir.path().to_str().unwrap().to_string()
    };
    let check = |change: &dyn Fn(&mut Vec<u8>, &mut Vec<u8>), parts: &[&str]| {
        let model = copy(change);
        refused(&["generate", "--model", &model, "--prompt-ids", "1", "--max-tokens", "1"], b"", parts);
    };
    check(&|_, weights| weights.truncate(1000), &["model.safetensors"]);
    check(&|_, weights| weights[..8].copy_from_slice(&u64::MAX.to_le_bytes()), &["model.safetensors", "header"]);
    check(&|config, _| config.truncate(30), &["config.json"]);
    check(
        &|config, _| *config = replace(config, "\"hidden_size\": 128", "\"hidden_size\": -5"),
        &["config.json", "hidden_size", "-5"],
    );
    check(&|config, _| *config = replace(config, "\"hidden_size\": 128", "\"hidden_size\": 64"), &["expected"]);
    check(
        &|config, _| *config = replace(config, "\"linear_num_value_heads\": 4", "\"linear_num_value_heads\": 3"),
        &["linear_num_value_heads", "3", "multiple"],
    );
    check(&|config, _| *config = replace(config, "qwen3_next", "llama"), &["llama", "qwen3_next"]);
    check(
        &|_, weights| {
            let n = weights.len();
            weights[n - 2..].copy_from_slice(&[0xc0, 0x7f])
        },
        &["model.safetensors", "NaN"],
    );
}

fn replace(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = std::str::from_utf8(bytes).unwrap();
    assert!(text.contains(from), "{from} is not in the file");
    text.replace(from, to).into_bytes()
}

#[test]
fn devices_and_bench_print_json() {
    let devices = json(&["devices", "--json"]);
    assert_eq!(devices["devices"][0]["name"], "cpu");
    assert_eq!(devices["memory_per_slot"][0]["log_bytes_per_token_and_layer"], 32_960);
    let args = [
        "bench",
        "--json",
        "--heads",
        "1/2",
        "--dim",
        "32",
        "--tokens",
        "1,3",
        "--batch",
        "2",
        "--state-bytes",
        "65536",
    ];
    let bench = json(&args);
    assert_eq!(bench["rows"].as_array().unwrap().len(), 7);
    assert!(bench["rows"].as_array().unwrap().iter().all(|row| row["median_us"].as_f64().unwrap() > 0.0));
    let chunk = json(&["bench", "--json", "--op", "chunk", "--heads", "1/2", "--dim", "32", "--tokens", "70"]);
    assert_eq!(chunk["rows"].as_array().unwrap().len(), 2);
    assert_eq!(json(&["bench", "--json", "--op", "fork-join", "--threads", "2"])["rows"].as_array().unwrap().len(), 2);
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_undraft"))
        .arg("devices")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.as_str()), (Some(0), ""));
}
