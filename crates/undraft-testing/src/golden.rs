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
    use std::collections::BTreeSet;

    use super::*;

    /// What writes each manifest: `tools/golden/trim.py` and `tools/golden/make_ops.py`.
    const MANIFESTS: [&str; 2] = ["golden/MANIFEST.toml", "golden/ops/MANIFEST.toml"];

    struct Entry {
        path: String,
        bytes: usize,
        sha256: String,
    }

    fn entries() -> Vec<Entry> {
        let mut entries = Vec::new();
        for manifest in MANIFESTS {
            let text = std::fs::read_to_string(testdata().join(manifest)).expect(manifest);
            for entry in text.split("[[file]]\n").skip(1) {
                let value = |key: &str| {
                    let line = entry.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
                    line.unwrap_or_else(|| panic!("{manifest}: no `{key}` in {entry}")).trim_matches('"').to_owned()
                };
                let bytes = value("bytes").parse().expect("a number");
                entries.push(Entry { path: value("path"), bytes, sha256: value("sha256") });
            }
        }
        entries
    }

    /// Files below `testdata`, by their names within it.
    fn files() -> BTreeSet<String> {
        let (mut names, mut folders) = (BTreeSet::new(), vec![testdata()]);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("testdata is readable") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    names.insert(path.strip_prefix(testdata()).expect("within testdata").display().to_string());
                }
            }
        }
        names
    }

    #[test]
    fn every_file_is_as_a_manifest_says() {
        let entries = entries();
        let listed: BTreeSet<String> = entries.iter().map(|entry| entry.path.clone()).collect();
        assert_eq!(listed.len(), entries.len(), "a file is listed twice");
        let written_by_hand = ["README.md".to_owned()].into_iter().chain(MANIFESTS.map(str::to_owned));
        assert_eq!(files(), listed.into_iter().chain(written_by_hand).collect());
        for Entry { path, bytes, sha256: digest } in entries {
            let data = std::fs::read(testdata().join(&path)).expect(&path);
            assert_eq!((data.len(), sha256(&data)), (bytes, digest), "{path}");
        }
    }

    #[test]
    fn every_file_reads() {
        let mut bytes = 0;
        for name in files() {
            bytes += testdata().join(&name).metadata().expect(&name).len();
            let Some(name) = name.strip_prefix("golden/") else { continue };
            if name.ends_with(".safetensors") {
                assert!(Golden::open(name).expect(name).names().count() > 0, "{name}");
            }
            if name.ends_with(".json") {
                assert!(json(name).is_ok(), "{name}");
            }
        }
        assert!(bytes <= 10_000_000, "testdata has {bytes} bytes");
    }

    #[test]
    fn a_bad_file_is_an_error() {
        assert!(Golden::open("absent.safetensors").unwrap_err().contains("absent.safetensors"));
        assert!(Golden::from_bytes("cut", &[9, 0, 0]).unwrap_err().starts_with("cut: "));
    }

    #[test]
    fn sha256_of_the_standard_examples() {
        assert_eq!(sha256(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let two_blocks = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        assert_eq!(sha256(two_blocks), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
        let no_room_for_the_length = [b'a'; 63];
        assert_eq!(sha256(&no_room_for_the_length), "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34");
    }

    /// FIPS 180-4, in hexadecimal.
    fn sha256(data: &[u8]) -> String {
        // The first 32 bits of the fractions of the roots of the first primes.
        let primes = (2u32..).filter(|n| (2..*n).take_while(|d| d * d <= *n).all(|d| n % d != 0)).map(f64::from);
        let bits = |root: f64| (root.fract() * 4_294_967_296.0) as u32;
        let constants: Vec<u32> = primes.clone().take(64).map(|p| bits(p.cbrt())).collect();
        let mut hash: Vec<u32> = primes.take(8).map(|p| bits(p.sqrt())).collect();

        let mut message = data.to_vec();
        message.push(0x80);
        message.resize((message.len() + 8).next_multiple_of(64), 0);
        let end = message.len();
        message[end - 8..].copy_from_slice(&(8 * data.len() as u64).to_be_bytes());

        for block in message.as_chunks::<64>().0 {
            let mut words: Vec<u32> = block.as_chunks::<4>().0.iter().map(|&word| u32::from_be_bytes(word)).collect();
            for i in 16..64 {
                let (a, b) = (words[i - 15], words[i - 2]);
                let small = a.rotate_right(7) ^ a.rotate_right(18) ^ (a >> 3);
                let large = b.rotate_right(17) ^ b.rotate_right(19) ^ (b >> 10);
                words.push(words[i - 16].wrapping_add(small).wrapping_add(words[i - 7]).wrapping_add(large));
            }
            let mut state = hash.clone();
            for (word, constant) in words.iter().zip(&constants) {
                let (a, e) = (state[0], state[4]);
                let choice = (e & state[5]) ^ (!e & state[6]);
                let majority = (a & state[1]) ^ (a & state[2]) ^ (state[1] & state[2]);
                let large = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
                let small = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
                let first = [large, choice, *constant, *word].into_iter().fold(state[7], u32::wrapping_add);
                state.rotate_right(1);
                state[0] = first.wrapping_add(small).wrapping_add(majority);
                state[4] = state[4].wrapping_add(first);
            }
            hash.iter_mut().zip(state).for_each(|(hash, state)| *hash = hash.wrapping_add(state));
        }
        hash.iter().map(|word| format!("{word:08x}")).collect()
    }
}
