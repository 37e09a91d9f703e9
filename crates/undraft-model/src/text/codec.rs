//! `tokenizer.json` and what belongs to it.

use std::path::{Path, PathBuf};

use tokenizers::Tokenizer;

use super::chat::{ChatTemplate, Message};
use super::{StreamDecoder, checks};
use crate::error::{ModelError, Result};
use crate::files;

/// Most bytes of a tokenizer; published ones of 250,000 tokens have about 20 MB.
const MAX_TOKENIZER_BYTES: u64 = 128 << 20;

/// Turns text into token ids and back, and messages into text.
#[derive(Debug)]
pub struct TextCodec {
    dir: PathBuf,
    file: PathBuf,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
}

impl TextCodec {
    /// Loads `tokenizer.json` of a model folder, with the chat template of `chat_template.jinja` or else of
    /// `tokenizer_config.json`. A folder without `tokenizer.json` has no codec: such a model takes and gives ids.
    ///
    /// # Errors
    /// If a file cannot be read, is not UTF-8 or does not parse; if the tokenizer is not a byte-level BPE
    /// ([`ModelError::InvalidKey`]); and if it has an id of `vocab_size` or above ([`ModelError::TokenizerVocab`]).
    pub fn from_dir(dir: &Path, vocab_size: usize) -> Result<Option<Self>> {
        let file = dir.join("tokenizer.json");
        if !files::exists(&file)? {
            return Ok(None);
        }
        let text = files::read_text(&file, MAX_TOKENIZER_BYTES)?;
        let outline = checks::Outline::parse(&file, &text, vocab_size)?;
        let unusable = |source| ModelError::Tokenizer { file: file.clone(), source };
        let mut tokenizer: Tokenizer = text.parse().map_err(unusable)?;
        outline.check_added_ids(&file, &tokenizer)?;
        // Settings for batches of fixed length, which would cut or fill a prompt.
        tokenizer.with_truncation(None).map_err(unusable)?.with_padding(None);
        let template = ChatTemplate::from_dir(dir)?;
        Ok(Some(Self { dir: dir.to_path_buf(), file, tokenizer, template }))
    }

    /// Token ids of `text`. Special tokens written in the text become their ids; none are added around it.
    ///
    /// # Errors
    /// [`ModelError::Tokenize`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode_fast(text, false).map_err(|source| self.failed(source))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Text of `ids`, special tokens included. Ids without a token (a model may have more rows than its tokenizer has
    /// tokens) give no text; bytes that form no character become U+FFFD.
    ///
    /// # Errors
    /// [`ModelError::Tokenize`].
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer.decode(ids, false).map_err(|source| self.failed(source))
    }

    /// A decoder that is given ids one by one.
    pub fn stream(&self) -> StreamDecoder<'_> {
        StreamDecoder::new(&self.tokenizer)
    }

    /// Whether the folder has a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// The text of a conversation, as [`TextCodec::encode`] takes it. With `add_generation_prompt` it ends where the
    /// assistant's next message begins.
    ///
    /// # Errors
    /// [`ModelError::NoChatTemplate`], and [`ModelError::ChatTemplate`] if the template does not compile or refuses the
    /// messages.
    pub fn apply_chat_template(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        match &self.template {
            Some(template) => template.render(messages, add_generation_prompt),
            None => Err(ModelError::NoChatTemplate { dir: self.dir.clone() }),
        }
    }

    fn failed(&self, source: tokenizers::Error) -> ModelError {
        ModelError::Tokenize { file: self.file.clone(), source }
    }
}
