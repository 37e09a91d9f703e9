//! Runner for hybrid language models with exact speculative decoding.

pub mod config;
pub mod error;
pub mod sampling;
pub mod text;
pub mod weights;

pub use config::ModelConfig;
pub use error::{ModelError, Result};
