//! Text of a growing list of ids, as soon as it is certain.

use tokenizers::Tokenizer;

use super::byte_level::push_token_bytes;

/// Decodes ids one by one. What it returns, put together, equals [`super::TextCodec::decode`] of all ids.
///
/// A token may end within a character, so up to three bytes wait for the next one; each id costs the same however
/// long the text already is.
#[derive(Debug)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    /// The beginning of a character.
    pending: Vec<u8>,
}

impl<'a> StreamDecoder<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, pending: Vec::new() }
    }

    /// Appends to `text` what `id` makes certain: whole characters, and U+FFFD for bytes that cannot become one.
    pub fn push(&mut self, id: u32, text: &mut String) {
        let Some(token) = self.tokenizer.id_to_token(id) else { return };
        push_token_bytes(&token, &mut self.pending);
        let mut done = 0;
        while let Err(error) = std::str::from_utf8(&self.pending[done..]) {
            done += push_valid(&self.pending[done..], error.valid_up_to(), text);
            match error.error_len() {
                Some(len) => {
                    text.push(char::REPLACEMENT_CHARACTER);
                    done += len;
                }
                // The rest begins a character that the next token may complete.
                None => {
                    self.pending.drain(..done);
                    return;
                }
            }
        }
        push_valid(&self.pending[done..], self.pending.len() - done, text);
        self.pending.clear();
    }

    /// Appends what is left when no id follows: U+FFFD for an unfinished character.
    pub fn finish(self, text: &mut String) {
        text.push_str(&String::from_utf8_lossy(&self.pending));
    }
}

/// Appends the first `len` bytes, which are valid, and returns `len`.
fn push_valid(bytes: &[u8], len: usize, text: &mut String) -> usize {
    text.push_str(&String::from_utf8_lossy(&bytes[..len]));
    len
}
