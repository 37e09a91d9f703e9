//! Device memory: host memory with guards around it.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;

use undraft_cuda::driver::DevicePtr;

use crate::options::Poison;

/// Bytes before and behind each allocation.
const GUARD: usize = 1024;
const ALIGN: usize = 256;
/// NaN of every element type, and no value that arithmetic gives.
const GUARD_WORD: u16 = 0x7fd5;

#[derive(Debug)]
struct Allocation {
    begin: *mut u8,
    layout: Layout,
    bytes: usize,
}

/// All allocations of a device, by address.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    allocations: BTreeMap<DevicePtr, Allocation>,
}

// SAFETY: the allocations belong to the one `Memory`, which frees them.
unsafe impl Send for Memory {}

/// Bytes of all allocations, guards included, in the order of addresses.
pub(crate) struct Snapshot(Vec<Vec<u8>>);

fn fill(bytes: &mut [u8], word: u16) {
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = word.to_le_bytes()[i % 2];
    }
}

impl Allocation {
    /// All of it, guards included.
    fn whole(&self) -> &[u8] {
        // SAFETY: allocated with this size and filled by `Memory::alloc`; nothing runs on the device now.
        unsafe { std::slice::from_raw_parts(self.begin, self.layout.size()) }
    }
    fn whole_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.begin, self.layout.size()) }
    }
    fn guards_are_whole(&self) -> bool {
        let whole = self.whole();
        let intact = |guard: &[u8]| guard.iter().enumerate().all(|(i, &b)| b == GUARD_WORD.to_le_bytes()[i % 2]);
        intact(&whole[..GUARD]) && intact(&whole[GUARD + self.bytes..])
    }
}

impl Memory {
    pub(crate) fn alloc(&mut self, bytes: usize, poison: Poison) -> Result<DevicePtr, String> {
        let size = bytes.checked_add(2 * GUARD).ok_or("more bytes than addresses")?;
        let layout = Layout::from_size_align(size, ALIGN).map_err(|e| e.to_string())?;
        // SAFETY: the size is at least that of the guards.
        let begin = unsafe { alloc(layout) };
        if begin.is_null() {
            return Err(format!("{bytes} bytes are not to be had"));
        }
        // SAFETY: just allocated with this size; zeroed first, so that every byte is initialised.
        let whole = unsafe {
            begin.write_bytes(0, size);
            std::slice::from_raw_parts_mut(begin, size)
        };
        fill(&mut whole[..GUARD], GUARD_WORD);
        fill(&mut whole[GUARD..GUARD + bytes], poison.word());
        fill(&mut whole[GUARD + bytes..], GUARD_WORD);
        let address = begin as DevicePtr + GUARD as DevicePtr;
        self.allocations.insert(address, Allocation { begin, layout, bytes });
        Ok(address)
    }

    pub(crate) fn free(&mut self, address: DevicePtr) -> Result<(), String> {
        let Some(allocation) = self.allocations.remove(&address) else {
            return Err(format!("{address:#x} is not the address of an allocation"));
        };
        let whole = allocation.guards_are_whole();
        // SAFETY: allocated with this layout, and no longer in the list.
        unsafe { dealloc(allocation.begin, allocation.layout) };
        if whole { Ok(()) } else { Err(outside(address, allocation.bytes)) }
    }

    /// Fails if anything was written before or behind an allocation.
    pub(crate) fn check_guards(&self) -> Result<(), String> {
        match self.allocations.iter().find(|(_, allocation)| !allocation.guards_are_whole()) {
            None => Ok(()),
            Some((&address, allocation)) => Err(outside(address, allocation.bytes)),
        }
    }

    /// The bytes of a range that lies in one allocation.
    pub(crate) fn bytes(&mut self, address: DevicePtr, len: usize) -> Result<&mut [u8], String> {
        let outside = || format!("{len} bytes at {address:#x} do not lie in an allocation");
        let (&begin, allocation) = self.allocations.range_mut(..=address).next_back().ok_or_else(outside)?;
        let offset = (address - begin) as usize;
        if offset.checked_add(len).is_none_or(|end| end > allocation.bytes) {
            return Err(outside());
        }
        Ok(&mut allocation.whole_mut()[GUARD + offset..GUARD + offset + len])
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot(self.allocations.values().map(|allocation| allocation.whole().to_vec()).collect())
    }
    /// Of the same allocations.
    pub(crate) fn restore(&mut self, snapshot: &Snapshot) {
        for (allocation, bytes) in self.allocations.values_mut().zip(&snapshot.0) {
            allocation.whole_mut().copy_from_slice(bytes);
        }
    }
    /// The first byte that differs: its allocation's size, its offset.
    pub(crate) fn difference(&self, snapshot: &Snapshot) -> Option<(usize, usize)> {
        self.allocations.values().zip(&snapshot.0).find_map(|(allocation, bytes)| {
            let whole = allocation.whole();
            if whole == &bytes[..] {
                return None;
            }
            let at = whole.iter().zip(bytes).position(|(a, b)| a != b)?;
            Some((allocation.bytes, at.saturating_sub(GUARD)))
        })
    }
}

fn outside(address: DevicePtr, bytes: usize) -> String {
    format!("a write outside of the allocation of {bytes} bytes at {address:#x}")
}

impl Drop for Memory {
    fn drop(&mut self) {
        for allocation in self.allocations.values() {
            // SAFETY: allocated with this layout, freed here alone.
            unsafe { dealloc(allocation.begin, allocation.layout) };
        }
    }
}
