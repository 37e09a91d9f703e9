//! The states of all sequences and layers, in slots.

mod slots;
mod snapshot;
mod states;
mod storage;

use half::slice::HalfFloatSliceExt;
use undraft_core::{Capture, DType, Data, DataMut, GdnDims, StateLayout, state_to_key_major, state_to_value_major};

pub use slots::Slot;
pub(crate) use slots::{SlotTable, Status};
pub use snapshot::Snapshot;
pub(crate) use storage::LayerStorage;

use crate::error::{Error, Result};
use crate::round::{Mode, Plan, Round};
use crate::{DetachedRound, Device};

/// Sizes of one Gated DeltaNet layer of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerDims {
    /// Sizes.
    pub gdn: GdnDims,
    /// Taps of the convolution before it, `2..=8`.
    pub conv_width: usize,
}

impl LayerDims {
    /// Checks that a layer's sizes are those that a pool was made for.
    ///
    /// # Errors
    /// [`Error::LayerDims`] with the first size that differs.
    pub(crate) fn check_same(&self, layer: usize, pool: &LayerDims) -> Result<()> {
        let sizes = |dims: &LayerDims| {
            [
                ("num_k_heads", dims.gdn.num_k_heads()),
                ("num_v_heads", dims.gdn.num_v_heads()),
                ("head_k_dim", dims.gdn.head_k_dim()),
                ("head_v_dim", dims.gdn.head_v_dim()),
                ("decay factors of a head", dims.gdn.decay_dim()),
                ("conv_width", dims.conv_width),
            ]
        };
        match sizes(self).into_iter().zip(sizes(pool)).find(|(got, expected)| got != expected) {
            Some(((what, got), (_, expected))) => Err(Error::LayerDims { layer, what, got, expected }),
            None => Ok(()),
        }
    }
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
    /// Dtype of the recurrent states. A 16-bit state is rounded after every token, in every mode, and is half as large;
    /// convolution states and logs are f32 in either case.
    pub state_dtype: DType,
}

impl PoolConfig {
    /// A delta log and f32 states; change the fields that differ.
    pub fn new(layers: Vec<LayerDims>, num_slots: usize, max_window: usize) -> Self {
        Self { layers, num_slots, max_window, capture: Capture::DeltaLog, state_dtype: DType::F32 }
    }
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
    /// Log entries that a slot's pending tokens are, in order: `[num_slots, max_window]`. A chain's are 0, 1, ..
    pub(crate) paths: Vec<u32>,
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
        let PoolConfig { layers, num_slots, max_window, capture, state_dtype } = config;
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
        let mut paths = states::zeros("the paths of draft trees", 0, &[num_slots, max_window])?;
        for path in paths.chunks_exact_mut(max_window) {
            path.iter_mut().zip(0..).for_each(|(entry, n)| *entry = n);
        }
        let layers = layers.iter().map(|dims| LayerStorage::new(*dims, num_slots, max_window, capture, state_dtype));
        Ok(Self {
            device: device.clone(),
            layers: layers.collect::<Result<_>>()?,
            slots: SlotTable::new(num_slots),
            capture,
            max_window,
            paths,
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
        let n = self.max_window;
        self.paths.copy_within(slot.index() * n..(slot.index() + 1) * n, to.index() * n);
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
        self.begin_with(slots, windows, &[], Mode::Verify(self.capture))
    }

    /// Opens a draft tree on each slot: `parents[s][i]` is the position in the window of the token that token i follows, or
    /// -1 for the slot's committed state. Parents come before their children; several tokens may have the same one.
    ///
    /// [`Round::commit_path`] says which tokens stay.
    ///
    /// ```
    /// # use undraft::{Device, GdnDims, GdnLayer, GdnLayerParams, LayerDims, LayerInputs, PoolConfig, Rows, RowsMut, StatePool};
    /// # let dims = GdnDims::new(1, 1, 16, 16)?;
    /// # let layer = GdnLayer::new(GdnLayerParams::new(dims, 4, &vec![0.1; 4 * dims.conv_dim()], &[0.0], &[0.5]))?;
    /// # let layers = vec![LayerDims { gdn: dims, conv_width: 4 }];
    /// # let mut pool = StatePool::new(&Device::cpu(), PoolConfig::new(layers, 1, 4))?;
    /// # let (qkv, gate, mut out) = (vec![0.3; 4 * dims.conv_dim()], vec![0.1; 4], vec![0.0; 4 * dims.value_dim()]);
    /// # let inputs = LayerInputs { layer: &layer, mixed_qkv: Rows::new(&qkv[..], dims.conv_dim()), a: &gate, b: &gate };
    /// let slot = pool.alloc()?;
    /// // A token, two guesses of the one after it, and one that follows the second guess.
    /// let mut round = pool.begin_tree(&[slot], &[&[-1, 0, 0, 2]])?;
    /// round.verify(0, inputs, RowsMut::new(&mut out[..], dims.value_dim()))?;
    /// round.commit_path(&[&[0, 2, 3]])?; // the second guess was right, and so was the one after it
    /// # Ok::<(), undraft::Error>(())
    /// ```
    ///
    /// # Errors
    /// A stale, busy, torn or repeated slot, a window over `max_window`, or a parent that does not come before its child.
    pub fn begin_tree(&mut self, slots: &[Slot], parents: &[&[i32]]) -> Result<Round<'_>> {
        for (seq, parents) in parents.iter().enumerate() {
            for (position, &got) in parents.iter().enumerate() {
                if got < -1 || i64::from(got) >= position as i64 {
                    return Err(Error::Parent { seq, position, got });
                }
            }
        }
        let windows: Vec<usize> = parents.iter().map(|p| p.len()).collect();
        self.begin_with(slots, &windows, parents, Mode::Verify(self.capture))
    }

    /// Opens windows of any length that keep all their tokens: prefill, token by token and bit for bit as decoding.
    ///
    /// The states are overwritten. A round that is dropped after its first `verify` and before `commit` leaves its slots
    /// torn: [`StatePool::reset`] or [`StatePool::free`] them.
    ///
    /// # Errors
    /// A stale, busy, torn or repeated slot.
    pub fn begin_final(&mut self, slots: &[Slot], windows: &[usize]) -> Result<Round<'_>> {
        self.begin_with(slots, windows, &[], Mode::Final)
    }

    /// As [`StatePool::begin_final`], with `causal_conv1d_fn` and the matrix form `chunk_gated_delta_rule`: faster for
    /// prompts, close to decoding and not bit-equal to it. The result depends on where a prompt is cut into rounds, except
    /// at multiples of 64 tokens.
    ///
    /// # Errors
    /// A stale, busy, torn or repeated slot.
    pub fn begin_prefill(&mut self, slots: &[Slot], windows: &[usize]) -> Result<Round<'_>> {
        self.begin_with(slots, windows, &[], Mode::Prefill)
    }

    fn begin_with(&mut self, slots: &[Slot], windows: &[usize], parents: &[&[i32]], mode: Mode) -> Result<Round<'_>> {
        let capture = mode.capture();
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
        plan.set(slots, windows, parents, mode, self.layers.len());
        plan.set_paths(&self.paths, self.max_window);
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
        round.attach(self)
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
                layer.settle(&self.device, slot.index(), path(&self.paths, self.max_window, slot.index()))?;
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
        storage.settle(&self.device, slot.index(), path(&self.paths, self.max_window, slot.index()))?;
        Ok(storage)
    }

    /// A slot's recurrent state `[HV, V, K]` of a layer, settled, in the pool's `state_dtype`.
    ///
    /// # Errors
    /// [`Error::Layer`], or a stale, busy or torn slot.
    pub fn recurrent_state(&mut self, layer: usize, slot: Slot) -> Result<Data<'_>> {
        let storage = self.settled(layer, slot)?;
        Ok(storage.recurrent.data(storage.recurrent_range(slot.index())))
    }

    /// A slot's convolution state `[W - 1, C]` of a layer, oldest input first, settled.
    ///
    /// # Errors
    /// [`Error::Layer`], or a stale, busy or torn slot.
    pub fn conv_state(&mut self, layer: usize, slot: Slot) -> Result<&[f32]> {
        Ok(self.settled(layer, slot)?.conv_mut(slot.index()))
    }

    /// Copies a slot's recurrent state of a layer out as f32, in the layout asked for.
    ///
    /// # Errors
    /// [`Error::Layer`], a stale, busy or torn slot, or a buffer of the wrong size.
    pub fn export_recurrent(&mut self, layer: usize, slot: Slot, layout: StateLayout, to: &mut [f32]) -> Result<()> {
        let storage = self.settled(layer, slot)?;
        let dims = storage.dims.gdn;
        let data = storage.recurrent.data(storage.recurrent_range(slot.index()));
        let widened;
        let from = match data {
            Data::F32(state) => state,
            data => {
                widened = data.to_f32();
                &widened[..]
            }
        };
        match layout {
            StateLayout::KeyMajor => state_to_key_major(&dims, from, to)?,
            StateLayout::ValueMajor => copy_state("to", &dims, from, to)?,
        }
        Ok(())
    }

    /// Overwrites a slot's recurrent state of a layer; a 16-bit state rounds to nearest even.
    ///
    /// # Errors
    /// [`Error::Layer`], a stale, busy or torn slot, or a buffer of the wrong size.
    pub fn import_recurrent(&mut self, layer: usize, slot: Slot, layout: StateLayout, from: &[f32]) -> Result<()> {
        let storage = self.settled(layer, slot)?;
        let dims = storage.dims.gdn;
        let mut values = vec![0.0; dims.state_len()];
        match layout {
            StateLayout::KeyMajor => state_to_value_major(&dims, from, &mut values)?,
            StateLayout::ValueMajor => copy_state("from", &dims, from, &mut values)?,
        }
        let range = storage.recurrent_range(slot.index());
        match storage.recurrent.data_mut(range) {
            DataMut::F32(to) => to.copy_from_slice(&values),
            DataMut::Bf16(to) => to.convert_from_f32_slice(&values),
            DataMut::F16(to) => to.convert_from_f32_slice(&values),
        }
        Ok(())
    }

    /// Overwrites a slot's convolution state of a layer, `[W - 1, C]`, oldest input first.
    ///
    /// # Errors
    /// [`Error::Layer`], a stale, busy or torn slot, or a buffer of the wrong size.
    pub fn import_conv(&mut self, layer: usize, slot: Slot, from: &[f32]) -> Result<()> {
        let storage = self.settled(layer, slot)?;
        let dims = storage.conv;
        let to = storage.conv_mut(slot.index());
        if from.len() != to.len() {
            let axes = vec![("conv_width - 1", dims.width() - 1), ("channels", dims.channels())];
            let (expected, got) = (undraft_core::NamedShape(axes), from.len());
            return Err(undraft_core::Error::Length { arg: "from", expected, got }.into());
        }
        to.copy_from_slice(from);
        Ok(())
    }
}

/// A slot's row of the paths.
pub(crate) fn path(paths: &[u32], max_window: usize, slot: usize) -> &[u32] {
    &paths[slot * max_window..(slot + 1) * max_window]
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
