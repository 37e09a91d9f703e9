//! Speculation changes nothing: after every round the tokens, their logits, the recurrent and convolution states and
//! the keys and values are those of plain decoding, bit for bit.

mod lossless;
mod runner;
