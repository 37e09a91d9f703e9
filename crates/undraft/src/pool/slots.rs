//! Which slots are in use, and by which round.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};

/// A sequence's place in a pool. A freed slot's handle stays dead, also after its place is given out again.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot {
    index: u32,
    generation: u32,
    pool: u32,
}

impl Slot {
    /// A padding sequence: nothing is read or written, its outputs are zero.
    pub const PAD: Slot = Slot { index: u32::MAX, generation: 0, pool: 0 };

    pub(crate) fn index(self) -> usize {
        self.index as usize
    }
    /// As an entry of `state_indices`.
    pub(crate) fn state_index(self) -> i32 {
        if self == Self::PAD { undraft_core::PAD_SLOT } else { self.index as i32 }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::PAD { f.write_str("PAD") } else { write!(f, "{}.{}", self.index, self.generation) }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({self})")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Free,
    Idle,
    /// In the undecided round of this number.
    Busy(u64),
    /// A `Final` round was abandoned.
    Torn,
}

#[derive(Debug)]
pub(crate) struct SlotTable {
    pool: u32,
    entries: Vec<(u32, Status)>,
    free: Vec<u32>,
    next_round: u64,
}

impl SlotTable {
    pub(crate) fn new(num_slots: usize) -> Self {
        static NEXT_POOL: AtomicU32 = AtomicU32::new(1);
        Self {
            pool: NEXT_POOL.fetch_add(1, Ordering::Relaxed),
            entries: vec![(0, Status::Free); num_slots],
            free: (0..num_slots as u32).rev().collect(),
            next_round: 1,
        }
    }
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
    pub(crate) fn num_free(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn alloc(&mut self) -> Result<Slot> {
        let index = self.free.pop().ok_or(Error::NoFreeSlot { num_slots: self.entries.len() })?;
        let entry = &mut self.entries[index as usize];
        entry.0 = entry.0.wrapping_add(1);
        entry.1 = Status::Idle;
        Ok(Slot { index, generation: entry.0, pool: self.pool })
    }

    pub(crate) fn free(&mut self, slot: Slot) {
        self.entries[slot.index()].1 = Status::Free;
        self.free.push(slot.index);
    }

    fn status(&self, slot: Slot) -> Result<Status> {
        match self.entries.get(slot.index()) {
            Some(&(generation, status))
                if generation == slot.generation && slot.pool == self.pool && status != Status::Free =>
            {
                Ok(status)
            }
            _ => Err(Error::SlotFreed { slot }),
        }
    }

    /// The slot is in use, whatever its status.
    pub(crate) fn check_alive(&self, slot: Slot) -> Result<()> {
        self.status(slot).map(|_| ())
    }

    /// The slot is in use, without an undecided round, and whole.
    pub(crate) fn check(&self, slot: Slot) -> Result<()> {
        match self.status(slot)? {
            Status::Busy(_) => Err(Error::SlotBusy { slot }),
            Status::Torn => Err(Error::SlotTorn { slot }),
            _ => Ok(()),
        }
    }

    pub(crate) fn set_status(&mut self, index: usize, status: Status) {
        self.entries[index].1 = status;
    }

    /// Marks the slots busy with a new round and gives its number.
    pub(crate) fn open_round(&mut self, slots: &[Slot]) -> u64 {
        let id = self.next_round;
        self.next_round += 1;
        for slot in slots.iter().filter(|&&s| s != Slot::PAD) {
            self.entries[slot.index()].1 = Status::Busy(id);
        }
        id
    }

    /// Whether all these slots are still in round `id` of this pool.
    pub(crate) fn is_open(&self, slots: &[Slot], id: u64) -> bool {
        slots.iter().filter(|&&s| s != Slot::PAD).all(|&slot| self.status(slot) == Ok(Status::Busy(id)))
    }

    /// Ends round `id` on the slots that are still in it.
    pub(crate) fn close_round(&mut self, slots: &[Slot], id: u64, status: Status) {
        for &slot in slots.iter().filter(|&&s| s != Slot::PAD) {
            if self.status(slot) == Ok(Status::Busy(id)) {
                self.entries[slot.index()].1 = status;
            }
        }
    }
}
