//! Rows that are read or written next, brought near while products run: they lie pages apart, where the hardware does not
//! look ahead.

use std::ops::Range;

use undraft_core::{Data, Rows};

use super::super::rows::SharedRows;
use crate::simd::prefetch;

/// Bytes that come at once.
const LINE: usize = 64;

/// The same columns of successive rows.
#[derive(Clone, Copy)]
struct Stripe {
    /// Where the row at hand goes on.
    next: *const u8,
    /// Where it ends.
    end: *const u8,
    /// Bytes of the columns, and from one row to the next.
    len: usize,
    stride: usize,
    /// Rows that are left, with the one at hand.
    num_rows: usize,
}

/// Rows to ask for, a few lines at a time so that other loads are not held up. Nothing is read through it.
pub(super) struct Ahead {
    stripes: [Option<Stripe>; 4],
    lines_per_call: usize,
}

impl Ahead {
    pub(super) fn new() -> Self {
        Self { stripes: [None; 4], lines_per_call: 0 }
    }

    /// Adds `width` columns from `column` on of rows to read.
    pub(super) fn add_input(&mut self, rows: &Rows<'_>, tokens: Range<usize>, column: usize, width: usize) {
        fn address<T>(data: &[T], index: usize) -> *const u8 {
            data.as_ptr().wrapping_add(index).cast()
        }
        let index = tokens.start * rows.row_stride + column;
        let start = match rows.data {
            Data::F32(d) => address(d, index),
            Data::Bf16(d) => address(d, index),
            Data::F16(d) => address(d, index),
        };
        let size = rows.dtype().size();
        self.add(start, width * size, rows.row_stride * size, tokens.len());
    }

    /// Adds `width` columns from `column` on of rows to write.
    pub(super) fn add_output(&mut self, rows: &SharedRows<'_>, tokens: Range<usize>, column: usize, width: usize) {
        let size = rows.dtype().size();
        self.add(rows.address(tokens.start, column), width * size, rows.row_stride() * size, tokens.len());
    }

    fn add(&mut self, start: *const u8, len: usize, stride: usize, num_rows: usize) {
        if let Some(free) = self.stripes.iter_mut().find(|stripe| stripe.is_none())
            && num_rows > 0
        {
            *free = Some(Stripe { next: start, end: start.wrapping_add(len), len, stride, num_rows });
        }
    }

    /// Shares the lines out over this many calls of [`Ahead::fetch`].
    pub(super) fn share_out(&mut self, num_calls: usize) {
        let lines = self.stripes.iter().flatten().map(|stripe| stripe.len.div_ceil(LINE) * stripe.num_rows);
        self.lines_per_call = lines.sum::<usize>().div_ceil(num_calls.max(1));
    }

    /// Asks for the next few lines.
    #[inline(always)]
    pub(super) fn fetch(&mut self) {
        let mut left = self.lines_per_call;
        for slot in &mut self.stripes {
            let Some(stripe) = slot else { continue };
            while left > 0 {
                prefetch(stripe.next);
                left -= 1;
                stripe.next = stripe.next.wrapping_add(LINE);
                if stripe.next >= stripe.end {
                    stripe.num_rows -= 1;
                    stripe.end = stripe.end.wrapping_add(stripe.stride);
                    stripe.next = stripe.end.wrapping_sub(stripe.len);
                    if stripe.num_rows == 0 {
                        *slot = None;
                        break;
                    }
                }
            }
            if left == 0 {
                return;
            }
        }
    }
}
