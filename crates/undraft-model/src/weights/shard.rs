//! One safetensors file, mapped into memory.

use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::header::{self, HeaderEntry, HeaderProblem};
use crate::error::{ModelError, Result};
use crate::files;

/// A mapped file whose header has been checked.
#[derive(Debug)]
pub(super) struct Shard {
    file: PathBuf,
    map: Mmap,
}

impl Shard {
    /// Maps `file` and reads its header; the ranges of the entries lie within the map.
    pub(super) fn open(file: PathBuf) -> Result<(Self, Vec<HeaderEntry>)> {
        let io = |source| ModelError::Io { file: file.clone(), source };
        let handle = files::open_regular(&file)?;
        let len = handle.metadata().map_err(io)?.len();
        if len < header::LEN_BYTES as u64 {
            // An empty file cannot be mapped, so this must come before the map.
            return Err(ModelError::InvalidHeader { file, problem: HeaderProblem::TooShort { len } });
        }
        // SAFETY: the map is read-only and private to this process, and `file` is a regular file (`open_regular`).
        // That nobody changes or truncates it meanwhile cannot be enforced from here; it is a stated requirement of
        // `Weights`, and all that is read through the map is plain bytes, every value of which is valid.
        let map = unsafe { Mmap::map(&handle) }.map_err(io)?;
        match header::parse(&map) {
            Ok(entries) => Ok((Self { file, map }, entries)),
            Err(problem) => Err(ModelError::InvalidHeader { file, problem }),
        }
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Bytes of a tensor; `range` comes from an entry of this shard.
    pub(super) fn bytes(&self, range: &Range<usize>) -> &[u8] {
        &self.map[range.clone()]
    }
}
