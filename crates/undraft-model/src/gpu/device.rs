//! What the runner asks of a device, behind one trait.

use std::fmt::Debug;

use bytemuck::Pod;
use undraft::Device;
use undraft::cuda::driver::DeviceElement;

use super::args::{
    ArgMax, Attention, Convolution, ExpertProducts, Experts, Ids, NormGated, Recurrence, Rotation, Rows,
};
use super::weights::{Matrix, Norm, Parts};
use crate::error::Result;

/// What the runner keeps in device memory beside weights; 4 bytes each.
pub trait Element: DeviceElement + Pod + Debug {}

impl Element for f32 {}
impl Element for u32 {}

/// Elements in device memory, given back when dropped.
pub trait Memory: Debug {
    /// Elements.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One device with its kernels and its one queue of work. Cloning is cheap; clones share the queue.
///
/// A call of the second and third part below puts work on the queue and may return before it is done. Work is done in the order
/// of the calls, and each sees what those before it have left. Only [`Gpu::read`] and [`Gpu::synchronize`] wait.
///
/// # Exactness
///
/// An output element is summed in an order that follows from the sizes of the layer, from positions and from the device
/// alone: never from `n`, nor from the row that a token has in a call. So a token's values are the same bits whichever tokens
/// come with it, and a recorded call gives the bits of the same call made directly. A multiplication and an addition are fused
/// where an operation says FMA, everywhere or nowhere. Close to the CPU is enough otherwise: logits of the repository's
/// models within 5e-4.
///
/// # Arguments
///
/// Arguments are made by the runner alone, which is why an implementation lies in this crate. [`Rows`] and [`Ids`] give an offset
/// only after they have checked that what is asked for lies in the buffer; other buffers are at least as long as the fields of the
/// argument say, which an implementation that cannot rely on the device for that checks with [`Memory::len`]. Two arguments of
/// a call lie in the same buffer where their documentation says so; inputs may share a buffer always. Numbers that lie in device
/// memory are in range when a call runs: token ids below `vocab_size`, positions held and the tokens behind them within the capacity,
/// entries pending at most `max_window`, slots 0 or 1, numbers of experts below their number.
///
/// All activations are f32. `H` is `hidden_size`, `D` `head_dim`, `n` the tokens of a call, at least 1 unless it is said.
pub trait Gpu: Clone + Debug + Sized + 'static {
    /// Name of the device in errors: `cuda`.
    const NAME: &'static str;
    /// What [`Gpu::of`] expects, in errors: `a CUDA device`.
    const EXPECTED: &'static str;
    /// Most experts that a token may take.
    const MAX_TOP_K: usize;

    /// Elements in device memory.
    type Buffer<T: Element>: Memory;
    /// Elements of matrices behind one another, in the type that they were uploaded in; given back when dropped.
    type Weights: Debug;
    /// Calls that were recorded.
    type Recording: Debug;

    /// The device, if it is of this kind.
    fn of(device: &Device) -> Option<Self>;

    /// `len` elements of arbitrary value.
    ///
    /// # Errors
    /// If there is not so much memory.
    fn uninit<T: Element>(&self, len: usize) -> Result<Self::Buffer<T>>;
    /// `len` elements of which all bytes are 0.
    ///
    /// # Errors
    /// If there is not so much memory, or the device fails.
    fn zeroed<T: Element>(&self, len: usize) -> Result<Self::Buffer<T>>;
    /// A copy of host memory.
    ///
    /// # Errors
    /// If there is not so much memory, or the device fails.
    fn copy_of<T: Element>(&self, from: &[T]) -> Result<Self::Buffer<T>>;
    /// Parts of matrices behind one another.
    ///
    /// # Errors
    /// If there is not so much memory, or the device fails.
    fn upload(&self, parts: &Parts<'_>) -> Result<Self::Weights>;
    /// Copies host memory to the elements from 0 on, behind all work that was put on the queue before. `from` has been read
    /// when the call returns.
    ///
    /// # Errors
    /// If the buffer is shorter, or the device fails.
    fn write<T: Element>(&self, to: &mut Self::Buffer<T>, from: &[T]) -> Result<()>;
    /// Sets all bytes of all elements to 0.
    ///
    /// # Errors
    /// If the device fails.
    fn clear<T: Element>(&self, buffer: &mut Self::Buffer<T>) -> Result<()>;
    /// Copies the first elements to host memory, and waits until they are there.
    ///
    /// # Errors
    /// If the buffer is shorter; or if the device fails, also for work that was put on the queue before.
    fn read<T: Element>(&self, from: &Self::Buffer<T>, to: &mut [T]) -> Result<()>;
    /// Waits until all that was put on the queue is done.
    ///
    /// # Errors
    /// If the device fails, or work that was put on the queue has failed.
    fn synchronize(&self) -> Result<()>;

    /// Records the operations that `work` calls instead of putting them on the queue; it makes no other calls. Where a device has
    /// no such thing, a list of the calls to be made again is one.
    ///
    /// # Errors
    /// That of `work`, after which nothing is recording any more; or if the device fails.
    fn record(&self, work: impl FnOnce() -> Result<()>) -> Result<Self::Recording>;
    /// Puts the recorded operations on the queue. What lies in the buffers may have changed since.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Safety
    /// The buffers and weights that the recorded operations were given are still there, and the numbers in device memory are in
    /// range.
    unsafe fn replay(&self, recording: &Self::Recording) -> Result<()>;

    /// Rows of an embedding `[vocab_size, H]`, widened, into `out` `[n, H]`.
    ///
    /// # Errors
    /// If the device fails, as for all operations.
    fn embed(&self, table: &Matrix<Self>, tokens: Ids<'_, Self>, out: Rows<'_, Self>, n: usize) -> Result<()>;
    /// `x += delta` if there is one, then `out = x / sqrt(mean(x^2) + eps) * factor`, for `n` rows.
    ///
    /// # Errors
    /// See [`Gpu::embed`].
    fn rms_norm(
        &self,
        norm: &Norm<Self>,
        x: Rows<'_, Self>,
        delta: Option<Rows<'_, Self>>,
        out: Rows<'_, Self>,
        n: usize,
    ) -> Result<()>;
    /// `y = W x` for `n` rows: `x` `[n, in_features]`, `y` `[n, out_features]`. Start and stride of `x` and the columns of the
    /// weight are multiples of 4. A weight is widened to f32, then sums are FMAs in f32, so that weights of equal value give
    /// equal bits in any type.
    ///
    /// # Errors
    /// See [`Gpu::embed`].
    fn linear(&self, weight: &Matrix<Self>, x: Rows<'_, Self>, y: Rows<'_, Self>, n: usize) -> Result<()>;
    /// The same with a matrix of its own for each row.
    ///
    /// # Errors
    /// See [`Gpu::embed`].
    fn linear_of_experts(&self, products: ExpertProducts<'_, Self>) -> Result<()>;
    /// `gate * sigmoid(gate) * up` of rows `[n, 2, len]` (gates, then what they gate) into `[n, len]`.
    ///
    /// # Errors
    /// See [`Gpu::embed`].
    fn silu_mul(&self, gate_up: &Self::Buffer<f32>, out: &Self::Buffer<f32>, n: usize, len: usize) -> Result<()>;
    /// Norms and rotates queries and keys; puts keys and values into the cache.
    ///
    /// # Errors
    /// See [`Gpu::embed`].
    fn rotate(&self, rotation: Rotation<'_, Self>) -> Result<()>;
    /// Causal softmax attention over the cache, times the sigmoid of the gates.
    ///
    /// # Errors
    /// See [`Gpu::embed`].
    fn attention(&self, attention: Attention<'_, Self>) -> Result<()>;
    /// f32 elements of scratch memory that [`Gpu::attention`] needs for each token and head, in a cache of `capacity`
    /// positions.
    fn attention_scratch(capacity: usize, head_dim: usize) -> usize;
    /// The token of the largest of each of `n` rows of logits.
    ///
    /// # Errors
    /// See [`Gpu::embed`].
    fn argmax(&self, argmax: ArgMax<'_, Self>) -> Result<()>;
    /// u32 elements of scratch memory that [`Gpu::argmax`] needs for each row of `len` logits.
    fn argmax_scratch(len: usize) -> usize;
    /// Chooses the experts of every token: softmax over all experts, then the `top_k` largest, of equal ones the lower numbers,
    /// written in the order of their numbers, with their probabilities, divided by the sum of those chosen where
    /// `norm_topk_prob` says so.
    ///
    /// # Errors
    /// See [`Gpu::embed`].
    fn moe_route(&self, experts: Experts<'_, Self>) -> Result<()>;
    /// Adds up what the experts of every token gave, in the order of their numbers, by FMAs from 0, then `shared` times the
    /// sigmoid of its gate by one more.
    ///
    /// # Errors
    /// See [`Gpu::embed`].
    fn moe_sum(&self, experts: Experts<'_, Self>) -> Result<()>;

    /// The convolution of a window, or of part of a prompt: settles what is pending of the window before, then convolves
    /// and applies SiLU. 0 tokens settle alone. See [`undraft::ops::CausalConv1dUpdateArgs`].
    ///
    /// # Errors
    /// See [`Gpu::embed`].
    fn causal_conv1d_update(&self, convolution: Convolution<'_, Self>) -> Result<()>;
    /// The recurrence: replays what is pending, then runs the tokens. 0 tokens replay alone. See
    /// [`undraft::ops::FusedRecurrentArgs`].
    ///
    /// # Errors
    /// See [`Gpu::embed`].
    fn fused_recurrent_gated_delta_rule(&self, recurrence: Recurrence<'_, Self>) -> Result<()>;
    /// `x / sqrt(mean(x^2) + eps) * weight * silu(z)` of every head.
    ///
    /// # Errors
    /// See [`Gpu::embed`].
    fn rms_norm_gated(&self, norm: NormGated<'_, Self>) -> Result<()>;
}
