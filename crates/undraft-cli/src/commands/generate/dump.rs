//! Logits to a safetensors file.

use std::path::Path;

use anyhow::{Result, anyhow};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::output::Dump;

/// Writes `prompt_ids` `[P]`, `prompt_logits` `[P, V]`, `generated_ids` `[G]` and `generated_logits` `[G, V]`: row i of
/// the last is what generated token i was drawn from. The file appears whole or not at all.
pub fn write(path: &Path, dump: &Dump<'_>, prompt: &[u32], generated: &[u32], vocab_size: usize) -> Result<()> {
    let ids = |ids: &[u32]| -> Vec<u8> { ids.iter().flat_map(|&id| i64::from(id).to_le_bytes()).collect() };
    let floats = |x: &[f32]| -> Vec<u8> { x.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let tensors = [
        ("prompt_ids", Dtype::I64, vec![prompt.len()], ids(prompt)),
        ("prompt_logits", Dtype::F32, vec![prompt.len(), vocab_size], floats(dump.prompt)),
        ("generated_ids", Dtype::I64, vec![generated.len()], ids(generated)),
        ("generated_logits", Dtype::F32, vec![generated.len(), vocab_size], floats(dump.generated)),
    ];
    let mut views = Vec::new();
    for (name, dtype, shape, bytes) in &tensors {
        views.push((*name, TensorView::new(*dtype, shape.clone(), bytes)?));
    }
    let bytes = safetensors::serialize(views, None)?;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".part");
    std::fs::write(&temporary, bytes)
        .and_then(|()| std::fs::rename(&temporary, path))
        .map_err(|error| anyhow!("cannot write `{}`: {error}", path.display()))
}
