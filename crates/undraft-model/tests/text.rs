//! Tokenizer, streaming decoder and chat template of the bundled model, against golden values.

mod common;

use common::{folder, repository, small_tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};
use undraft_model::text::{Message, TextCodec};

const VOCAB_SIZE: usize = 4096;

fn bundled() -> TextCodec {
    TextCodec::from_dir(&repository("models/qwen3_5-tiny-mtp"), VOCAB_SIZE).unwrap().unwrap()
}

fn golden(file: &str) -> Value {
    let file = repository("testdata/golden/qwen3_5-tiny-mtp").join(file);
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn stream(codec: &TextCodec, ids: &[u32]) -> Vec<String> {
    let mut decoder = codec.stream();
    let mut pieces: Vec<String> = ids
        .iter()
        .map(|&id| {
            let mut piece = String::new();
            decoder.push(id, &mut piece);
            piece
        })
        .collect();
    let mut end = String::new();
    decoder.finish(&mut end);
    pieces.push(end);
    pieces
}

#[test]
fn ids_and_texts_are_the_golden_ones() {
    let codec = bundled();
    for case in golden("tokenizer.json").as_array().unwrap() {
        let (text, expected) = (case["text"].as_str().unwrap(), ids(&case["ids"]));
        assert_eq!(codec.encode(text).unwrap(), expected, "{text:?}");
        let decoded = case["decoded"].as_str().unwrap();
        assert_eq!(codec.decode(&expected).unwrap(), decoded, "{text:?}");
        assert_eq!(stream(&codec, &expected).concat(), decoded, "{text:?}");
    }
    for (name, case) in golden("prompts.json").as_object().unwrap() {
        assert_eq!(codec.encode(case["text"].as_str().unwrap()).unwrap(), ids(&case["input_ids"]), "{name}");
        assert_eq!(codec.decode(&ids(&case["greedy_f32"])).unwrap(), case["greedy_text"].as_str().unwrap(), "{name}");
    }
}

#[test]
fn the_chat_template_gives_the_golden_prompt() {
    let codec = bundled();
    let prompt = golden("prompts.json")["chat"]["text"].as_str().unwrap().to_owned();
    let content = prompt
        .strip_prefix("<|im_start|>user\n")
        .and_then(|rest| rest.strip_suffix("<|im_end|>\n<|im_start|>assistant\n"))
        .unwrap();
    let message = Message { role: "user".into(), content: content.into() };
    assert!(codec.has_chat_template());
    assert_eq!(codec.apply_chat_template(std::slice::from_ref(&message), true).unwrap(), prompt);
    let without = codec.apply_chat_template(&[message], false).unwrap();
    assert_eq!(without, prompt.strip_suffix("<|im_start|>assistant\n").unwrap());
}

#[test]
fn characters_are_whole_in_every_piece() {
    let codec = bundled();
    let text = "日本語 👨\u{200d}👩\u{200d}👧 é";
    let pieces = stream(&codec, &codec.encode(text).unwrap());
    assert_eq!(pieces.concat(), text);
    assert!(pieces.iter().all(|piece| !piece.contains(char::REPLACEMENT_CHARACTER)));
    assert!(pieces.iter().filter(|piece| piece.is_empty()).count() > 3, "some tokens end within a character");
}

#[test]
fn an_unfinished_character_comes_out_at_the_end() {
    let codec = bundled();
    let mut ids = codec.encode("日").unwrap();
    ids.pop();
    let pieces = stream(&codec, &ids);
    assert_eq!(pieces.last().unwrap(), "\u{fffd}");
    assert_eq!(pieces.concat(), codec.decode(&ids).unwrap());
}

#[test]
fn ids_without_a_token_give_no_text() {
    let codec = bundled();
    let [a] = codec.encode("a").unwrap()[..] else { panic!("`a` is one token") };
    assert_eq!(codec.decode(&[a, 4095, u32::MAX, a]).unwrap(), "aa");
    assert_eq!(stream(&codec, &[a, 4095, u32::MAX, a]).concat(), "aa");
}

#[test]
fn a_folder_without_a_tokenizer_has_no_codec() {
    assert!(TextCodec::from_dir(&repository("testdata/models/qwen3_next-random"), 512).unwrap().is_none());
}

#[test]
fn a_folder_without_a_template_says_so() {
    let dir = folder(&[("tokenizer.json", small_tokenizer().to_string().into())]);
    let codec = TextCodec::from_dir(dir.path(), 5).unwrap().unwrap();
    assert_eq!(codec.encode("abc<|end|>").unwrap(), [3, 2, 4]);
    assert!(!codec.has_chat_template());
    let message = codec.apply_chat_template(&[], true).unwrap_err().to_string();
    assert!(message.contains("chat_template.jinja") && message.contains("tokenizer_config.json"), "{message}");
}

#[test]
fn templates_of_all_three_places() {
    let config = |template: Value| {
        json!({"chat_template": template, "eos_token": {"content": "</s>"}, "bos_token": null}).to_string()
    };
    let named = json!([{"name": "tool_use", "template": "no"}, {"name": "default", "template": "list{{ eos_token }}"}]);
    for (template, jinja, expected) in [
        (json!("plain{{ eos_token }}{{ bos_token }}"), None, "plain</s>"),
        (named, None, "list</s>"),
        (json!("plain"), Some("file{{ eos_token }}"), "file</s>"),
    ] {
        let mut files = vec![
            ("tokenizer.json", small_tokenizer().to_string().into_bytes()),
            ("tokenizer_config.json", config(template).into_bytes()),
        ];
        files.extend(jinja.map(|source| ("chat_template.jinja", source.into())));
        let codec = TextCodec::from_dir(folder(&files).path(), 5).unwrap().unwrap();
        assert_eq!(codec.apply_chat_template(&[], true).unwrap(), expected);
    }
}

#[test]
fn settings_for_batches_do_not_cut_a_prompt() {
    let mut tokenizer = small_tokenizer();
    tokenizer["truncation"] = json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    tokenizer["padding"] = json!({
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "a",
    });
    let dir = folder(&[("tokenizer.json", tokenizer.to_string().into())]);
    let codec = TextCodec::from_dir(dir.path(), 5).unwrap().unwrap();
    assert_eq!(codec.encode("cabac").unwrap(), [2, 3, 0, 2]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn pieces_of_any_ids_make_the_whole_text(ids in prop::collection::vec(0u32..4100, 0..60)) {
        let codec = bundled();
        prop_assert_eq!(stream(&codec, &ids).concat(), codec.decode(&ids).unwrap());
    }

    #[test]
    fn pieces_of_single_bytes_make_the_whole_text(ids in prop::collection::vec(0u32..256, 0..60)) {
        let codec = bundled();
        prop_assert_eq!(stream(&codec, &ids).concat(), codec.decode(&ids).unwrap());
    }

    #[test]
    fn texts_come_back(text in "\\PC{0,40}") {
        let codec = bundled();
        let ids = codec.encode(&text).unwrap();
        prop_assert!(ids.iter().all(|&id| (id as usize) < VOCAB_SIZE));
        // The tokenizer composes characters (NFC), so the first round may change the text and the second may not.
        let once = codec.decode(&ids).unwrap();
        prop_assert_eq!(codec.decode(&codec.encode(&once).unwrap()).unwrap(), once);
    }
}
