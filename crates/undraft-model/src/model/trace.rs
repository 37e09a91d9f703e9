//! Intermediate values of one call, for tests and for finding where two implementations part.

use std::collections::BTreeMap;

/// Values by layer and name, `[num_tokens, ..]` each, of the last call.
///
/// | name | where | shape |
/// | --- | --- | --- |
/// | `embedding` | layer 0 | `[n, H]` |
/// | `state` | every block's end | `[n, H]` |
/// | `input`, `output` | before and behind a Gated DeltaNet mixer | `[n, H]` |
/// | `in_proj_qkv`, `in_proj_z`, `in_proj_b`, `in_proj_a` | Gated DeltaNet | `[n, rows]` |
/// | `o`, `normed` | Gated DeltaNet | `[n, HV * V]` |
#[derive(Clone, Debug, Default)]
pub struct Trace {
    values: BTreeMap<(usize, &'static str), Vec<f32>>,
}

impl Trace {
    /// A value of a layer (counted over all layers), if it was recorded.
    pub fn get(&self, layer: usize, name: &'static str) -> Option<&[f32]> {
        self.values.get(&(layer, name)).map(Vec::as_slice)
    }

    pub(super) fn clear(&mut self) {
        self.values.clear();
    }

    pub(super) fn record(&mut self, layer: usize, name: &'static str, value: &[f32]) {
        self.values.insert((layer, name), value.to_vec());
    }
}
