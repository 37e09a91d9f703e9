//! `generation_config.json`: where generation ends, and how its author would sample.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::Result;
use crate::files::{self, MAX_CONFIG_BYTES, Object, describe};

/// Defaults of generation that come with a model. Every one may be absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Ids after which generation ends; `eos_token_id`, one or a list.
    pub eos_token_ids: Vec<u32>,
    /// Whether to sample at all; greedy otherwise.
    pub do_sample: Option<bool>,
    /// Sampling temperature, >= 0.
    pub temperature: Option<f64>,
    /// Most likely tokens kept; 0 keeps all.
    pub top_k: Option<usize>,
    /// Probability mass kept, 0..=1.
    pub top_p: Option<f64>,
}

impl GenerationConfig {
    /// Reads `generation_config.json` of a model folder; ids that it does not give come from `config.json`.
    ///
    /// Neither file need exist.
    ///
    /// # Errors
    /// If a file cannot be read, is not UTF-8 or JSON, or a key has the wrong type or range.
    pub fn from_dir(dir: &Path) -> Result<Self> {
        let mut config = Self::default();
        let file = dir.join("generation_config.json");
        if let Some(map) = read(&file)? {
            let object = Object::top(&file, &map);
            config = Self {
                eos_token_ids: eos_token_ids(&object)?,
                do_sample: object.optional_bool("do_sample")?,
                temperature: object.optional_number("temperature", 0.0..=1e6)?,
                top_k: object.optional_integer("top_k", 0..=u32::MAX as usize)?,
                top_p: object.optional_number("top_p", 0.0..=1.0)?,
            };
        }
        let file = dir.join("config.json");
        if config.eos_token_ids.is_empty()
            && let Some(map) = read(&file)?
        {
            let top = Object::top(&file, &map);
            config.eos_token_ids = eos_token_ids(&top)?;
            if config.eos_token_ids.is_empty()
                && let Some(inner) = top.object("text_config", "text_config.")?
            {
                config.eos_token_ids = eos_token_ids(&inner)?;
            }
        }
        Ok(config)
    }
}

fn read(file: &Path) -> Result<Option<Map<String, Value>>> {
    if !files::exists(file)? {
        return Ok(None);
    }
    files::parse_json(file, &files::read_text(file, MAX_CONFIG_BYTES)?).map(Some)
}

fn eos_token_ids(object: &Object<'_>) -> Result<Vec<u32>> {
    const KEY: &str = "eos_token_id";
    let Some(value) = object.get(KEY) else { return Ok(Vec::new()) };
    let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let id = |item: &Value| item.as_u64().and_then(|id| u32::try_from(id).ok());
    items
        .iter()
        .map(|item| {
            id(item).ok_or_else(|| object.invalid(KEY, describe(item), "a token id (0..=4294967295) or a list of them"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn one_id_or_a_list() {
        for (text, expected) in [("7", vec![7]), ("[7, 3]", vec![7, 3]), ("null", vec![]), ("[]", vec![])] {
            let dir = folder(&[("generation_config.json", &format!("{{\"eos_token_id\": {text}}}"))]);
            assert_eq!(GenerationConfig::from_dir(dir.path()).unwrap().eos_token_ids, expected, "{text}");
        }
    }

    #[test]
    fn ids_fall_back_to_config_json_outer_then_inner() {
        let outer = folder(&[("config.json", r#"{"eos_token_id": 5, "text_config": {"eos_token_id": 6}}"#)]);
        assert_eq!(GenerationConfig::from_dir(outer.path()).unwrap().eos_token_ids, [5]);
        let inner = folder(&[
            ("config.json", r#"{"text_config": {"eos_token_id": 6}}"#),
            ("generation_config.json", r#"{"temperature": 0.7, "top_k": 20, "top_p": 0.8, "do_sample": true}"#),
        ]);
        let config = GenerationConfig::from_dir(inner.path()).unwrap();
        let expected = GenerationConfig {
            eos_token_ids: vec![6],
            do_sample: Some(true),
            temperature: Some(0.7),
            top_k: Some(20),
            top_p: Some(0.8),
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn no_file_at_all_is_fine() {
        assert_eq!(GenerationConfig::from_dir(folder(&[]).path()).unwrap(), GenerationConfig::default());
    }
}
