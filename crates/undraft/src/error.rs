//! What can go wrong with a pool or a round.

use std::path::PathBuf;

use crate::pool::Slot;

/// Result of a pool or round call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was wrong; the pool is as it was before the call.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation's arguments were wrong, or its back end cannot do it.
    #[error(transparent)]
    Op(#[from] undraft_core::Error),
    /// The CUDA device cannot be had, or has failed.
    #[error(transparent)]
    Cuda(#[from] undraft_cuda::CudaError),
    /// The wgpu adapter cannot be had, or has failed.
    #[error(transparent)]
    Wgpu(#[from] undraft_wgpu::WgpuError),
    /// Every slot is in use.
    #[error("all {num_slots} slots are in use; free one, or make a larger pool")]
    NoFreeSlot {
        /// Slots of the pool.
        num_slots: usize,
    },
    /// The slot was freed (and perhaps given out again) or belongs to another pool.
    #[error("slot {slot} is not in use: it was freed, or belongs to another pool")]
    SlotFreed {
        /// The stale handle.
        slot: Slot,
    },
    /// A round on this slot is undecided.
    #[error("slot {slot} has an undecided round; commit it or roll it back first")]
    SlotBusy {
        /// The slot.
        slot: Slot,
    },
    /// A prefill of this slot was abandoned half way.
    #[error("slot {slot} was left in the middle of a prefill that cannot be taken back; reset or free it")]
    SlotTorn {
        /// The slot.
        slot: Slot,
    },
    /// A slot stands twice in one round.
    #[error("slot {slot} stands at [{first}] and again at [{position}]: a slot may stand once in a round")]
    DuplicateSlot {
        /// The slot.
        slot: Slot,
        /// First position.
        first: usize,
        /// Second position.
        position: usize,
    },
    /// Two lists of a call have different lengths.
    #[error("`{arg}` has {got} entries, expected {expected}, one a sequence")]
    Entries {
        /// Argument.
        arg: &'static str,
        /// Entries needed.
        expected: usize,
        /// Entries that came.
        got: usize,
    },
    /// A window is longer than the pool can take back.
    #[error("window {seq} has {got} tokens, expected at most `max_window` = {max_window}")]
    WindowTooLong {
        /// Sequence of the round.
        seq: usize,
        /// Tokens of its window.
        got: usize,
        /// Capacity of the pool.
        max_window: usize,
    },
    /// More tokens should stay than the window has.
    #[error("`num_kept`[{seq}] is {got}, expected 0..={num_tokens}, the window's tokens")]
    NumKept {
        /// Sequence of the round.
        seq: usize,
        /// Number that came.
        got: usize,
        /// Tokens of the window.
        num_tokens: usize,
    },
    /// The tokens that should stay do not follow one another.
    #[error(
        "`{arg}`[{seq}] has token {got} at position {position}, expected one of 0..{num_tokens} whose parent is {before}"
    )]
    NotAPath {
        /// `paths` or `num_kept`.
        arg: &'static str,
        /// Sequence of the round.
        seq: usize,
        /// Position in its path.
        position: usize,
        /// Token that came.
        got: usize,
        /// Token before it in the path, -1 for the committed state.
        before: i32,
        /// Tokens of the window.
        num_tokens: usize,
    },
    /// A token's parent does not come before it.
    #[error(
        "`parents`[{seq}][{position}] is {got}, expected -1 (the committed state) or 0..{position}: parents come first"
    )]
    Parent {
        /// Sequence of the round.
        seq: usize,
        /// Position in its window.
        position: usize,
        /// Parent that came.
        got: i32,
    },
    /// A prefill keeps all of its tokens.
    #[error("`num_kept`[{seq}] is {got}, expected {num_tokens}: a round with capture `Final` keeps all its tokens")]
    FinalKeepsAll {
        /// Sequence of the round.
        seq: usize,
        /// Number that came.
        got: usize,
        /// Tokens of the window.
        num_tokens: usize,
    },
    /// No such layer.
    #[error("`layer` is {got}, expected 0..{num_layers}")]
    Layer {
        /// Index that came.
        got: usize,
        /// Layers of the pool.
        num_layers: usize,
    },
    /// A layer's sizes are not those that the pool was made for.
    #[error("layer {layer} has `{what}` = {got}, expected {expected} as the pool was made for")]
    LayerDims {
        /// Layer index.
        layer: usize,
        /// Name of the size.
        what: &'static str,
        /// Size that came.
        got: usize,
        /// Size of the pool.
        expected: usize,
    },
    /// A layer was verified twice in one round.
    #[error("layer {layer} was already verified in this round")]
    VerifiedTwice {
        /// Layer index.
        layer: usize,
    },
    /// A layer was left out of a round.
    #[error("layer {layer} was not verified in this round, so that it cannot be committed; the round is rolled back")]
    NotVerified {
        /// First such layer.
        layer: usize,
    },
    /// Memory for the pool could not be had.
    #[error("the pool needs {bytes} bytes for {what}, which the system refused")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// What for.
        what: &'static str,
    },
    /// A file could not be read or written. A failed save leaves what was there before.
    #[error("cannot {action} {}: {message}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// `read` or `write`.
        action: &'static str,
        /// What the system said.
        message: String,
    },
    /// Bytes are not a snapshot that this version reads.
    #[error("not a snapshot of a slot: `{what}` is {got}, expected {expected}")]
    NotASnapshot {
        /// Part of the file.
        what: String,
        /// What came.
        got: String,
        /// What it must be.
        expected: String,
    },
    /// A snapshot was made by a pool with other layers.
    #[error("the snapshot has {got} layers, expected {expected} as the pool was made for")]
    SnapshotLayers {
        /// Layers of the snapshot.
        got: usize,
        /// Layers of the pool.
        expected: usize,
    },
    /// A detached round does not belong here.
    #[error("the detached round belongs to another pool, or its slots were reset")]
    ForeignRound,
    /// A round with capture `PerToken` or `Final` stays with its pool.
    #[error("a round with capture `{capture:?}` cannot be detached; use `DeltaLog`")]
    CannotDetach {
        /// Capture of the round.
        capture: undraft_core::Capture,
    },
}
