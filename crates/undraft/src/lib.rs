//! Exact, take-it-back speculative decoding for the Gated DeltaNet layers of hybrid language models.
//!
//! A KV cache forgets a rejected draft by moving a pointer; a recurrent state cannot. This crate makes it able to: a
//! [`Round`] runs a window of drafted tokens through every layer, and [`Round::commit`] then says how many stay. The
//! state is, bit for bit, what decoding just those tokens one by one would have left.
//!
//! ```
//! use undraft::{Device, GdnDims, GdnLayer, GdnLayerParams, LayerDims, LayerInputs, PoolConfig, Rows, RowsMut, StatePool};
//!
//! let dims = GdnDims::new(2, 4, 64, 64)?;
//! let device = Device::cpu();
//! let layers = vec![LayerDims { gdn: dims, conv_width: 4 }];
//! let mut pool = StatePool::new(&device, PoolConfig::new(layers, 8, 4))?;
//! let layer = GdnLayer::new(GdnLayerParams::new(dims, 4, &vec![0.1; 4 * dims.conv_dim()], &[0.0; 4], &[0.5; 4]))?;
//!
//! let slot = pool.alloc()?;
//! let (qkv, gate, mut out) = (vec![0.3; 3 * dims.conv_dim()], vec![0.1; 3 * 4], vec![0.0; 3 * dims.value_dim()]);
//! let mut round = pool.begin(&[slot], &[3])?; // three drafted tokens
//! let inputs = LayerInputs { layer: &layer, mixed_qkv: Rows::new(&qkv[..], dims.conv_dim()), a: &gate, b: &gate };
//! round.verify(0, inputs, RowsMut::new(&mut out[..], dims.value_dim()))?;
//! round.commit(&[2])?; // two of them stay; dropping the round instead would have kept none
//! # Ok::<(), undraft::Error>(())
//! ```

mod device;
mod error;
mod layer;
mod pool;
mod round;

pub use device::Device;
pub use error::{Error, Result};
pub use layer::{GdnLayer, GdnLayerParams};
pub use pool::{LayerDims, MemoryPerSlot, PoolConfig, Slot, Snapshot, StatePool};
pub use round::{DetachedRound, LayerInputs, Round};
pub use undraft_core::ops;
pub use undraft_core::{
    Activation, Backend, Beta, Caps, Capture, CaptureMut, Checked, ConvDims, CuSeqlens, DType, Data, DataMut, Decay,
    DecayShape, DeltaLogMut, Error as OpError, GdnDims, HeadMap, MAX_CONV_WIDTH, MAX_HEAD_DIM, NamedShape, Op,
    PAD_SLOT, QkNorm, Rounding, Rows, RowsMut, StateIndices, StateLayout, Support, bf16, conv_state_to_channel_major,
    conv_state_to_time_major, conv_weight_to_tap_major, f16, state_to_key_major, state_to_value_major,
};
/// The CPU back end: instruction sets, executors, the SIMD layer.
pub use undraft_cpu as cpu;
/// The CUDA back end: drivers, device memory, launches on pointers.
pub use undraft_cuda as cuda;
/// The wgpu back end: adapters, device memory, kernels in WGSL, batches of dispatches.
pub use undraft_wgpu as wgpu;
