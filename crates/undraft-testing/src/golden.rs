//! Reader of the golden vectors in `testdata/golden`; what is in them is told by `testdata/README.md`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use undraft_core::{bf16, f16};

/// Values of a tensor, as stored.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Floats of any width, widened.
    Float(Vec<f64>),
    /// Integers of any width.
    Int(Vec<i64>),
}

impl Values {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Values::Float(values) => values.len(),
            Values::Int(values) => values.len(),
        }
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Shape.
    pub shape: Vec<usize>,
    /// Values.
    pub values: Values,
}

impl Tensor {
    /// Floats, widened.
    ///
    /// # Errors
    /// If it holds integers.
    pub fn f64s(&self) -> Result<&[f64], String> {
        match &self.values {
            Values::Float(values) => Ok(values),
            Values::Int(_) => Err("it holds integers, expected floats".to_owned()),
        }
    }
    /// Floats, rounded to f32.
    ///
    /// # Errors
    /// If it holds integers.
    pub fn f32s(&self) -> Result<Vec<f32>, String> {
        Ok(self.f64s()?.iter().map(|&x| x as f32).collect())
    }
    /// Integers.
    ///
    /// # Errors
    /// If it holds floats.
    pub fn i64s(&self) -> Result<&[i64], String> {
        match &self.values {
            Values::Int(values) => Ok(values),
            Values::Float(_) => Err("it holds floats, expected integers".to_owned()),
        }
    }
    /// Elements of one step along the first axis.
    pub fn row_len(&self) -> usize {
        self.shape.iter().skip(1).product()
    }
}

/// A file of golden vectors.
///
/// ```
/// use undraft_testing::golden::Golden;
/// let golden = Golden::open("qwen3_5-odd-random/n9.safetensors")?;
/// assert_eq!(golden.get("logits_f64")?.shape, [9, 1000]);
/// assert!(golden.get("logits_f63").unwrap_err().contains("logits_f64"));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug)]
pub struct Golden {
    name: String,
    tensors: BTreeMap<String, Tensor>,
}

impl Golden {
    /// Reads `testdata/golden/<path>`.
    ///
    /// # Errors
    /// If the file is absent or is no safetensors file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, String> {
        let path = testdata().join("golden").join(path);
        let bytes = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Self::from_bytes(&path.display().to_string(), &bytes)
    }
    /// Reads a file's bytes; `name` is for messages.
    ///
    /// # Errors
    /// If they are no safetensors file, or hold a dtype that no golden vector has.
    pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Self, String> {
        let file = SafeTensors::deserialize(bytes).map_err(|e| format!("{name}: {e}"))?;
        let mut tensors = BTreeMap::new();
        for (tensor, view) in file.iter() {
            let values = decode(view.dtype(), view.data()).map_err(|e| format!("{name}: `{tensor}`: {e}"))?;
            tensors.insert(tensor.to_owned(), Tensor { shape: view.shape().to_vec(), values });
        }
        Ok(Self { name: name.to_owned(), tensors })
    }
    /// A tensor.
    ///
    /// # Errors
    /// With the names that there are.
    pub fn get(&self, tensor: &str) -> Result<&Tensor, String> {
        self.tensors.get(tensor).ok_or_else(|| {
            let names: Vec<&str> = self.names().collect();
            format!("{}: no tensor `{tensor}`, expected one of {}", self.name, names.join(", "))
        })
    }
    /// Names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }
}

/// Reads a JSON file, `testdata/golden/<path>`.
///
/// # Errors
/// If the file is absent or is no JSON.
pub fn json(path: impl AsRef<Path>) -> Result<serde_json::Value, String> {
    let path = testdata().join("golden").join(path);
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

/// The repository's `testdata`.
pub fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata")
}

fn decode(dtype: Dtype, bytes: &[u8]) -> Result<Values, String> {
    fn each<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
        // The reader has checked that the bytes are whole elements.
        bytes.as_chunks::<N>().0.iter().map(|&chunk| read(chunk)).collect()
    }
    Ok(match dtype {
        Dtype::F64 => Values::Float(each(bytes, f64::from_le_bytes)),
        Dtype::F32 => Values::Float(each(bytes, |b| f64::from(f32::from_le_bytes(b)))),
        Dtype::BF16 => Values::Float(each(bytes, |b| bf16::from_le_bytes(b).to_f64())),
        Dtype::F16 => Values::Float(each(bytes, |b| f16::from_le_bytes(b).to_f64())),
        Dtype::I64 => Values::Int(each(bytes, i64::from_le_bytes)),
        Dtype::I32 => Values::Int(each(bytes, |b| i64::from(i32::from_le_bytes(b)))),
        other => return Err(format!("dtype {other:?}, expected F64, F32, BF16, F16, I64 or I32")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_reads_and_is_in_the_manifest() {
        let manifest = std::fs::read_to_string(testdata().join("golden/MANIFEST.toml")).expect("the manifest is there");
        let mut bytes = 0;
        let mut folders = vec![testdata()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("testdata is readable") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                bytes += path.metadata().expect("metadata").len();
                let name = path.strip_prefix(testdata()).expect("within testdata").display().to_string();
                let written_by_hand = ["README.md", "golden/MANIFEST.toml"].contains(&name.as_str());
                assert!(written_by_hand || manifest.contains(&format!("path = \"{name}\"")), "{name}");
                if name.starts_with("golden/") && name.ends_with(".safetensors") {
                    let golden =
                        Golden::open(path.strip_prefix(testdata().join("golden")).expect("golden")).expect(&name);
                    assert!(golden.names().count() > 0);
                }
                if name.starts_with("golden/") && name.ends_with(".json") {
                    assert!(json(path.strip_prefix(testdata().join("golden")).expect("golden")).is_ok(), "{name}");
                }
            }
        }
        assert!(bytes <= 10_000_000, "testdata has {bytes} bytes");
    }

    #[test]
    fn a_bad_file_is_an_error() {
        assert!(Golden::open("absent.safetensors").unwrap_err().contains("absent.safetensors"));
        assert!(Golden::from_bytes("cut", &[9, 0, 0]).unwrap_err().starts_with("cut: "));
    }
}
