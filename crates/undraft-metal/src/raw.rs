//! Launches into a compute encoder of the caller, on the caller's buffers and offsets.
//!
//! A launch sets pipeline, buffers, parameters and threadgroup memory, dispatches, and returns. It allocates nothing on the
//! device, ends no encoder and waits for nothing; everything that changes from round to round (lengths, slots, counts of kept
//! tokens, paths) is read on the device when the kernel runs. A kernel is compiled when it is launched for the first time;
//! [`Launcher::prepare`] does so for all.
//!
//! On Apple's systems `Slice::of` and `EncoderHandle::of` take the caller's `MTLBuffer` and `MTLComputeCommandEncoder`. An encoder
//! with the dispatch type *serial* (the default) orders launches; in a *concurrent* one the caller sets barriers between them.
//!
//! # Contract
//!
//! Every launch is `unsafe`. The caller promises that
//!
//! 1. the encoder is open and of the [`Launcher`]'s device, and so are the buffers;
//! 2. every slice is [`Slice::NONE`] where the field's documentation allows it, and otherwise the documented shape and element
//!    type lie in the buffer behind its offset, which is a multiple of the element's size; of states and captured states a
//!    multiple of 16 bytes;
//! 3. until the work is done nothing else writes the memory that a kernel reads, and nothing else touches what it writes;
//! 4. outputs overlap neither each other nor the inputs; what is `in, out` is one buffer; a window's log is not the log
//!    that its pending entries lie in (two buffers, or two sets of slots of one buffer);
//! 5. `cu_seqlens` rises from 0; `state_indices` are -1 or slots, each once; counts are at most the capacity that is
//!    given; paths rise; parents come before their children, and a window with another parent than the token before has a
//!    capture that keeps the state. These are the facts that `check` of [`undraft_core::ops`] lists.
//!
//! Strides count elements, from one token (or slot, or layer) to the next. Offsets in the kernels are 64 bits wide.
//!
//! One entry of a delta log is one token: `k` `[H, K]`, `decay` `[HV]` (or `[HV, K]`), `delta` `[HV, V]`, f32. The replay of
//! entries rounds exactly as on the CPU.
//!
//! [`Launcher::write_words`] and [`Launcher::clear_words`] write memory in their turn among launches, which the host could not do
//! without waiting.

use std::mem::MaybeUninit;
use std::sync::{Arc, OnceLock};

pub use undraft_core::words::{Captured, DecayForm, Elements, Switch};

use crate::driver::{Dispatch, Driver, Pipeline};
pub use crate::driver::{EncoderHandle, Slice};
use crate::error::{MetalError, Result};
pub use crate::ops::causal_conv1d_fn::ConvFnParams;
pub use crate::ops::causal_conv1d_update::ConvUpdateParams;
pub use crate::ops::commit_states::CommitParams;
pub use crate::ops::fused_gdn_gating::GatingParams;
pub use crate::ops::fused_recurrent_gated_delta_rule::RecurrentParams;
pub use crate::ops::gated_delta_net_decode::DecodeParams;
pub use crate::ops::rms_norm_gated::NormParams;
use crate::select::{Kernel, NUM_KERNELS};

/// Encodes launches for one device. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Launcher {
    driver: Arc<dyn Driver>,
    /// In the order of [`Kernel::index`], as they come to be used.
    pipelines: Arc<[OnceLock<Pipeline>; NUM_KERNELS]>,
}

/// A launch: kernel, its buffers by slot, and how its threads are arranged.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) op: &'static str,
    pub(crate) kernel: Kernel,
    pub(crate) buffers: &'a [Slice],
    pub(crate) params_slot: usize,
    pub(crate) threadgroups: [u64; 3],
    pub(crate) threads: [u32; 3],
    pub(crate) threadgroup_bytes: usize,
}

/// A bit for each slot that has a buffer.
pub(crate) fn present(buffers: &[Slice]) -> u32 {
    buffers.iter().enumerate().fold(0, |bits, (slot, buffer)| bits | u32::from(!buffer.is_none()) << slot)
}

/// A size of a launch: at least 0, or where a kernel divides by it at least 1.
pub(crate) fn check_sizes(op: &'static str, least: i64, sizes: &[(&'static str, i64)]) -> Result<()> {
    match sizes.iter().find(|(_, got)| *got < least) {
        None => Ok(()),
        Some(&(arg, got)) => {
            let expected = if least == 0 { "a number, at least 0" } else { "a number, at least 1" };
            Err(MetalError::Argument { op, arg, got, expected })
        }
    }
}

impl Launcher {
    /// For a device. Nothing is compiled yet.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver, pipelines: Arc::new([const { OnceLock::new() }; NUM_KERNELS]) }
    }
    /// Compiles all kernels, so that no launch has to.
    ///
    /// # Errors
    /// [`MetalError::Compile`], [`MetalError::Pipeline`].
    pub fn prepare(&self) -> Result<()> {
        Kernel::all().into_iter().try_for_each(|kernel| self.pipeline(kernel).map(|_| ()))
    }
    /// The driver of the device.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    fn pipeline(&self, kernel: Kernel) -> Result<Pipeline> {
        let place = &self.pipelines[kernel.index()];
        if let Some(&pipeline) = place.get() {
            return Ok(pipeline);
        }
        let pipeline = self.driver.pipeline(kernel.library(), &kernel.name())?;
        // Two threads may have asked for it; the driver gives both the same.
        Ok(*place.get_or_init(|| pipeline))
    }

    /// Puts a kernel into the encoder; nothing where there are no threadgroups.
    ///
    /// # Safety
    /// `params` is the kernel's parameter struct or array, and the module's contract holds for it and the buffers.
    pub(crate) unsafe fn launch<P: ?Sized>(&self, encoder: EncoderHandle, call: Call<'_>, params: &P) -> Result<()> {
        let Call { op, kernel, buffers, params_slot, threadgroups, threads, threadgroup_bytes } = call;
        if threadgroups.contains(&0) {
            return Ok(());
        }
        let too_much = |what, got, most| Err(MetalError::Launch { op, what, got, most });
        let mut groups = [0; 3];
        for (axis, (to, &from)) in groups.iter_mut().zip(&threadgroups).enumerate() {
            // Positions of threads are 32 bits wide.
            let most = u64::from(u32::MAX / threads[axis]);
            match u32::try_from(from) {
                Ok(n) if u64::from(n) <= most => *to = n,
                _ => return too_much("threadgroups along an axis", from, most),
            }
        }
        let most = self.driver.attributes().max_threadgroup_memory;
        if threadgroup_bytes > most {
            return too_much("bytes of threadgroup memory", threadgroup_bytes as u64, most as u64);
        }
        let bytes: *const MaybeUninit<u8> = std::ptr::from_ref(params).cast();
        let dispatch = Dispatch {
            pipeline: self.pipeline(kernel)?,
            buffers,
            params_slot,
            // SAFETY: the bytes of a borrowed value; those of its padding may be uninitialised.
            params: unsafe { std::slice::from_raw_parts(bytes, size_of_val(params)) },
            threadgroup_bytes,
            threadgroups: groups,
            threads,
        };
        // SAFETY: the pipeline is of this driver; the caller vouches for the rest.
        unsafe { self.driver.dispatch(encoder, &dispatch) }
    }
}
