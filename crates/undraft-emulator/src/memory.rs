//! Device memory: host memory with guards around it, and closed pages around these.

use std::collections::BTreeMap;

use undraft_cuda::driver::DevicePtr;

use crate::options::Poison;
use crate::pages::{Pages, Region};

/// Bytes before and behind each allocation, which is aligned to 256 so.
const GUARD: usize = 1024;
/// NaN of every element type, and no value that arithmetic gives.
const GUARD_WORD: u16 = 0x7fd5;
const INTACT: [u8; GUARD] = {
    let mut guard = [0; GUARD];
    let mut i = 0;
    while i < GUARD {
        guard[i] = GUARD_WORD.to_le_bytes()[i % 2];
        i += 1;
    }
    guard
};

#[derive(Debug)]
struct Allocation {
    region: Region,
    bytes: usize,
}

/// All allocations of a device, by address.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pages: Pages,
    allocations: BTreeMap<DevicePtr, Allocation>,
}

// SAFETY: the regions belong to the one `Memory`.
unsafe impl Send for Memory {}

/// Bytes of all allocations, guards included, in the order of addresses.
pub(crate) struct Snapshot(Vec<Vec<u8>>);

fn fill(bytes: &mut [u8], word: u16) {
    let word = word.to_le_bytes();
    let mut pairs = bytes.chunks_exact_mut(2);
    pairs.by_ref().for_each(|pair| pair.copy_from_slice(&word));
    pairs.into_remainder().fill(word[0]);
}

impl Allocation {
    /// All of it, guards included.
    fn whole(&self) -> &[u8] {
        // SAFETY: so many bytes of an open region, which the system has filled with zeros at first; nothing runs on the device now.
        unsafe { std::slice::from_raw_parts(self.region.begin.as_ptr(), self.bytes + 2 * GUARD) }
    }
    fn whole_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.region.begin.as_ptr(), self.bytes + 2 * GUARD) }
    }
    fn guards_are_whole(&self) -> bool {
        let whole = self.whole();
        whole[..GUARD] == INTACT && whole[GUARD + self.bytes..] == INTACT
    }
}

impl Memory {
    pub(crate) fn alloc(&mut self, bytes: usize, poison: Poison) -> Result<DevicePtr, String> {
        let size = bytes.checked_add(2 * GUARD).ok_or("more bytes than addresses")?;
        let region = self.pages.open(size).ok_or_else(|| format!("{bytes} bytes are not to be had"))?;
        let address = region.begin.as_ptr() as DevicePtr + GUARD as DevicePtr;
        let mut allocation = Allocation { region, bytes };
        let whole = allocation.whole_mut();
        whole[..GUARD].copy_from_slice(&INTACT);
        fill(&mut whole[GUARD..GUARD + bytes], poison.word());
        whole[GUARD + bytes..].copy_from_slice(&INTACT);
        self.allocations.insert(address, allocation);
        Ok(address)
    }

    pub(crate) fn free(&mut self, address: DevicePtr) -> Result<(), String> {
        let Some(allocation) = self.allocations.remove(&address) else {
            return Err(format!("{address:#x} is not the address of an allocation"));
        };
        let whole = allocation.guards_are_whole();
        self.pages.close(allocation.region);
        if whole { Ok(()) } else { Err(outside(address, allocation.bytes)) }
    }

    /// Whether kernels that read or write beyond an allocation are caught in the act, where there is a sanitizer; the host
    /// must not either, meanwhile.
    pub(crate) fn watch_guards(&self, on: bool) {
        for allocation in self.allocations.values() {
            let behind = GUARD + allocation.bytes;
            allocation.region.watch(0, GUARD, on);
            allocation.region.watch(behind, allocation.region.bytes - behind, on);
        }
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
