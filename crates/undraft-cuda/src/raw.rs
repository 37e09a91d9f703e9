//! Launches on device pointers and a stream of the caller.
//!
//! A launch puts one kernel on the stream and returns. It allocates nothing and does not synchronise, so that it can be
//! captured in a CUDA graph; everything that changes from round to round (lengths, slots, counts of kept tokens, paths)
//! is read on the device when the kernel runs.
//!
//! # Contract
//!
//! Every launch is `unsafe`. The caller promises that, when the kernel runs:
//!
//! 1. the stream is of the [`Launcher`]'s driver: of CUDA's, one of the device's primary context;
//! 2. every address is 0 where the field's documentation allows it, and otherwise points to memory of that device of the
//!    documented shape and element type, aligned to its elements; states, logs and captured states to 16 bytes;
//! 3. nothing else writes the memory that a kernel reads, and nothing else touches what it writes;
//! 4. outputs overlap neither each other nor the inputs; what is `in, out` is one buffer; a window's log is not the log
//!    that its pending entries lie in (two buffers, or two sets of slots of one buffer);
//! 5. `cu_seqlens` rises from 0; `state_indices` are -1 or slots, each once; counts are at most the capacity that is
//!    given; paths rise; parents come before their children, and a window with another parent than the token before has a
//!    capture that keeps the state. These are the facts that `check` of [`undraft_core::ops`] lists.
//!
//! Strides count elements, from one token (or slot, or layer) to the next. Offsets are 64 bits wide.
//!
//! One entry of a delta log is one token: `k` `[H, K]`, `decay` `[HV]` (or `[HV, K]`), `delta` `[HV, V]`, f32. The replay of
//! entries rounds exactly as on the CPU.

use std::mem::MaybeUninit;
use std::sync::Arc;

pub use undraft_core::words::{Captured, DecayForm, Elements, Switch};

use crate::device::Device;
pub use crate::driver::{CUstream, DevicePtr};
use crate::driver::{Driver, Launch};
use crate::error::{CudaError, Result};
pub use crate::ops::causal_conv1d_fn::ConvFnParams;
pub use crate::ops::causal_conv1d_update::ConvUpdateParams;
pub use crate::ops::chunk_gated_delta_rule::{ChunkParams, ChunkWorkspace};
pub use crate::ops::commit_states::CommitParams;
pub use crate::ops::fused_gdn_gating::GatingParams;
pub use crate::ops::fused_recurrent_gated_delta_rule::RecurrentParams;
pub use crate::ops::rms_norm_gated::NormParams;
use crate::select::Kernel;

/// Launches the kernels of one device. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Launcher {
    pub(crate) device: Arc<Device>,
}

/// Blocks and threads of a launch, and bytes of shared memory of a block.
pub(crate) struct Grid {
    pub(crate) blocks: (u64, u32),
    pub(crate) threads: u32,
    pub(crate) shared: usize,
}

impl Launcher {
    /// Looks all kernels up.
    ///
    /// # Errors
    /// [`CudaError::ComputeCapability`] if the device is too old; or if the driver fails or lacks a kernel.
    pub fn new(driver: Arc<dyn Driver>) -> Result<Self> {
        Ok(Self { device: Arc::new(Device::new(driver)?) })
    }

    /// Compiles kernels of the recurrence for heads of `K` = `head_k_dim`, for which there would be general ones alone: a
    /// multiple of 32 up to 256 other than 64, 128 and 256. It takes some seconds and needs NVRTC; to be called before the
    /// first launch, since an output of 0 may have another sign afterwards. `false` where there is nothing to compile.
    ///
    /// # Errors
    /// [`CudaError::NoCompiler`] without NVRTC, which leaves the general kernels; [`CudaError::Compiler`].
    pub fn compile_for(&self, head_k_dim: usize) -> Result<bool> {
        self.device.compile_for(head_k_dim)
    }

    /// The driver that launches.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.device.driver
    }

    /// Puts a kernel on the stream; nothing where there are no blocks.
    ///
    /// # Safety
    /// `params` is the kernel's parameter struct, and the module's contract holds for it.
    pub(crate) unsafe fn launch<P>(
        &self,
        op: &'static str,
        kernel: Kernel,
        grid: Grid,
        stream: CUstream,
        params: &P,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_with(op, kernel, grid, false, stream, params) }
    }

    /// [`Launcher::launch`]; with `overlap` it may begin before the launch before it has ended, if the kernel waits for that.
    ///
    /// # Safety
    /// As [`Launcher::launch`].
    pub(crate) unsafe fn launch_with<P>(
        &self,
        op: &'static str,
        kernel: Kernel,
        grid: Grid,
        overlap: bool,
        stream: CUstream,
        params: &P,
    ) -> Result<()> {
        if grid.blocks.0 == 0 || grid.blocks.1 == 0 {
            return Ok(());
        }
        let too_much = |what, got, most| Err(CudaError::Launch { op, what, got, most });
        let Ok(blocks @ 0..=0x7fff_ffff) = u32::try_from(grid.blocks.0) else {
            return too_much("blocks", grid.blocks.0, 0x7fff_ffff);
        };
        let max_shared = self.device.attributes().max_shared;
        if grid.shared > max_shared {
            return too_much("bytes of shared memory", grid.shared as u64, max_shared as u64);
        }
        let params: *const MaybeUninit<u8> = std::ptr::from_ref(params).cast();
        let launch = Launch {
            function: self.device.get(kernel),
            blocks: (blocks, grid.blocks.1),
            threads: grid.threads,
            shared: grid.shared as u32,
            overlap,
            // SAFETY: the bytes of a borrowed value; those of its padding may be uninitialised.
            params: unsafe { std::slice::from_raw_parts(params, size_of::<P>()) },
        };
        // SAFETY: the function is of this driver; the caller vouches for what the parameter points to.
        unsafe { self.device.driver.launch(stream, &launch) }
    }
}
