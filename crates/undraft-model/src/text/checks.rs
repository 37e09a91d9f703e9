//! What must hold of a `tokenizer.json` before the `tokenizers` crate builds from it.
//!
//! That crate takes the file on trust: a merge whose result is not in the vocabulary can run it out of bounds, and the
//! ids of added tokens are not read but counted up, with no more than a log line where they differ.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::error::{ModelError, Result};
use crate::files::{self, describe};

/// The parts of a `tokenizer.json` that are checked.
#[derive(Deserialize)]
pub(super) struct Outline<'a> {
    #[serde(borrow, default)]
    added_tokens: Vec<AddedToken<'a>>,
    decoder: Option<Kind>,
    #[serde(borrow)]
    model: Model<'a>,
}

#[derive(Deserialize)]
struct AddedToken<'a> {
    id: u64,
    #[serde(borrow)]
    content: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Kind {
    r#type: Value,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(default)]
    r#type: Value,
    #[serde(default)]
    continuing_subword_prefix: Value,
    #[serde(default)]
    end_of_word_suffix: Value,
    #[serde(default)]
    dropout: Value,
    #[serde(borrow)]
    vocab: HashMap<Text<'a>, u64>,
    #[serde(borrow)]
    merges: Vec<Merge<'a>>,
}

/// Borrowed where the JSON has no escapes.
#[derive(Deserialize, PartialEq, Eq, Hash)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl std::borrow::Borrow<str> for Text<'_> {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// `["a", "b"]`, or `"a b"` in older files.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge<'a> {
    Pair(#[serde(borrow)] Cow<'a, str>, #[serde(borrow)] Cow<'a, str>),
    Line(#[serde(borrow)] Cow<'a, str>),
}

impl<'a> Outline<'a> {
    /// Parses and checks the `text` of `file` for a model of `vocab_size` embeddings.
    pub(super) fn parse(file: &Path, text: &'a str, vocab_size: usize) -> Result<Self> {
        let outline: Self = files::parse_json(file, text)?;
        outline.check_kind(file)?;
        outline.check_largest_id(file, vocab_size)?;
        outline.check_merges(file)?;
        Ok(outline)
    }

    /// Byte-level BPE, the kind that the supported models have, and the only one that decodes byte by byte.
    fn check_kind(&self, file: &Path) -> Result<()> {
        let decoder = self.decoder.as_ref().map_or(&Value::Null, |decoder| &decoder.r#type);
        for (key, found, expected) in
            [("model.type", &self.model.r#type, "BPE"), ("decoder.type", decoder, "ByteLevel")]
        {
            if found != expected {
                return Err(invalid(file, key, describe(found), format!("\"{expected}\"")));
            }
        }
        for (key, found) in [
            ("model.continuing_subword_prefix", &self.model.continuing_subword_prefix),
            ("model.end_of_word_suffix", &self.model.end_of_word_suffix),
            ("model.dropout", &self.model.dropout),
        ] {
            if !(found.is_null() || found == "" || found.as_f64() == Some(0.0)) {
                return Err(invalid(file, key, describe(found), "null".into()));
            }
        }
        Ok(())
    }

    fn check_largest_id(&self, file: &Path, vocab_size: usize) -> Result<()> {
        let added = self.added_tokens.iter().map(|token| (token.id, &*token.content));
        let all = self.model.vocab.iter().map(|(text, &id)| (id, &*text.0)).chain(added);
        match all.max() {
            Some((id, token)) if id >= vocab_size as u64 => {
                Err(ModelError::TokenizerVocab { file: file.to_path_buf(), token: token.to_owned(), id, vocab_size })
            }
            _ => Ok(()),
        }
    }

    fn check_merges(&self, file: &Path) -> Result<()> {
        let vocab = &self.model.vocab;
        let mut joined = String::new();
        for (i, merge) in self.model.merges.iter().enumerate() {
            let parts = match merge {
                Merge::Pair(a, b) => Some((&**a, &**b)),
                Merge::Line(line) => line.split_once(' '),
            };
            let key = || format!("model.merges[{i}]");
            let Some((a, b)) = parts else {
                return Err(invalid(file, &key(), "one word".into(), "two tokens of the vocabulary".into()));
            };
            joined.clear();
            joined.extend([a, b]);
            for token in [a, b, &joined] {
                if !vocab.contains_key(token) {
                    let found = format!("(`{a}`, `{b}`)");
                    return Err(invalid(file, &key(), found, format!("a merge with `{token}` in `model.vocab`")));
                }
            }
        }
        Ok(())
    }

    /// Checks that the built tokenizer gives added tokens the ids that the file gives them.
    pub(super) fn check_added_ids(&self, file: &Path, tokenizer: &Tokenizer) -> Result<()> {
        for (i, token) in self.added_tokens.iter().enumerate().filter(|(_, token)| !token.content.is_empty()) {
            let id = tokenizer.token_to_id(&token.content).map(u64::from);
            if id != Some(token.id) {
                let found = format!("{} for `{}`", token.id, token.content);
                let expected = match id {
                    Some(id) => format!("{id}, the id in `model.vocab` or the next one behind it"),
                    None => "a token that the tokenizer knows".into(),
                };
                return Err(invalid(file, &format!("added_tokens[{i}].id"), found, expected));
            }
        }
        Ok(())
    }
}

fn invalid(file: &Path, key: &str, found: String, expected: String) -> ModelError {
    ModelError::InvalidKey { file: file.to_path_buf(), key: key.to_owned(), found, expected }
}
