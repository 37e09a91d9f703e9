//! Text in and out: tokenizer, streaming decoder and chat template of a model folder.

mod byte_level;
mod chat;
mod checks;
mod codec;
mod stream;
mod strftime;

pub use chat::Message;
pub use codec::TextCodec;
pub use stream::StreamDecoder;
