//! Chat templates, rendered as Hugging Face renders them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, context};
use serde::Serialize;
use serde_json::{Map, Value as Json};

use super::strftime::format_utc;
use crate::error::{ModelError, Result};
use crate::files::{self, MAX_CONFIG_BYTES, Object, describe};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

/// The source of a chat template, with the special tokens that it may name.
#[derive(Debug)]
pub(super) struct ChatTemplate {
    file: PathBuf,
    source: String,
    /// `bos_token`, `eos_token` and the like.
    special_tokens: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// The template of `chat_template.jinja`, or else of `tokenizer_config.json`, if there is one.
    ///
    /// It is not compiled yet: a template of a kind that we do not know must not keep others from plain generation.
    pub(super) fn from_dir(dir: &Path) -> Result<Option<Self>> {
        let config_file = dir.join("tokenizer_config.json");
        let (mut source, mut special_tokens) = (None, BTreeMap::new());
        if files::exists(&config_file)? {
            let config = files::parse_json(&config_file, &files::read_text(&config_file, MAX_CONFIG_BYTES)?)?;
            source = configured_template(&Object::top(&config_file, &config))?.map(str::to_owned);
            special_tokens = named_tokens(&config);
        }
        let jinja_file = dir.join("chat_template.jinja");
        if files::exists(&jinja_file)? {
            let source = files::read_text(&jinja_file, MAX_CONFIG_BYTES)?;
            return Ok(Some(Self { file: jinja_file, source, special_tokens }));
        }
        Ok(source.map(|source| Self { file: config_file, source, special_tokens }))
    }

    /// The text of `messages`.
    pub(super) fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let context = context! { messages, add_generation_prompt, ..Value::from_serialize(&self.special_tokens) };
        let mut environment = environment();
        let render = environment
            .add_template("chat_template", &self.source)
            .and_then(|()| environment.get_template("chat_template")?.render(context));
        render.map_err(|source| ModelError::ChatTemplate { file: self.file.clone(), source })
    }
}

/// `chat_template`: the source, or a list of named ones, of which `default` counts.
fn configured_template<'a>(config: &Object<'a>) -> Result<Option<&'a str>> {
    const KEY: &str = "chat_template";
    match config.get(KEY) {
        None => Ok(None),
        Some(Json::String(source)) => Ok(Some(source)),
        Some(Json::Array(named)) => {
            let default = named.iter().find(|template| template["name"] == "default");
            let source = default.and_then(|template| template["template"].as_str());
            let expected = "a list with a template named \"default\"";
            source.map(Some).ok_or_else(|| config.invalid(KEY, "a list without one", expected))
        }
        Some(other) => Err(config.invalid(KEY, describe(other), "a template or a list of named templates")),
    }
}

/// Keys like `eos_token`, whose values are texts or objects with the text under `content`.
fn named_tokens(config: &Map<String, Json>) -> BTreeMap<String, String> {
    let keys = config.iter().filter(|(key, _)| key.ends_with("_token"));
    let text = |value: &Json| value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned);
    keys.filter_map(|(key, value)| Some((key.clone(), text(value)?))).collect()
}

/// The settings, functions and methods that Hugging Face gives its templates.
fn environment<'a>() -> Environment<'a> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: String| -> Result<String, Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        format_utc(now.as_secs(), &format).map_err(|directive| {
            Error::new(ErrorKind::InvalidOperation, format!("strftime_now does not know `{directive}`"))
        })
    });
    environment
}

/// JSON as Python writes it: a space behind commas and colons, and none of the HTML escapes of the built-in filter.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    if options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false) {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson does not support `ensure_ascii`"));
    }
    options.assert_all_used()?;
    let mut out = Vec::new();
    let written = match indent {
        Some(indent) => {
            let indent = " ".repeat(indent.min(64));
            let formatter = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, formatter))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, PythonSpacing)),
    };
    let failed = |message: String| Error::new(ErrorKind::BadSerialization, message);
    written.map_err(|e| failed(e.to_string()))?;
    String::from_utf8(out).map(Value::from_safe_string).map_err(|e| failed(e.to_string()))
}

struct PythonSpacing;

impl serde_json::ser::Formatter for PythonSpacing {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, out: &mut W, first: bool) -> std::io::Result<()> {
        self.begin_array_value(out, first)
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, messages: &[(&str, &str)]) -> Result<String> {
        let template = ChatTemplate {
            file: "chat_template.jinja".into(),
            source: source.into(),
            special_tokens: [("eos_token".to_owned(), "<|im_end|>".to_owned())].into(),
        };
        let message = |&(role, content): &(&str, &str)| Message { role: role.into(), content: content.into() };
        template.render(&messages.iter().map(message).collect::<Vec<_>>(), true)
    }

    #[test]
    fn blocks_are_trimmed_and_python_methods_work() {
        let source = "\
{%- set ns = namespace(last='') %}
{% for message in messages[::-1] %}
    {% if message.role == 'user' and not message['content'].startswith('<') %}
{{ message.content.split('.')[-1].lstrip(' ').upper() }}{{ eos_token }}
    {% set ns.last = message.role %}
    {% endif %}
{% endfor %}
{{ ns.last }}{% if add_generation_prompt %}+{% endif %}";
        let text = render(source, &[("user", "a. b"), ("system", "s"), ("user", "<x>"), ("user", "c.  d")]).unwrap();
        assert_eq!(text, "D<|im_end|>\nB<|im_end|>\nuser+");
    }

    #[test]
    fn json_is_written_as_python_does() {
        let text = render("{{ {'a': [1, 'é<']} | tojson }}|{{ [1] | tojson(indent=1) }}", &[]).unwrap();
        assert_eq!(text, "{\"a\": [1, \"é<\"]}|[\n 1\n]");
    }

    #[test]
    fn refusals_carry_the_template_s_words() {
        for (source, words) in [
            ("{{ raise_exception('only users speak') }}", "only users speak"),
            ("{{ strftime_now('%Q') }}", "%Q"),
            ("{% if %}", "chat_template:1"),
            ("{{ messages[0].content.frob() }}", "frob"),
        ] {
            let error = render(source, &[("user", "x")]).unwrap_err();
            let message = error.to_string();
            assert!(message.contains(words) && message.contains("chat_template.jinja"), "{message}");
        }
        assert!(render("{{ strftime_now('%Y-%m-%d') }}", &[]).unwrap().starts_with("20"));
    }
}
