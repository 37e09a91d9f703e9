//! The one error type of the operations: fields, not strings.

use std::fmt;

use crate::rows::DType;

/// Result of a check or an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A shape whose axes have names, printed as `[num_tokens=12, num_v_heads=32]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedShape(pub Vec<(&'static str, usize)>);

impl NamedShape {
    /// Number of elements, saturating.
    pub fn num_elements(&self) -> usize {
        self.0.iter().fold(1usize, |n, &(_, d)| n.saturating_mul(d))
    }
}

impl fmt::Display for NamedShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, (name, size)) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{name}={size}")?;
        }
        f.write_str("]")
    }
}

/// What was wrong with a call. Every variant names the argument, what was expected and what came.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A buffer has the wrong number of elements.
    #[error("`{arg}` has {got} elements, expected {} = {expected}", expected.num_elements())]
    Length {
        /// Argument.
        arg: &'static str,
        /// Axes by name.
        expected: NamedShape,
        /// Elements that came.
        got: usize,
    },
    /// A strided buffer ends before its last row.
    #[error(
        "`{arg}` has {got} elements, expected at least {expected} for {num_rows} rows of {row_len} at stride {stride}"
    )]
    TooShort {
        /// Argument.
        arg: &'static str,
        /// Elements needed.
        expected: usize,
        /// Elements that came.
        got: usize,
        /// Rows of the view.
        num_rows: usize,
        /// Elements of a row.
        row_len: usize,
        /// Elements between the starts of two rows.
        stride: usize,
    },
    /// Rows of a strided buffer would overlap.
    #[error("`{arg}` has row stride {got}, expected at least the row length {row_len}")]
    Stride {
        /// Argument.
        arg: &'static str,
        /// Elements of a row.
        row_len: usize,
        /// Stride that came.
        got: usize,
    },
    /// A number lies outside its range.
    #[error("`{arg}` is {got}, expected {min}..={max}")]
    OutOfRange {
        /// Argument.
        arg: &'static str,
        /// Value that came.
        got: i64,
        /// Smallest value allowed.
        min: i64,
        /// Largest value allowed.
        max: i64,
    },
    /// A float must be finite.
    #[error("`{arg}` is {got}, expected {expected}")]
    Number {
        /// Argument.
        arg: &'static str,
        /// Value that came.
        got: f32,
        /// What it must be.
        expected: &'static str,
    },
    /// One size must be a multiple of another.
    #[error("`{arg}` is {got}, expected a multiple of `{of_arg}` = {of}")]
    NotMultiple {
        /// Argument.
        arg: &'static str,
        /// Value that came.
        got: usize,
        /// The other argument.
        of_arg: &'static str,
        /// Its value.
        of: usize,
    },
    /// `cu_seqlens` is not a rising list from 0.
    #[error("`cu_seqlens`[{index}] is {got}, expected {expected}")]
    Seqlens {
        /// Position in `cu_seqlens`.
        index: usize,
        /// Value that came.
        got: i64,
        /// What it must be.
        expected: &'static str,
    },
    /// A slot index is neither -1 nor a slot.
    #[error("`state_indices`[{position}] is {got}, expected -1 (padding) or 0..{num_slots}")]
    SlotOutOfRange {
        /// Position in `state_indices`.
        position: usize,
        /// Value that came.
        got: i64,
        /// Number of slots.
        num_slots: usize,
    },
    /// A slot stands twice in one call.
    #[error("`state_indices`[{position}] is slot {slot} again, first at [{first}]: a slot may stand once in a call")]
    DuplicateSlot {
        /// Second position.
        position: usize,
        /// First position.
        first: usize,
        /// The slot.
        slot: usize,
    },
    /// A window, or a number of its tokens, is more than a log or the captured states hold for a sequence.
    #[error("`{arg}`[{seq}] is {got} tokens, expected at most `max_tokens` = {capacity}")]
    OverCapacity {
        /// `windows`, `num_pending` or `num_kept`.
        arg: &'static str,
        /// Sequence of the call.
        seq: usize,
        /// Tokens that came.
        got: usize,
        /// Tokens that fit.
        capacity: usize,
    },
    /// A buffer has another dtype than the argument that it must go with.
    #[error("`{arg}` is {got}, expected {expected} as `{of_arg}`", got = got.name(), expected = expected.name())]
    DType {
        /// Argument.
        arg: &'static str,
        /// Dtype that came.
        got: DType,
        /// The other argument.
        of_arg: &'static str,
        /// Its dtype.
        expected: DType,
    },
    /// An entry of a path does not rise, or lies outside of the log.
    #[error("`{arg}`[{seq}][{position}] is log entry {got}, expected {least}..{num_entries}: a path rises")]
    PathEntry {
        /// `pending_path` or `path`.
        arg: &'static str,
        /// Sequence of the call.
        seq: usize,
        /// Position in its path.
        position: usize,
        /// Entry that came.
        got: u32,
        /// Smallest entry allowed here.
        least: u32,
        /// Entries of a slot's log.
        num_entries: usize,
    },
    /// A token's parent does not come before it in its window.
    #[error("`parents`[{token}] is {got}, expected -1 (the committed state) or 0..{position}: parents come first")]
    Parent {
        /// Token of the call.
        token: usize,
        /// Its position in its window.
        position: usize,
        /// Parent that came.
        got: i32,
    },
    /// An argument is needed by the others and is absent.
    #[error("`{arg}` is missing, expected it because {because}")]
    Missing {
        /// Argument.
        arg: &'static str,
        /// Why it is needed.
        because: &'static str,
    },
    /// Sizes overflow the address space.
    #[error("`{arg}` needs {what} elements in total, which overflows")]
    Overflow {
        /// Argument.
        arg: &'static str,
        /// The product, by name.
        what: NamedShape,
    },
    /// The back end does not do this.
    #[error("back end `{backend}` does not support {what}: {hint}")]
    Unsupported {
        /// Name of the back end.
        backend: &'static str,
        /// What was asked for.
        what: String,
        /// What to do instead.
        hint: &'static str,
    },
    /// The device of a back end has failed, or has no room for the call.
    #[error("the device of back end `{backend}` failed: {why}")]
    Device {
        /// Name of the back end.
        backend: &'static str,
        /// What the device or its driver says.
        why: String,
    },
}

/// Checks `got == product(shape)`.
pub(crate) fn check_len(arg: &'static str, got: usize, shape: &[(&'static str, usize)]) -> Result<()> {
    if checked_product(arg, shape)? == got {
        return Ok(());
    }
    Err(Error::Length { arg, expected: NamedShape(shape.to_vec()), got })
}

/// Product of a shape, or [`Error::Overflow`].
pub(crate) fn checked_product(arg: &'static str, shape: &[(&'static str, usize)]) -> Result<usize> {
    shape
        .iter()
        .try_fold(1usize, |n, &(_, d)| n.checked_mul(d))
        .filter(|&n| n <= isize::MAX as usize / 4)
        .ok_or_else(|| Error::Overflow { arg, what: NamedShape(shape.to_vec()) })
}

/// Checks `min <= got <= max`.
pub(crate) fn check_range(arg: &'static str, got: usize, min: usize, max: usize) -> Result<()> {
    if (min..=max).contains(&got) {
        return Ok(());
    }
    let clamp = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    Err(Error::OutOfRange { arg, got: clamp(got), min: clamp(min), max: clamp(max) })
}
