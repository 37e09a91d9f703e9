//! The header of a safetensors file: 8 bytes of length (little endian), then JSON, then the data.
//!
//! The checks are those of the `safetensors` crate, and a property test holds the two together. They are made here
//! because the crate's errors do not say which tensor is wrong, and because it lets the last of two equal names win.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use safetensors::Dtype;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

/// Bytes of the length in front of the header.
pub(super) const LEN_BYTES: usize = 8;

/// Longest header that the format allows.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// What is wrong with the header of a safetensors file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderProblem {
    /// The file ends before the header's length does.
    #[error("the file has {len} bytes, expected at least 8 for the length of its header")]
    TooShort {
        /// Bytes of the file.
        len: u64,
    },
    /// The header claims to be longer than the format allows.
    #[error("the header claims {claimed} bytes, expected at most {MAX_HEADER_BYTES}")]
    TooLong {
        /// Length in the file.
        claimed: u64,
    },
    /// The header claims to be longer than the file.
    #[error("the header claims {claimed} bytes, but only {available} follow its length; the file may be truncated")]
    PastEnd {
        /// Length in the file.
        claimed: u64,
        /// Bytes behind the length.
        available: u64,
    },
    /// The header is not UTF-8.
    #[error("the header is not valid UTF-8: byte {offset} of it starts no character")]
    InvalidUtf8 {
        /// Offset within the header.
        offset: usize,
    },
    /// The header is not JSON, or an entry does not describe a tensor.
    #[error("the header cannot be read: {0}")]
    Json(serde_json::Error),
    /// A tensor's bytes are not within the data.
    #[error(
        "tensor `{tensor}` has data offsets {begin}..{end}, expected a range within the {data_len} bytes of data; \
         the file may be truncated"
    )]
    OutOfBounds {
        /// The tensor.
        tensor: String,
        /// First byte.
        begin: u64,
        /// Byte behind the last.
        end: u64,
        /// Bytes of data in the file.
        data_len: usize,
    },
    /// A tensor begins before the one ahead of it ends.
    #[error("tensor `{tensor}` begins at byte {found} of the data, expected {expected}: it overlaps the one before it")]
    Overlap {
        /// The tensor.
        tensor: String,
        /// First byte.
        found: usize,
        /// Where the tensor before it ends.
        expected: usize,
    },
    /// Bytes before a tensor belong to none.
    #[error(
        "tensor `{tensor}` begins at byte {found} of the data, expected {expected}: the bytes between are no one's"
    )]
    Gap {
        /// The tensor.
        tensor: String,
        /// First byte.
        found: usize,
        /// Where the tensor before it ends.
        expected: usize,
    },
    /// Bytes behind the last tensor belong to none.
    #[error("the file has {found} bytes of data, expected {expected}, where the last tensor ends")]
    Trailing {
        /// Bytes of data in the file.
        found: usize,
        /// Where the last tensor ends.
        expected: usize,
    },
    /// The number of bytes that a shape asks for does not fit an address.
    #[error("tensor `{tensor}` of dtype {dtype} has shape {shape:?}, expected one whose bytes can be counted")]
    ShapeOverflow {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// A tensor's bytes are not as many as its shape and dtype ask for.
    #[error("tensor `{tensor}` of dtype {dtype} and shape {shape:?} has {found} bytes, expected {}", bytes_or_bits(*expected_bits))]
    Length {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
        /// Bytes between its offsets.
        found: usize,
        /// Bits that shape and dtype ask for.
        expected_bits: usize,
    },
}

fn bytes_or_bits(bits: usize) -> String {
    if bits.is_multiple_of(8) { (bits / 8).to_string() } else { format!("{bits} bits, which fill no whole bytes") }
}

/// A tensor as its header describes it, checked.
#[derive(Debug)]
pub(super) struct HeaderEntry {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// Bytes within the whole file.
    pub(super) range: Range<usize>,
}

/// Reads and checks the header of a whole file; entries come in the order of their bytes.
pub(super) fn parse(file: &[u8]) -> Result<Vec<HeaderEntry>, HeaderProblem> {
    let Some((len, rest)) = file.split_first_chunk::<LEN_BYTES>() else {
        return Err(HeaderProblem::TooShort { len: file.len() as u64 });
    };
    let claimed = u64::from_le_bytes(*len);
    if claimed > MAX_HEADER_BYTES {
        return Err(HeaderProblem::TooLong { claimed });
    }
    let Some((header, data)) = rest.split_at_checked(claimed as usize) else {
        return Err(HeaderProblem::PastEnd { claimed, available: rest.len() as u64 });
    };
    let header = std::str::from_utf8(header).map_err(|e| HeaderProblem::InvalidUtf8 { offset: e.valid_up_to() })?;
    let RawHeader(mut tensors) = serde_json::from_str(header).map_err(HeaderProblem::Json)?;
    tensors.sort_by_key(|(_, tensor)| tensor.data_offsets);

    let data_start = file.len() - data.len();
    let mut cursor = 0; // end of the tensors so far, within the data
    let mut entries = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let range = check_range(&name, &tensor, cursor, data.len())?;
        let shape = check_len(&name, &tensor, range.len())?;
        cursor = range.end;
        let range = data_start + range.start..data_start + range.end;
        entries.push(HeaderEntry { name, dtype: tensor.dtype, shape, range });
    }
    if cursor != data.len() {
        return Err(HeaderProblem::Trailing { found: data.len(), expected: cursor });
    }
    Ok(entries)
}

/// Bytes of a tensor within the data: in bounds, and beginning where the one before it ended.
fn check_range(name: &str, tensor: &RawTensor, cursor: usize, data_len: usize) -> Result<Range<usize>, HeaderProblem> {
    let (begin, end) = tensor.data_offsets;
    let (found, end) = match (usize::try_from(begin), usize::try_from(end)) {
        (Ok(begin), Ok(end)) if begin <= end && end <= data_len => (begin, end),
        _ => return Err(HeaderProblem::OutOfBounds { tensor: name.to_owned(), begin, end, data_len }),
    };
    let (tensor, expected) = (name.to_owned(), cursor);
    match found.cmp(&expected) {
        std::cmp::Ordering::Less => Err(HeaderProblem::Overlap { tensor, found, expected }),
        std::cmp::Ordering::Greater => Err(HeaderProblem::Gap { tensor, found, expected }),
        std::cmp::Ordering::Equal => Ok(found..end),
    }
}

/// The shape of a tensor that fills `found` bytes exactly.
fn check_len(name: &str, tensor: &RawTensor, found: usize) -> Result<Vec<usize>, HeaderProblem> {
    let dtype = tensor.dtype;
    let sized = || {
        let shape = tensor.shape.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<Vec<_>>>()?;
        let elements = shape.iter().try_fold(1usize, |elements, &dim| elements.checked_mul(dim))?;
        Some((shape, elements.checked_mul(dtype.bitsize())?))
    };
    let Some((shape, bits)) = sized() else {
        return Err(HeaderProblem::ShapeOverflow { tensor: name.to_owned(), dtype, shape: tensor.shape.clone() });
    };
    if !bits.is_multiple_of(8) || bits / 8 != found {
        return Err(HeaderProblem::Length { tensor: name.to_owned(), dtype, shape, found, expected_bits: bits });
    }
    Ok(shape)
}

/// A tensor as the JSON has it.
#[derive(serde::Deserialize)]
struct RawTensor {
    dtype: Dtype,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// All entries of the JSON but `__metadata__`, in the order of the file.
struct RawHeader(Vec<(String, RawTensor)>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut tensors = Vec::new();
                let mut names = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<Option<HashMap<String, String>>>()?;
                        continue;
                    }
                    let tensor =
                        map.next_value().map_err(|e| A::Error::custom(format_args!("tensor `{name}`: {e}")))?;
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format_args!("tensor `{name}` is there twice")));
                    }
                    tensors.push((name, tensor));
                }
                Ok(RawHeader(tensors))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
