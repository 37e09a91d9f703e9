//! The states of all sequences and layers, in slots.

mod slots;
mod storage;

use undraft_core::{Capture, GdnDims, StateLayout, state_to_key_major, state_to_value_major};

pub use slots::Slot;
pub(crate) use slots::{SlotTable, Status};
pub(crate) use storage::LayerStorage;

use crate::error::{Error, Result};
use crate::round::{Plan, Round};
use crate::{DetachedRound, Device};

/// Sizes of one Gated DeltaNet layer of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerDims {
    /// Sizes.
    pub gdn: GdnDims,
    /// Taps of the convolution before it, `2..=8`.
    pub conv_width: usize,
}

/// What a pool is made for.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// The model's Gated DeltaNet layers, in order (layers of other kinds are not counted).
    pub layers: Vec<LayerDims>,
    /// Sequences at once.
    pub num_slots: usize,
    /// Tokens of a window that can be taken back.
    pub max_window: usize,
    /// What windows record: `DeltaLog`, or `PerToken` (slower, T full states; for comparison).
    pub capture: Capture,
}

/// Bytes of one slot over all layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPerSlot {
    /// Recurrent states.
    pub recurrent_state: usize,
    /// Convolution states.
    pub conv_state: usize,
    /// Delta log of `max_window` tokens (k, decay, delta).
    pub delta_log: usize,
    /// Convolution inputs of `max_window` tokens.
    pub conv_log: usize,
    /// Captured states (`PerToken` only).
    pub captured_states: usize,
}

impl MemoryPerSlot {
    /// All of them.
    pub fn total(&self) -> usize {
        self.recurrent_state + self.conv_state + self.delta_log + self.conv_log + self.captured_states
    }
}

/// Recurrent and convolution states of all layers for many sequences.
///
/// A slot is one sequence's state. [`StatePool::begin`] opens a [`Round`] over some slots; what the round's
/// [`commit`](Round::commit) keeps is replayed lazily by the next round's kernels, so that a round reads each state once
/// and writes it at most once.
#[derive(Debug)]
pub struct StatePool {
    pub(crate) device: Device,
    pub(crate) layers: Vec<LayerStorage>,
    pub(crate) slots: SlotTable,
    pub(crate) capture: Capture,
    pub(crate) max_window: usize,
    /// `[num_tokens, C]` of the largest call.
    pub(crate) conv_out: Vec<f32>,
    /// A plan whose buffers the next round uses again.
    pub(crate) spare: Option<Plan>,
}

impl StatePool {
    /// A pool with all slots free.
    ///
    /// # Errors
    /// [`Error::Op`] for sizes out of range, [`Error::OutOfMemory`] if the system refuses.
    pub fn new(device: &Device, config: PoolConfig) -> Result<Self> {
        let PoolConfig { layers, num_slots, max_window, capture } = config;
        let range = |arg, got: usize, min, max| match got >= min && got <= max {
            true => Ok(()),
            false => Err(undraft_core::Error::OutOfRange { arg, got: got as i64, min: min as i64, max: max as i64 }),
        };
        range("num_slots", num_slots, 1, 1 << 24)?;
        range("max_window", max_window, 1, 1 << 16)?;
        range("num_layers", layers.len(), 1, 1 << 16)?;
        if capture == Capture::Final {
            return Err(undraft_core::Error::Unsupported {
                backend: "pool",
                what: "capture `Final` as the pool's capture".into(),
                hint: "use `DeltaLog`, and `begin_final` for rounds that keep everything",
            }
            .into());
        }
        let layers = layers.iter().map(|dims| LayerStorage::new(*dims, num_slots, max_window, capture));
        Ok(Self {
            device: device.clone(),
            layers: layers.collect::<Result<_>>()?,
            slots: SlotTable::new(num_slots),
            capture,
            max_window,
            conv_out: Vec::new(),
            spare: None,
        })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }
    /// Layers.
    pub fn num_layers(&self) -> usize {
        self.layers.len()
    }
    /// Slots, used or free.
    pub fn num_slots(&self) -> usize {
        self.slots.len()
    }
    /// Slots that [`StatePool::alloc`] can still give.
    pub fn num_free_slots(&self) -> usize {
        self.slots.num_free()
    }
    /// Tokens of a window that can be taken back.
    pub fn max_window(&self) -> usize {
        self.max_window
    }
    /// Bytes of one slot over all layers.
    pub fn memory_per_slot(&self) -> MemoryPerSlot {
        let mut memory = MemoryPerSlot::default();
        for layer in &self.layers {
            layer.add_memory(self.max_window, self.capture, &mut memory);
        }
        memory
    }

    /// Gives out a free slot with all states zero.
    ///
    /// # Errors
    /// [`Error::NoFreeSlot`].
    pub fn alloc(&mut self) -> Result<Slot> {
        let slot = self.slots.alloc()?;
        self.clear(slot.index());
        Ok(slot)
    }

    /// Takes a slot back; its handle is dead from here on.
    ///
    /// # Errors
    /// [`Error::SlotFreed`] or [`Error::SlotBusy`].
    pub fn free(&mut self, slot: Slot) -> Result<()> {
        match self.slots.check(slot) {
            Ok(()) | Err(Error::SlotTorn { .. }) => self.slots.free(slot),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Sets all states of a slot to zero; also mends a torn slot and cancels a detached round on it.
    ///
    /// # Errors
    /// [`Error::SlotFreed`].
    pub fn reset(&mut self, slot: Slot) -> Result<()> {
        self.slots.check_alive(slot)?;
        self.clear(slot.index());
        self.slots.set_status(slot.index(), Status::Idle);
        Ok(())
    }

    /// Copies a slot, pending tokens and all, into a free one.
    ///
    /// # Errors
    /// [`Error::SlotFreed`], [`Error::SlotBusy`], [`Error::SlotTorn`] or [`Error::NoFreeSlot`].
    pub fn fork(&mut self, slot: Slot) -> Result<Slot> {
        self.slots.check(slot)?;
        let to = self.slots.alloc()?;
        for layer in &mut self.layers {
            layer.copy_slot(slot.index(), to.index());
        }
        Ok(to)
    }

    fn clear(&mut self, index: usize) {
        for layer in &mut self.layers {
            layer.clear_slot(index);
        }
    }

    /// Opens a window of `windows[s]` tokens on each slot, to be taken back in part or whole.
    ///
    /// [`Slot::PAD`] stands for a padding sequence: its outputs are zero.
    ///
    /// # Errors
    /// A stale, busy, torn or repeated slot, or a window over `max_window`.
    pub fn begin(&mut self, slots: &[Slot], windows: &[usize]) -> Result<Round<'_>> {
        self.begin_with(slots, windows, self.capture)
    }

    /// Opens windows of any length that keep all their tokens: prefill.
    ///
    /// The states are overwritten. A round that is dropped after its first `verify` and before `commit` leaves its slots
    /// torn: [`StatePool::reset`] or [`StatePool::free`] them.
    ///
    /// # Errors
    /// A stale, busy, torn or repeated slot.
    pub fn begin_final(&mut self, slots: &[Slot], windows: &[usize]) -> Result<Round<'_>> {
        self.begin_with(slots, windows, Capture::Final)
    }

    fn begin_with(&mut self, slots: &[Slot], windows: &[usize], capture: Capture) -> Result<Round<'_>> {
        if windows.len() != slots.len() {
            return Err(Error::Entries { arg: "windows", expected: slots.len(), got: windows.len() });
        }
        for (position, &slot) in slots.iter().enumerate() {
            if slot == Slot::PAD {
                continue;
            }
            self.slots.check(slot)?;
            if let Some(first) = slots[..position].iter().position(|&s| s == slot) {
                return Err(Error::DuplicateSlot { slot, first, position });
            }
        }
        let limit = if capture == Capture::Final { i32::MAX as usize } else { self.max_window };
        if let Some(seq) = windows.iter().position(|&n| n > limit) {
            return Err(Error::WindowTooLong { seq, got: windows[seq], max_window: limit });
        }
        let total = windows.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)).unwrap_or(usize::MAX);
        if total > i32::MAX as usize {
            let (got, max) = (i64::try_from(total).unwrap_or(i64::MAX), i64::from(i32::MAX));
            return Err(undraft_core::Error::OutOfRange { arg: "windows", got, min: 0, max }.into());
        }
        let mut plan = self.spare.take().unwrap_or_default();
        plan.set(slots, windows, capture, self.layers.len());
        if capture == Capture::PerToken {
            for layer in &mut self.layers {
                layer.reserve_captured(slots.len(), self.max_window)?;
            }
        }
        let id = self.slots.open_round(slots);
        Ok(Round::new(self, plan, id))
    }

    /// Takes up a round that was [detached](Round::detach).
    ///
    /// # Errors
    /// [`Error::ForeignRound`].
    pub fn resume(&mut self, round: DetachedRound) -> Result<Round<'_>> {
        let (plan, id) = round.into_parts();
        if !self.slots.is_open(&plan.slots, id) || plan.num_layers() != self.layers.len() {
            return Err(Error::ForeignRound);
        }
        Ok(Round::new(self, plan, id))
    }

    /// Replays what is pending into the slots' states now instead of in the next round.
    ///
    /// # Errors
    /// A stale, busy or torn slot.
    pub fn settle(&mut self, slots: &[Slot]) -> Result<()> {
        for &slot in slots {
            self.slots.check(slot)?;
        }
        for &slot in slots {
            for layer in &mut self.layers {
                layer.settle(&self.device, slot.index(), self.max_window)?;
            }
        }
        Ok(())
    }

    fn settled(&mut self, layer: usize, slot: Slot) -> Result<&mut LayerStorage> {
        let num_layers = self.layers.len();
        if layer >= num_layers {
            return Err(Error::Layer { got: layer, num_layers });
        }
        self.slots.check(slot)?;
        let storage = &mut self.layers[layer];
        storage.settle(&self.device, slot.index(), self.max_window)?;
        Ok(storage)
    }

    /// A slot's recurrent state `[HV, V, K]` of a layer, settled.
    ///
    /// # Errors
    /// [`Error::Layer`], or a stale, busy or torn slot.
    pub fn recurrent_state(&mut self, layer: usize, slot: Slot) -> Result<&[f32]> {
        Ok(self.settled(layer, slot)?.recurrent_mut(slot.index()))
    }

    /// A slot's convolution state `[W - 1, C]` of a layer, oldest input first, settled.
    ///
    /// # Errors
    /// [`Error::Layer`], or a stale, busy or torn slot.
    pub fn conv_state(&mut self, layer: usize, slot: Slot) -> Result<&[f32]> {
        Ok(self.settled(layer, slot)?.conv_mut(slot.index()))
    }

    /// Copies a slot's recurrent state of a layer out, in the layout asked for.
    ///
    /// # Errors
    /// [`Error::Layer`], a stale, busy or torn slot, or a buffer of the wrong size.
    pub fn export_recurrent(&mut self, layer: usize, slot: Slot, layout: StateLayout, to: &mut [f32]) -> Result<()> {
        let storage = self.settled(layer, slot)?;
        let dims = storage.dims.gdn;
        let from = storage.recurrent_mut(slot.index());
        match layout {
            StateLayout::KeyMajor => state_to_key_major(&dims, from, to)?,
            StateLayout::ValueMajor => copy_state("to", &dims, from, to)?,
        }
        Ok(())
    }

    /// Overwrites a slot's recurrent state of a layer.
    ///
    /// # Errors
    /// [`Error::Layer`], a stale, busy or torn slot, or a buffer of the wrong size.
    pub fn import_recurrent(&mut self, layer: usize, slot: Slot, layout: StateLayout, from: &[f32]) -> Result<()> {
        let storage = self.settled(layer, slot)?;
        let dims = storage.dims.gdn;
        let to = storage.recurrent_mut(slot.index());
        match layout {
            StateLayout::KeyMajor => state_to_value_major(&dims, from, to)?,
            StateLayout::ValueMajor => copy_state("from", &dims, from, to)?,
        }
        Ok(())
    }
}

fn copy_state(arg: &'static str, dims: &GdnDims, from: &[f32], to: &mut [f32]) -> Result<()> {
    if from.len() != to.len() {
        let expected = undraft_core::NamedShape(vec![
            ("num_v_heads", dims.num_v_heads()),
            ("head_v_dim", dims.head_v_dim()),
            ("head_k_dim", dims.head_k_dim()),
        ]);
        let got = if arg == "from" { from.len() } else { to.len() };
        return Err(undraft_core::Error::Length { arg, expected, got }.into());
    }
    to.copy_from_slice(from);
    Ok(())
}
