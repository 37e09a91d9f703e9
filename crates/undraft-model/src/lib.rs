//! Runner for hybrid language models with exact speculative decoding.

pub mod config;
pub mod cuda;
pub mod dense;
pub mod drafters;
pub mod error;
mod files;
pub mod generate;
pub mod gpu;
mod load;
pub mod metal;
pub mod model;
pub mod sampling;
pub mod text;
pub mod weights;
pub mod wgpu;

pub use config::ModelConfig;
pub use error::{ModelError, Result};
pub use model::Model;
