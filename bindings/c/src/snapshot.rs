//! A slot's states outside of a pool.

use std::ffi::c_char;

use undraft::Snapshot;

use crate::pointer::{boxed, check_writable, free, object, path, write};
use crate::pool::{Pool, undraft_pool, undraft_slot, with_pool};
use crate::status::{guard, undraft_status};

/// A slot's states.
#[derive(Debug)]
pub struct undraft_snapshot(Snapshot);

/// Copies a slot's states out.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_snapshot_new(
    pool: *mut undraft_pool,
    slot: undraft_slot,
    snapshot: *mut *mut undraft_snapshot,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = |pool: &mut Pool| {
        check_writable("snapshot", snapshot)?;
        let from = pool.slot(slot)?;
        let made = pool.states.snapshot(from).map_err(|error| pool.failure(error))?;
        // SAFETY: `snapshot` by this function's contract.
        unsafe { write("snapshot", snapshot, boxed(undraft_snapshot(made))) }
    };
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, body) }
}

/// Frees a snapshot.
///
/// # Safety
/// `snapshot` is null or an object of this library that is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_snapshot_free(snapshot: *mut undraft_snapshot) {
    let body = || {
        // SAFETY: by this function's contract.
        unsafe { free(snapshot) };
        Ok(())
    };
    // SAFETY: no message is asked for.
    unsafe { guard(std::ptr::null_mut(), body) };
}

/// Overwrites a slot's states.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_snapshot_restore(
    snapshot: *const undraft_snapshot,
    pool: *mut undraft_pool,
    slot: undraft_slot,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = |pool: &mut Pool| {
        // SAFETY: by this function's contract.
        let snapshot = unsafe { object("snapshot", snapshot) }?;
        let to = pool.slot(slot)?;
        pool.states.restore(to, &snapshot.0).map_err(|error| pool.failure(error))
    };
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, body) }
}

/// Writes a snapshot to a file.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_snapshot_save(
    snapshot: *const undraft_snapshot,
    path: *const c_char,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = || {
        // SAFETY: by this function's contract.
        let (snapshot, path) = unsafe { (object("snapshot", snapshot)?, self::path("path", path)?) };
        Ok(snapshot.0.save(&path)?)
    };
    // SAFETY: `message` by this function's contract.
    unsafe { guard(message, body) }
}

/// Reads a snapshot from a file.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_snapshot_load(
    path: *const c_char,
    snapshot: *mut *mut undraft_snapshot,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = || {
        check_writable("snapshot", snapshot)?;
        // SAFETY: by this function's contract.
        let made = Snapshot::load(&unsafe { self::path("path", path) }?)?;
        // SAFETY: `snapshot` by this function's contract.
        unsafe { write("snapshot", snapshot, boxed(undraft_snapshot(made))) }
    };
    // SAFETY: `message` by this function's contract.
    unsafe { guard(message, body) }
}
