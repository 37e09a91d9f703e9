//! Pools: the states, and which numbers of slots and rounds are alive.

use std::collections::HashMap;
use std::ffi::c_char;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use undraft::{DType, DetachedRound, Device, Error, LayerDims, PoolConfig, Slot, StatePool};

use crate::choices::{float_dtype, undraft_dtype};
use crate::device::undraft_device;
use crate::pointer::{
    boxed, check_reserved, check_writable, free, list, object, read_sized, sized, write, write_sized,
};
use crate::sizes::undraft_gdn_dims;
use crate::status::{Failure, Result, UNDRAFT_BUSY, UNDRAFT_NOT_IN_USE, UNDRAFT_POISONED, guard, undraft_status};

/// A sequence's place in a pool.
pub type undraft_slot = i64;
/// A padding sequence.
pub const UNDRAFT_PAD_SLOT: undraft_slot = -1;
/// An undecided window of a pool.
pub type undraft_round = i64;

/// What a pool is made for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_pool_config {
    /// Bytes of the struct.
    pub size: usize,
    /// `[num_layers]`.
    pub layers: *const undraft_gdn_dims,
    /// Layers.
    pub num_layers: usize,
    /// Sequences at once.
    pub num_slots: u32,
    /// Tokens of a window that can be taken back.
    pub max_window: u32,
    /// Dtype of the recurrent states.
    pub state_dtype: undraft_dtype,
    /// 0.
    pub reserved: u32,
}
sized!(undraft_pool_config);

/// What a pool holds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_pool_info {
    /// Bytes of the struct.
    pub size: usize,
    /// Layers.
    pub num_layers: usize,
    /// Slots, used or free.
    pub num_slots: usize,
    /// Free slots.
    pub num_free_slots: usize,
    /// Undecided rounds.
    pub num_open_rounds: usize,
    /// Tokens of a window that can be taken back.
    pub max_window: usize,
    /// Recurrent states of a slot.
    pub state_bytes: usize,
    /// Convolution states of a slot.
    pub conv_state_bytes: usize,
    /// Delta log of a slot.
    pub log_bytes: usize,
    /// Convolution log of a slot.
    pub conv_log_bytes: usize,
    /// These four.
    pub slot_bytes: usize,
    /// Of all slots.
    pub total_bytes: usize,
}
sized!(undraft_pool_info);

/// A pool. A panic while it is locked poisons it.
#[derive(Debug)]
pub struct undraft_pool(Mutex<Pool>);

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) states: StatePool,
    layers: Vec<LayerDims>,
    pub(crate) state_dtype: DType,
    slots: HashMap<undraft_slot, Slot>,
    pub(crate) rounds: HashMap<undraft_round, OpenRound>,
}

/// An undecided round between two calls.
#[derive(Debug)]
pub(crate) struct OpenRound {
    pub(crate) round: DetachedRound,
    pub(crate) slots: Vec<undraft_slot>,
    pub(crate) num_tokens: usize,
}

/// Numbers of slots and rounds, from 1.
static NEXT: AtomicI64 = AtomicI64::new(1);

impl Pool {
    fn new(device: &Device, config: PoolConfig) -> Result<Self> {
        let (layers, state_dtype) = (config.layers.clone(), config.state_dtype);
        let states = StatePool::new(device, config)?;
        Ok(Self { states, layers, state_dtype, slots: HashMap::new(), rounds: HashMap::new() })
    }

    /// Sizes of a layer.
    pub(crate) fn layer(&self, layer: usize) -> Result<LayerDims> {
        let num_layers = self.layers.len();
        Ok(*self.layers.get(layer).ok_or(Error::Layer { got: layer, num_layers })?)
    }

    /// The pool's slot of a number.
    pub(crate) fn slot(&self, number: undraft_slot) -> Result<Slot> {
        self.slots.get(&number).copied().ok_or_else(|| {
            let text = format!("slot {number} is not in use: it was freed, or belongs to another pool");
            Failure::new(UNDRAFT_NOT_IN_USE, text)
        })
    }
    /// As [`Pool::slot`], or padding.
    pub(crate) fn slot_or_pad(&self, number: undraft_slot) -> Result<Slot> {
        if number == UNDRAFT_PAD_SLOT { Ok(Slot::PAD) } else { self.slot(number) }
    }
    /// A number for a new slot.
    pub(crate) fn add_slot(&mut self, slot: Slot) -> undraft_slot {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.slots.insert(number, slot);
        number
    }
    pub(crate) fn remove_slot(&mut self, number: undraft_slot) {
        self.slots.remove(&number);
    }

    /// A number for a new round.
    pub(crate) fn add_round(&mut self, round: OpenRound) -> undraft_round {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.rounds.insert(number, round);
        number
    }
    /// Takes a round out, so that it is over unless it is put back.
    pub(crate) fn take_round(&mut self, number: undraft_round) -> Result<OpenRound> {
        self.rounds.remove(&number).ok_or_else(|| {
            let text = format!("round {number} is over, or belongs to another pool");
            Failure::new(UNDRAFT_NOT_IN_USE, text)
        })
    }
    pub(crate) fn rollback(&mut self, number: undraft_round) -> Result<()> {
        let open = self.take_round(number)?;
        self.states.resume(open.round)?.rollback();
        Ok(())
    }

    /// An error of the pool, with slots by their numbers.
    pub(crate) fn failure(&self, error: Error) -> Failure {
        let slot = match error {
            Error::SlotFreed { slot } | Error::SlotBusy { slot } | Error::SlotTorn { slot } => Some(slot),
            Error::DuplicateSlot { slot, .. } => Some(slot),
            _ => None,
        };
        let number = slot.and_then(|slot| self.slots.iter().find(|&(_, &s)| s == slot));
        let mut failure = Failure::from(error);
        if let Some((number, slot)) = number {
            failure.text = failure.text.replacen(&format!("slot {slot}"), &format!("slot {number}"), 1);
        }
        failure
    }
}

/// Runs a call on a pool while others wait.
///
/// # Safety
/// `pool` is null or an object of this library.
pub(crate) unsafe fn with_pool(
    pool: *const undraft_pool,
    message: *mut *mut c_char,
    body: impl FnOnce(&mut Pool) -> Result<()>,
) -> undraft_status {
    let body = || {
        // SAFETY: by this function's contract.
        let pool = unsafe { object("pool", pool) }?;
        body(&mut *pool.0.lock().map_err(|_| poisoned())?)
    };
    // SAFETY: `message` by this function's contract.
    unsafe { guard(message, body) }
}

fn poisoned() -> Failure {
    Failure::new(UNDRAFT_POISONED, "an earlier call on this pool panicked; it can only be freed")
}

/// Makes a pool.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_pool_new(
    device: *const undraft_device,
    config: *const undraft_pool_config,
    pool: *mut *mut undraft_pool,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = || {
        check_writable("pool", pool)?;
        // SAFETY: by this function's contract.
        let (device, config) = unsafe { (object("device", device)?, read_sized("config", config)?) };
        check_reserved("undraft_pool_config", &[config.reserved])?;
        // SAFETY: as many structs as the config says, by this function's contract.
        let layers = unsafe { list("layers", config.layers, config.num_layers) }?;
        let layers = layers.iter().map(undraft_gdn_dims::layer).collect::<Result<_>>()?;
        let config = PoolConfig {
            state_dtype: float_dtype("state_dtype", config.state_dtype)?,
            ..PoolConfig::new(layers, config.num_slots as usize, config.max_window as usize)
        };
        let made = Pool::new(&device.device, config)?;
        // SAFETY: `pool` by this function's contract.
        unsafe { write("pool", pool, boxed(undraft_pool(Mutex::new(made)))) }
    };
    // SAFETY: `message` by this function's contract.
    unsafe { guard(message, body) }
}

/// Frees a pool.
///
/// # Safety
/// `pool` is null or an object of this library that is not used after a success.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_pool_free(pool: *mut undraft_pool, message: *mut *mut c_char) -> undraft_status {
    let body = || {
        if pool.is_null() {
            return Ok(());
        }
        // SAFETY: by this function's contract.
        let num_open = unsafe { object("pool", pool) }?.0.lock().map_or(0, |pool| pool.rounds.len());
        if num_open > 0 {
            let text =
                format!("the pool has {num_open} undecided rounds, expected none; commit them or roll them back");
            return Err(Failure::new(UNDRAFT_BUSY, text));
        }
        // SAFETY: by this function's contract; no other call is running.
        unsafe { free(pool) };
        Ok(())
    };
    // SAFETY: `message` by this function's contract.
    unsafe { guard(message, body) }
}

/// Describes a pool.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_pool_get_info(
    pool: *const undraft_pool,
    info: *mut undraft_pool_info,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = |pool: &mut Pool| {
        let (states, memory) = (&pool.states, pool.states.memory_per_slot());
        let values = undraft_pool_info {
            size: size_of::<undraft_pool_info>(),
            num_layers: states.num_layers(),
            num_slots: states.num_slots(),
            num_free_slots: states.num_free_slots(),
            num_open_rounds: pool.rounds.len(),
            max_window: states.max_window(),
            state_bytes: memory.recurrent_state,
            conv_state_bytes: memory.conv_state,
            log_bytes: memory.delta_log,
            conv_log_bytes: memory.conv_log,
            slot_bytes: memory.total(),
            total_bytes: memory.total() * states.num_slots(),
        };
        // SAFETY: a struct of as many bytes as it says, by this function's contract.
        unsafe { write_sized("info", info, values) }
    };
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, body) }
}

/// Rolls all undecided rounds back.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_pool_rollback_all(
    pool: *mut undraft_pool,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = |pool: &mut Pool| {
        let numbers: Vec<_> = pool.rounds.keys().copied().collect();
        numbers.into_iter().try_for_each(|number| pool.rollback(number))
    };
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, body) }
}

#[cfg(test)]
mod tests {
    use undraft::GdnDims;

    use super::*;
    use crate::slots::undraft_slot_alloc;
    use crate::status::{UNDRAFT_INTERNAL, UNDRAFT_OK};

    #[test]
    fn a_panic_poisons_its_pool_and_no_other() {
        let gdn = GdnDims::new(1, 1, 8, 8).unwrap();
        let make = || {
            let config = PoolConfig::new(vec![LayerDims { gdn, conv_width: 4 }], 1, 2);
            boxed(undraft_pool(Mutex::new(Pool::new(&Device::cpu(), config).unwrap())))
        };
        let (broken, whole) = (make(), make());
        let null = std::ptr::null_mut();
        let mut slot = 0;
        // SAFETY: pools of this library, freed once; no message is asked for.
        unsafe {
            assert_eq!(with_pool(broken, null, |_| panic!("half way")), UNDRAFT_INTERNAL);
            assert_eq!(undraft_slot_alloc(broken, &raw mut slot, null), UNDRAFT_POISONED);
            assert_eq!((slot, undraft_slot_alloc(whole, &raw mut slot, null)), (0, UNDRAFT_OK));
            assert_eq!(undraft_pool_free(broken, null), UNDRAFT_OK);
            assert_eq!(undraft_pool_free(whole, null), UNDRAFT_OK);
        }
    }
}
