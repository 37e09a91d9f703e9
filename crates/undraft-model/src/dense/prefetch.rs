//! Asking for memory ahead of its use.

use super::block::Block;

/// Bytes of the rows of a tile above which asking for the next tile would push out what is in use.
const MAX_TILE_BYTES: usize = 1 << 14;

/// How many blocks ahead of the one in use the next tile's lie, if rows are short: then the hardware's own prefetching,
/// which starts anew with every row, comes too late. 0 for long rows.
#[inline(always)]
pub(super) fn blocks_ahead<B: Block>(rows: usize, row_blocks: usize) -> usize {
    let tile = rows * row_blocks;
    if tile * size_of::<B>() <= MAX_TILE_BYTES { tile } else { 0 }
}

/// Asks for the block `ahead` behind `block`, wherever that is; changes nothing but time.
#[inline(always)]
pub(super) fn prefetch<B: Block>(block: &B, ahead: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..size_of::<B>() / 64 {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let address = std::ptr::from_ref(block).wrapping_add(ahead).cast::<i8>().wrapping_add(64 * line);
        // SAFETY: the instruction reads nothing that the program sees and does not fault, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (block, ahead);
}
