//! Rounds by number: detached between two calls, so that other slots of the pool may be used meanwhile.

use std::ffi::c_char;

use undraft::{DecayShape, LayerInputs, Slot};

use crate::choices::{RoundMode, round_mode, undraft_round_mode};
use crate::layer::undraft_layer;
use crate::pointer::{check_reserved, check_writable, list, object, read_sized, sized, write};
use crate::pool::{OpenRound, Pool, undraft_pool, undraft_round, undraft_slot, with_pool};
use crate::status::{Failure, Result, undraft_status};
use crate::tensor::{F32, Tensors, undraft_tensor};

/// What a round is opened with.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_round_params {
    /// Bytes of the struct.
    pub size: usize,
    /// How the round runs.
    pub mode: undraft_round_mode,
    /// 0.
    pub reserved: u32,
    /// Sequences.
    pub num_seqs: usize,
    /// `[num_seqs]`.
    pub slots: *const undraft_slot,
    /// `[num_seqs]`.
    pub windows: *const u32,
    /// `[sum of windows]`, or null.
    pub parents: *const i32,
}
sized!(undraft_round_params);

/// What one layer reads and writes in a round.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_verify_args {
    /// Bytes of the struct.
    pub size: usize,
    /// Parameters.
    pub layer: *const undraft_layer,
    /// `[N, C]`.
    pub mixed_qkv: undraft_tensor,
    /// `[N, HV]` or `[N, HV, K]`.
    pub a: undraft_tensor,
    /// `[N, HV]`.
    pub b: undraft_tensor,
    /// `[N, HV, V]`.
    pub out: undraft_tensor,
}
sized!(undraft_verify_args);

/// Opens a round.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_round_begin(
    pool: *mut undraft_pool,
    params: *const undraft_round_params,
    round: *mut undraft_round,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = |pool: &mut Pool| {
        check_writable("round", round)?;
        // SAFETY: by this function's contract.
        let params = unsafe { read_sized("params", params) }?;
        check_reserved("undraft_round_params", &[params.reserved])?;
        let mode = round_mode("mode", params.mode)?;
        // SAFETY: as many entries as the struct says, by this function's contract.
        let (numbers, windows) = unsafe {
            (list("slots", params.slots, params.num_seqs)?, list("windows", params.windows, params.num_seqs)?)
        };
        let slots = numbers.iter().map(|&number| pool.slot_or_pad(number)).collect::<Result<Vec<Slot>>>()?;
        let windows: Vec<usize> = windows.iter().map(|&n| n as usize).collect();
        let num_tokens = windows.iter().fold(0usize, |sum, &n| sum.saturating_add(n));
        let begun = if params.parents.is_null() {
            match mode {
                RoundMode::Verify => pool.states.begin(&slots, &windows),
                RoundMode::Final => pool.states.begin_final(&slots, &windows),
                RoundMode::Prefill => pool.states.begin_prefill(&slots, &windows),
            }
        } else {
            if mode != RoundMode::Verify {
                return Err(Failure::invalid(
                    "`parents` is given, expected NULL: a draft tree needs mode UNDRAFT_VERIFY",
                ));
            }
            // SAFETY: an entry a token, by this function's contract.
            let parents = unsafe { list("parents", params.parents, num_tokens) }?;
            pool.states.begin_tree(&slots, &split(parents, &windows))
        };
        // A round that was begun is detached: no capture of a pool made here forbids it.
        let detached = begun.and_then(|round| round.detach()).map_err(|error| pool.failure(error))?;
        let open = OpenRound { round: detached, slots: numbers.to_vec(), num_tokens };
        // SAFETY: `round` by this function's contract.
        unsafe { write("round", round, pool.add_round(open)) }
    };
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, body) }
}

/// A list of all sequences as one of each, of these lengths.
fn split<'a, T>(mut all: &'a [T], lens: &[usize]) -> Vec<&'a [T]> {
    let part = |&len: &usize| {
        let (first, rest) = all.split_at(len);
        all = rest;
        first
    };
    lens.iter().map(part).collect()
}

/// Runs one layer over the windows.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_round_verify(
    pool: *mut undraft_pool,
    round: undraft_round,
    layer: usize,
    args: *const undraft_verify_args,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = |pool: &mut Pool| {
        // SAFETY: by this function's contract, as the tensors of the struct.
        let (args, mut tensors) = unsafe { (read_sized("args", args)?, Tensors::new()) };
        // SAFETY: by this function's contract.
        let parameters = &unsafe { object("layer", args.layer) }?.0;
        let open = pool.take_round(round)?;
        let dims = parameters.dims();
        let (n, hv) = (("num_tokens", open.num_tokens), ("num_v_heads", dims.num_v_heads()));
        let of_decay = [n, hv, ("head_k_dim", dims.head_k_dim())];
        let num_axes = if dims.decay_shape() == DecayShape::PerHead { 2 } else { 3 };
        let mut views = || {
            let qkv = tensors.rows("mixed_qkv", &args.mixed_qkv, &[n, ("channels", dims.conv_dim())])?;
            let a = tensors.read("a", &args.a, F32, &of_decay[..num_axes])?;
            let b = tensors.read("b", &args.b, F32, &[n, hv])?;
            let out = tensors.rows_mut("out", &args.out, &[n, hv, ("head_v_dim", dims.head_v_dim())])?;
            Ok((qkv, a, b, out))
        };
        let views = views().and_then(|views| Ok((views, tensors.disjoint()?)));
        let (num_tokens, slots) = (open.num_tokens, open.slots);
        let mut resumed = pool.states.resume(open.round)?;
        let outcome = views.and_then(|((qkv, a, b, out), shown)| {
            let (mixed_qkv, a, b) = (qkv.rows(&shown), a.f32s(&shown), b.f32s(&shown));
            let inputs = LayerInputs { layer: parameters, mixed_qkv, a, b };
            Ok(resumed.verify(layer, inputs, out.rows_mut(&shown))?)
        });
        let detached = resumed.detach()?;
        pool.rounds.insert(round, OpenRound { round: detached, slots, num_tokens });
        outcome
    };
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, body) }
}

/// Keeps the first tokens of each window.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_round_commit(
    pool: *mut undraft_pool,
    round: undraft_round,
    num_kept: *const u32,
    num_seqs: usize,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = |pool: &mut Pool| {
        let open = pool.take_round(round)?;
        // Dropped by an error, and so rolled back.
        let resumed = pool.states.resume(open.round)?;
        // SAFETY: by this function's contract.
        let num_kept = unsafe { list("num_kept", num_kept, num_seqs) }?;
        let num_kept: Vec<usize> = num_kept.iter().map(|&n| n as usize).collect();
        Ok(resumed.commit(&num_kept)?)
    };
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, body) }
}

/// Keeps a path through each draft tree.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_round_commit_path(
    pool: *mut undraft_pool,
    round: undraft_round,
    paths: *const u32,
    num_kept: *const u32,
    num_seqs: usize,
    message: *mut *mut c_char,
) -> undraft_status {
    let body = |pool: &mut Pool| {
        let open = pool.take_round(round)?;
        // Dropped by an error, and so rolled back.
        let resumed = pool.states.resume(open.round)?;
        // SAFETY: by this function's contract.
        let num_kept = unsafe { list("num_kept", num_kept, num_seqs) }?;
        let num_kept: Vec<usize> = num_kept.iter().map(|&n| n as usize).collect();
        let total = num_kept.iter().fold(0usize, |sum, &n| sum.saturating_add(n));
        if total > open.num_tokens {
            let text =
                format!("`num_kept` adds up to {total}, expected at most {}, the round's tokens", open.num_tokens);
            return Err(Failure::invalid(text));
        }
        // SAFETY: as many entries as `num_kept` adds up to, by this function's contract.
        let paths = unsafe { list("paths", paths, total) }?;
        let paths: Vec<usize> = paths.iter().map(|&position| position as usize).collect();
        Ok(resumed.commit_path(&split(&paths, &num_kept))?)
    };
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, body) }
}

/// Keeps nothing.
///
/// # Safety
/// Pointers are null or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_round_rollback(
    pool: *mut undraft_pool,
    round: undraft_round,
    message: *mut *mut c_char,
) -> undraft_status {
    // SAFETY: `pool` and `message` by this function's contract.
    unsafe { with_pool(pool, message, |pool| pool.rollback(round)) }
}
