//! Replay of a delta log.

use std::ffi::c_char;

use undraft::ops::CommitStatesArgs;

use super::{run, state_axes, undraft_delta_log};
use crate::choices::{head_map, undraft_head_map};
use crate::device::undraft_device;
use crate::pointer::{check_reserved, sized};
use crate::sizes::undraft_gdn_dims;
use crate::status::undraft_status;
use crate::tensor::{FLOAT, I32, U32, u32s_or_empty, undraft_tensor};

/// Arguments of [`undraft_commit_states`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct undraft_commit_states_args {
    /// Bytes of the struct.
    pub size: usize,
    /// Sizes.
    pub dims: undraft_gdn_dims,
    /// As in the call that wrote the log.
    pub head_map: undraft_head_map,
    /// 0.
    pub reserved: u32,
    /// `[num_slots, HV, V, K]`.
    pub state: undraft_tensor,
    /// The log.
    pub log: undraft_delta_log,
    /// `[num_seqs]`.
    pub state_indices: undraft_tensor,
    /// `[num_seqs]`.
    pub num_kept: undraft_tensor,
    /// `[num_seqs, max_tokens]`, or absent.
    pub path: undraft_tensor,
}
sized!(undraft_commit_states_args);

/// Replay of a delta log.
///
/// # Safety
/// Pointers are null or lead to what the header says, as do the tensors of the struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn undraft_commit_states(
    device: *const undraft_device,
    args: *const undraft_commit_states_args,
    message: *mut *mut c_char,
) -> undraft_status {
    // SAFETY: the same contract.
    unsafe {
        run(device, args, message, |device, args, mut tensors| {
            check_reserved("undraft_commit_states_args", &[args.reserved])?;
            let dims = args.dims.gdn()?;
            let head_map = head_map("head_map", args.head_map)?;
            let num_slots = args.state.axis(0);
            let (seqs, tokens) = (("num_seqs", args.state_indices.axis(0)), ("max_tokens", args.log.max_tokens()));
            let state = tensors.write("state", &args.state, FLOAT, &state_axes(&dims, ("num_slots", num_slots)))?;
            let log = args.log.views(&mut tensors, &dims, num_slots)?;
            let state_indices = tensors.read("state_indices", &args.state_indices, I32, &[seqs])?;
            let num_kept = tensors.read("num_kept", &args.num_kept, U32, &[seqs])?;
            let path = tensors.optional("path", &args.path, U32, &[seqs, tokens])?;
            let shown = tensors.disjoint()?;
            let args = CommitStatesArgs {
                dims,
                head_map,
                num_slots,
                state: state.data_mut(&shown),
                log: log.log(&shown),
                state_indices: state_indices.i32s(&shown),
                num_kept: num_kept.u32s(&shown),
                path: u32s_or_empty(&path, &shown),
            };
            Ok(device.device.backend().commit_states(args.check()?)?)
        })
    }
}
