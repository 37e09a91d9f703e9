//! Slots: given out, given back, copied, saved and loaded.

use std::ffi::c_char;

use crate::pointer::{check_writable, list, path, write};
use crate::pool::{Pool, undraft_pool, undraft_slot, with_pool};
use crate::status::{Result, undraft_status};

/// Gives a slot out.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_slot_alloc(
    pool: *mut undraft_pool,
    slot: *mut undraft_slot,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = |pool: &mut Pool| {
        check_writable("slot", slot)?;
        let made = pool.states.alloc()?;
        // SAFETY: `slot` by this function's contract.
        unsafe { write("slot", slot, pool.add_slot(made)) }
    };
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, body) }
}

/// Takes a slot back.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_slot_free(
    pool: *mut undraft_pool,
    slot: undraft_slot,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = |pool: &mut Pool| {
        let freed = pool.slot(slot)?;
        pool.states.free(freed).map_err(|error| pool.failure(error))?;
        pool.remove_slot(slot);
        Ok(())
    };
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, body) }
}

/// Sets a slot to zero.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_slot_reset(
    pool: *mut undraft_pool,
    slot: undraft_slot,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = |pool: &mut Pool| {
        let reset = pool.slot(slot)?;
        // A slot stands in one undecided round at most.
        let round = pool.rounds.iter().find(|(_, open)| open.slots.contains(&slot)).map(|(&number, _)| number);
        if let Some(number) = round {
            pool.rollback(number)?;
        }
        pool.states.reset(reset).map_err(|error| pool.failure(error))
    };
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, body) }
}

/// Copies a slot.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_slot_fork(
    pool: *mut undraft_pool,
    slot: undraft_slot,
    copy: *mut undraft_slot,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = |pool: &mut Pool| {
        check_writable("copy", copy)?;
        let from = pool.slot(slot)?;
        let made = pool.states.fork(from).map_err(|error| pool.failure(error))?;
        // SAFETY: `copy` by this function's contract.
        unsafe { write("copy", copy, pool.add_slot(made)) }
    };
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, body) }
}

/// Replays what was committed.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_slots_settle(
    pool: *mut undraft_pool,
    slots: *const undraft_slot,
    num_slots: usize,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = |pool: &mut Pool| {
        // SAFETY: by this function's contract.
        let slots = unsafe { list("slots", slots, num_slots) }?;
        let slots = slots.iter().map(|&number| pool.slot(number)).collect::<Result<Vec<_>>>()?;
        pool.states.settle(&slots).map_err(|error| pool.failure(error))
    };
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, body) }
}

/// Saves a slot.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_slot_save(
    pool: *mut undraft_pool,
    slot: undraft_slot,
    path: *const c_char,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = |pool: &mut Pool| {
        // SAFETY: by this function's contract.
        let path = unsafe { self::path("path", path) }?;
        let saved = pool.slot(slot)?;
        pool.states.save(saved, &path).map_err(|error| pool.failure(error))
    };
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, body) }
}

/// Loads a slot.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_slot_load(
    pool: *mut undraft_pool,
    path: *const c_char,
    slot: *mut undraft_slot,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = |pool: &mut Pool| {
        check_writable("slot", slot)?;
        // SAFETY: by this function's contract.
        let path = unsafe { self::path("path", path) }?;
        let made = pool.states.load(&path)?;
        // SAFETY: `slot` by this function's contract.
        unsafe { write("slot", slot, pool.add_slot(made)) }
    };
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, body) }
}
