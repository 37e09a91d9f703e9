//! Files of a model folder, read with errors that name the file and the key.

use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{ModelError, Result};

/// Most bytes read from `config.json`, `generation_config.json` and `tokenizer_config.json`.
///
/// Published ones have a few kilobytes; a parsed value may take 16 times the bytes of its text.
pub(crate) const MAX_CONFIG_BYTES: u64 = 4 << 20;

/// Opens a regular file for reading; a pipe or device, which could block, is refused.
pub(crate) fn open_regular(file: &Path) -> Result<File> {
    let io = |source| ModelError::Io { file: file.to_path_buf(), source };
    if !std::fs::metadata(file).map_err(io)?.is_file() {
        return Err(ModelError::NotAFile { file: file.to_path_buf() });
    }
    File::open(file).map_err(io)
}

/// Whether something has this path; errors of the look-up itself (permissions) are reported.
pub(crate) fn exists(file: &Path) -> Result<bool> {
    file.try_exists().map_err(|source| ModelError::Io { file: file.to_path_buf(), source })
}

/// Reads a UTF-8 file of at most `limit` bytes.
pub(crate) fn read_text(file: &Path, limit: u64) -> Result<String> {
    let mut bytes = Vec::new();
    open_regular(file)?
        .take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| ModelError::Io { file: file.to_path_buf(), source })?;
    if bytes.len() as u64 > limit {
        return Err(ModelError::FileTooLarge { file: file.to_path_buf(), limit });
    }
    String::from_utf8(bytes)
        .map_err(|e| ModelError::InvalidUtf8 { file: file.to_path_buf(), offset: e.utf8_error().valid_up_to() })
}

/// Parses the text of `file`.
pub(crate) fn parse_json<'a, T: serde::Deserialize<'a>>(file: &Path, text: &'a str) -> Result<T> {
    serde_json::from_str(text).map_err(|source| ModelError::InvalidJson { file: file.to_path_buf(), source })
}

/// A JSON object of a file, with getters whose errors name the file and the whole key.
///
/// `null` counts as absent, as it does in the files of Hugging Face.
#[derive(Clone, Copy)]
pub(crate) struct Object<'a> {
    file: &'a Path,
    /// Key of this object with a dot behind it; empty at the top.
    prefix: &'a str,
    map: &'a Map<String, Value>,
}

impl<'a> Object<'a> {
    /// The outermost object of a file.
    pub(crate) fn top(file: &'a Path, map: &'a Map<String, Value>) -> Self {
        Self { file, prefix: "", map }
    }

    /// The file this object is in.
    pub(crate) fn file(&self) -> &'a Path {
        self.file
    }

    /// The value of `key`, unless absent or `null`.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// The object under `key`; `prefix` is the whole key with a dot behind it.
    pub(crate) fn object(&self, key: &str, prefix: &'a str) -> Result<Option<Object<'a>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Object { file: self.file, prefix, map })),
            Some(other) => Err(self.invalid(key, describe(other), "an object")),
        }
    }

    /// An integer in `range`, if the key is there.
    pub(crate) fn optional_integer(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<usize>> {
        self.get(key).map(|value| self.integer_value(key, value, &range)).transpose()
    }

    /// An integer in `range`.
    pub(crate) fn integer(&self, key: &str, range: RangeInclusive<usize>) -> Result<usize> {
        let expected = expected_integer(&range);
        self.optional_integer(key, range)?.ok_or_else(|| self.missing(key, expected))
    }

    /// Integers in `range`, if the key is there.
    pub(crate) fn optional_integers(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<Vec<usize>>> {
        let Some(items) = self.optional_list(key)? else { return Ok(None) };
        let item = |(i, value)| self.integer_value(&format!("{key}[{i}]"), value, &range);
        items.iter().enumerate().map(item).collect::<Result<_>>().map(Some)
    }

    /// A number from `range`, if the key is there; integers count as numbers.
    pub(crate) fn optional_number(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(self.invalid(key, describe(value), expected_number(&range))),
        }
    }

    /// A number from `range`.
    pub(crate) fn number(&self, key: &str, range: RangeInclusive<f64>) -> Result<f64> {
        let expected = expected_number(&range);
        self.optional_number(key, range)?.ok_or_else(|| self.missing(key, expected))
    }

    /// `true` or `false`, if the key is there.
    pub(crate) fn optional_bool(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.invalid(key, describe(value), "true or false"))
    }

    /// A string, if the key is there.
    pub(crate) fn optional_string(&self, key: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.invalid(key, describe(value), "a string"))
    }

    /// A list, if the key is there.
    pub(crate) fn optional_list(&self, key: &str) -> Result<Option<&'a [Value]>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_array().map(|list| Some(list.as_slice())).ok_or_else(|| self.invalid(key, describe(value), "a list"))
    }

    /// Refuses any value of `key` that is not among `allowed`; an absent key passes.
    pub(crate) fn only(&self, key: &str, allowed: &[Value], expected: &str) -> Result<()> {
        match self.get(key) {
            Some(value) if !allowed.contains(value) => Err(self.invalid(key, describe(value), expected)),
            _ => Ok(()),
        }
    }

    fn integer_value(&self, key: &str, value: &Value, range: &RangeInclusive<usize>) -> Result<usize> {
        value
            .as_u64()
            .and_then(|n| usize::try_from(n).ok())
            .filter(|n| range.contains(n))
            .ok_or_else(|| self.invalid(key, describe(value), expected_integer(range)))
    }

    /// The whole name of `key`.
    pub(crate) fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    pub(crate) fn missing(&self, key: &str, expected: impl Into<String>) -> ModelError {
        ModelError::MissingKey { file: self.file.to_path_buf(), key: self.key(key), expected: expected.into() }
    }

    pub(crate) fn invalid(&self, key: &str, found: impl Into<String>, expected: impl Into<String>) -> ModelError {
        ModelError::InvalidKey {
            file: self.file.to_path_buf(),
            key: self.key(key),
            found: found.into(),
            expected: expected.into(),
        }
    }
}

fn expected_integer(range: &RangeInclusive<usize>) -> String {
    format!("an integer in {}..={}", range.start(), range.end())
}

fn expected_number(range: &RangeInclusive<f64>) -> String {
    let bound = |x: f64| if x < 1e6 { format!("{x:?}") } else { format!("{x:e}") };
    format!("a number in {}..={}", bound(*range.start()), bound(*range.end()))
}

/// A value as an error shows it: short, and never the whole of a large list.
pub(crate) fn describe(value: &Value) -> String {
    const MAX_CHARS: usize = 60;
    match value {
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".into(),
        Value::String(text) if text.chars().nth(MAX_CHARS).is_some() => {
            format!("\"{}...\"", text.chars().take(MAX_CHARS).collect::<String>())
        }
        other => other.to_string(),
    }
}
