//! Weights of a model folder: safetensors files, checked before anything is read from them.
//!
//! A file may claim what it likes: sizes are compared with the bytes that are there, and nothing is allocated by a
//! number that the file gives.

mod header;
mod name;
mod shard;
mod view;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use std::ops::{Bound, Range};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

pub use header::HeaderProblem;
pub use view::{TensorView, WeightData, WeightDtype};

use crate::error::{ModelError, Result};
use crate::files;
use shard::Shard;

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";

/// Most bytes of an index. 100,000 tensors of 100 bytes each are 10 MB.
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// Tensors of the vision tower in multimodal folders, which a language model does not ask for.
const IGNORED_PREFIXES: [&str; 2] = ["model.visual.", "visual."];

/// The tensors of a model folder, mapped into memory.
///
/// The files must not be changed or truncated while this lives: they are mapped, so a change would show in the middle
/// of a read, and a read behind a new end would end the process. Once a tensor is copied out
/// ([`TensorView::to_storage`]) it is safe from that.
#[derive(Debug)]
pub struct Weights {
    dir: PathBuf,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    shard: usize,
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
    range: Range<usize>,
    used: AtomicBool,
}

impl Weights {
    /// Opens `model.safetensors`, or the shards of `model.safetensors.index.json`, or else every `*.safetensors` file.
    ///
    /// Headers are read and checked; weights are not touched yet. Tensors that a shard holds and the index does not
    /// list are there as well, so that [`Weights::unused`] can tell of them.
    ///
    /// # Errors
    /// If there are no weights, a file cannot be read or mapped, a header lies ([`ModelError::InvalidHeader`]), a name
    /// is there twice, or the index and the files differ.
    pub fn open(dir: &Path) -> Result<Self> {
        let mut weights = Self { dir: dir.to_path_buf(), shards: Vec::new(), tensors: BTreeMap::new() };
        let index = dir.join(INDEX_FILE);
        if files::exists(&dir.join(SINGLE_FILE))? {
            weights.add_shard(dir.join(SINGLE_FILE))?;
        } else if files::exists(&index)? {
            weights.open_index(&index)?;
        } else {
            for file in safetensors_files(dir)? {
                weights.add_shard(file)?;
            }
        }
        if weights.shards.is_empty() {
            return Err(ModelError::NoWeights { dir: dir.to_path_buf() });
        }
        Ok(weights)
    }

    fn open_index(&mut self, index: &Path) -> Result<()> {
        #[derive(serde::Deserialize)]
        struct Index {
            weight_map: BTreeMap<String, String>,
        }
        let Index { weight_map } = files::parse_json(index, &files::read_text(index, MAX_INDEX_BYTES)?)?;

        let mut opened = BTreeMap::new();
        for (tensor, shard) in &weight_map {
            if opened.contains_key(shard) {
                continue;
            }
            let (index, tensor) = (index.to_path_buf(), tensor.clone());
            if !is_file_name(shard) {
                return Err(ModelError::ShardPath { index, tensor, shard: shard.clone() });
            }
            let file = self.dir.join(shard);
            if !files::exists(&file)? {
                return Err(ModelError::MissingShard { index, tensor, shard: shard.clone() });
            }
            opened.insert(shard, self.add_shard(file)?);
        }
        for (tensor, shard) in &weight_map {
            if self.tensors.get(tensor).map(|entry| entry.shard) != opened.get(shard).copied() {
                let (tensor, shard) = (tensor.clone(), shard.clone());
                return Err(ModelError::NotInShard { index: index.to_path_buf(), tensor, shard });
            }
        }
        Ok(())
    }

    /// Maps a file and adds its tensors; returns its place among the shards.
    fn add_shard(&mut self, file: PathBuf) -> Result<usize> {
        let (shard, entries) = Shard::open(file)?;
        let index = self.shards.len();
        for header::HeaderEntry { name, dtype, shape, range } in entries {
            match self.tensors.entry(name) {
                MapEntry::Vacant(vacant) => {
                    vacant.insert(Entry { shard: index, dtype, shape, range, used: AtomicBool::new(false) });
                }
                MapEntry::Occupied(occupied) => {
                    let first = self.shards[occupied.get().shard].file().to_path_buf();
                    let tensor = occupied.key().clone();
                    return Err(ModelError::DuplicateTensor { tensor, first, second: shard.file().to_path_buf() });
                }
            }
        }
        self.shards.push(shard);
        Ok(index)
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether there is a tensor `name`. Does not count as a use.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Whether the name of any tensor begins with `prefix`, as `mtp.` tells of an MTP head. Does not count as a use.
    pub fn contains_prefix(&self, prefix: &str) -> bool {
        self.with_prefix(prefix).next().is_some()
    }

    /// What stands before `embed_tokens.weight`, `layers.N.` and `norm.weight`: `model.language_model.` in multimodal
    /// folders, else `model.`. `lm_head.weight` and `mtp.` have no prefix in either.
    pub fn prefix(&self) -> &'static str {
        const NESTED: &str = "model.language_model.";
        if self.contains_prefix(NESTED) { NESTED } else { "model." }
    }

    /// The tensor `name`, which counts as used from here on.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`] with the nearest name, and [`ModelError::TensorDtype`] unless the elements are
    /// BF16, F16 or F32.
    pub fn get(&self, name: &str) -> Result<TensorView<'_>> {
        let Some((name, entry)) = self.tensors.get_key_value(name) else {
            let nearest = name::nearest(name, self.names()).map(str::to_owned);
            return Err(ModelError::MissingTensor { tensor: name.to_owned(), dir: self.dir.clone(), nearest });
        };
        entry.used.store(true, Ordering::Relaxed);
        let shard = &self.shards[entry.shard];
        TensorView::new(name, entry.dtype, &entry.shape, shard.bytes(&entry.range), shard.file())
    }

    /// Counts every tensor whose name begins with `prefix` as used: for parts that the caller leaves out on purpose.
    pub fn ignore_prefix(&self, prefix: &str) {
        for (_, entry) in self.with_prefix(prefix) {
            entry.used.store(true, Ordering::Relaxed);
        }
    }

    /// Names of tensors that nobody asked for, sorted; those of a vision tower are left out.
    pub fn unused(&self) -> Vec<&str> {
        let ignored = |name: &str| IGNORED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        let unused = self.tensors.iter().filter(|(_, entry)| !entry.used.load(Ordering::Relaxed));
        unused.map(|(name, _)| name.as_str()).filter(|name| !ignored(name)).collect()
    }

    /// Refuses a folder with tensors that nobody asked for; call it when all parts are loaded.
    ///
    /// # Errors
    /// [`ModelError::UnexpectedTensor`] with the first of [`Weights::unused`].
    pub fn expect_all_used(&self) -> Result<()> {
        let unused = self.unused();
        match unused.first() {
            None => Ok(()),
            Some(&first) => Err(ModelError::UnexpectedTensor {
                first: first.to_owned(),
                count: unused.len(),
                dir: self.dir.clone(),
            }),
        }
    }

    fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a String, &'a Entry)> {
        self.tensors
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(move |(name, _)| name.starts_with(prefix))
    }
}

/// Whether a shard of the index is a plain name, so that no index reaches out of its folder.
fn is_file_name(shard: &str) -> bool {
    let mut components = Path::new(shard).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(name)), None) if name == shard)
}

fn safetensors_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let io = |source| ModelError::Io { file: dir.to_path_buf(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let file = entry.map_err(io)?.path();
        if file.extension().is_some_and(|extension| extension == "safetensors") {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_names_stay_in_the_folder() {
        assert!(is_file_name("model-00001-of-00002.safetensors"));
        for bad in ["", ".", "..", "../x", "/x", "a/b", "./a", "a/", "a/.."] {
            assert!(!is_file_name(bad), "{bad}");
        }
    }
}
