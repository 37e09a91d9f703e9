//! Launches whose lengths are checked against the buffers that they are given.
//!
//! All of them go on the one stream of the device's back end, so that each sees what those before it have left. A launch is
//! given other buffers to write than to read, except where its documentation says so.

use std::sync::Arc;

use undraft::cuda::dense::{
    ArgmaxParams, AttentionParams, DenseNormParams, EmbedParams, LinearParams, MoeParams, RotateParams, SiluMulParams,
};
use undraft::cuda::driver::{DevicePtr, Stream};
use undraft::cuda::raw::{CUstream, ConvUpdateParams, Elements, Launcher, NormParams, RecurrentParams};
use undraft::cuda::{CudaBackend, CudaError, DeviceBuffer};

use super::weights::{Matrix, Norm};
use super::workspace::Header;

pub(super) type Result<T = ()> = std::result::Result<T, CudaError>;

/// The device, its stream and its kernels.
#[derive(Clone, Debug)]
pub(super) struct Gpu(Arc<CudaBackend>);

impl Gpu {
    pub(super) fn new(backend: &Arc<CudaBackend>) -> Self {
        Self(backend.clone())
    }
    pub(super) fn stream(&self) -> &Stream {
        self.0.stream()
    }
    fn launcher(&self) -> &Launcher {
        self.0.launcher()
    }
    fn handle(&self) -> CUstream {
        self.0.stream().handle()
    }
}

/// Rows in a buffer: the first element, and elements from one row to the next.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) buffer: &'a DeviceBuffer<f32>,
    pub(super) start: usize,
    pub(super) stride: usize,
}

impl<'a> Rows<'a> {
    /// Rows of `len` elements one behind the other.
    pub(super) fn new(buffer: &'a DeviceBuffer<f32>, len: usize) -> Self {
        Self { buffer, start: 0, stride: len }
    }
    /// The columns from `column` on.
    pub(super) fn columns(self, column: usize) -> Self {
        Self { start: self.start + column, ..self }
    }
    /// The rows from `row` on.
    pub(super) fn rows(self, row: usize) -> Self {
        Self { start: self.start + row * self.stride, ..self }
    }
    /// Address, once `n` rows of `len` elements are known to lie in the buffer.
    pub(super) fn address(self, n: usize, len: usize) -> DevicePtr {
        let end = if n == 0 { self.start } else { self.start + (n - 1) * self.stride + len };
        assert!(end <= self.buffer.len(), "rows end at {end}, expected at most {}", self.buffer.len());
        self.buffer.address() + 4 * self.start as u64
    }
}

/// Address of a buffer of at least `len` elements.
fn at_least<T: undraft::cuda::driver::DeviceElement>(buffer: &DeviceBuffer<T>, len: usize) -> DevicePtr {
    assert!(buffer.len() >= len, "a buffer of {} elements, expected at least {len}", buffer.len());
    buffer.address()
}

/// Sizes of a full-attention mixer.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionSizes {
    pub(super) num_heads: usize,
    pub(super) num_kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) rotary_dim: usize,
}

impl AttentionSizes {
    pub(super) fn queries(&self) -> usize {
        self.num_heads * self.head_dim
    }
    pub(super) fn keys(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }
    /// Of a joint projection: queries with gates, keys, values.
    pub(super) fn row(&self) -> usize {
        2 * self.queries() + 2 * self.keys()
    }
}

/// Keys and values of a layer: `[capacity, num_kv_heads, head_dim]` each.
#[derive(Debug)]
pub(super) struct Kv {
    pub(super) keys: DeviceBuffer<f32>,
    pub(super) values: DeviceBuffer<f32>,
}

/// Where tokens stand: behind the positions held and `offset` more.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) header: &'a Header,
    pub(super) offset: usize,
    /// Cosines, then sines, of all positions, `[capacity, rotary_dim]`.
    pub(super) rope: &'a DeviceBuffer<f32>,
    pub(super) capacity: usize,
}

impl Gpu {
    /// Rows of an embedding into `out` `[n, in_features]`.
    ///
    /// # Safety
    /// `tokens` is the address of `n` ids in device memory.
    pub(super) unsafe fn embed(&self, table: &Matrix, tokens: DevicePtr, n: usize, out: &DeviceBuffer<f32>) -> Result {
        let params = EmbedParams {
            table: table.address(),
            tokens,
            out: at_least(out, n * table.in_features),
            len: table.in_features as i64,
            num_tokens: n as i32,
            vocab_size: table.out_features as i32,
            dtype: table.elements(),
        };
        // SAFETY: the table has the sizes that it says, and `out` was checked; the caller's promise.
        unsafe { self.launcher().dense_embed(self.handle(), &params) }
    }

    /// `x += delta` if there is one, then the norm of every row of `x` into `out`.
    pub(super) fn norm(&self, norm: &Norm, x: Rows<'_>, delta: Option<Rows<'_>>, out: Rows<'_>, n: usize) -> Result {
        let len = norm.factor.len();
        let params = DenseNormParams {
            x: x.address(n, len),
            delta: delta.map_or(0, |delta| delta.address(n, len)),
            factor: norm.factor.address(),
            out: out.address(n, len),
            x_stride: x.stride as i64,
            delta_stride: delta.map_or(0, |delta| delta.stride as i64),
            out_stride: out.stride as i64,
            num_rows: n as i32,
            len: len as i32,
            eps: norm.eps,
        };
        // SAFETY: all rows were checked to lie in their buffers.
        unsafe { self.launcher().dense_rms_norm(self.handle(), &params) }
    }

    /// `y = W x` for `n` rows.
    pub(super) fn linear(&self, weight: &Matrix, x: Rows<'_>, y: Rows<'_>, n: usize) -> Result {
        assert!(x.start.is_multiple_of(4) && x.stride.is_multiple_of(4), "rows are not aligned to 16 bytes");
        let params = LinearParams {
            weight: weight.address(),
            x: x.address(n, weight.in_features),
            experts: 0,
            y: y.address(n, weight.out_features),
            x_stride: x.stride as i64,
            y_stride: y.stride as i64,
            expert_stride: 0,
            num_rows: n as i32,
            in_features: weight.in_features as i32,
            out_features: weight.out_features as i32,
            rows_per_x: 1,
        };
        // SAFETY: the weight has the sizes that it says, a multiple of 4 columns; rows were checked to lie in their buffers, and
        // to be aligned.
        unsafe { self.launcher().dense_linear(self.handle(), &params, weight.elements()) }
    }

    /// `y[t] = W[experts[t]] x[t / rows_per_x]` for `n` rows, all contiguous.
    pub(super) fn linear_of_experts(
        &self,
        weight: &Matrix,
        experts: &DeviceBuffer<u32>,
        (x, rows_per_x): (&DeviceBuffer<f32>, usize),
        y: &DeviceBuffer<f32>,
        n: usize,
    ) -> Result {
        let params = LinearParams {
            weight: weight.address(),
            x: at_least(x, n / rows_per_x * weight.in_features),
            experts: at_least(experts, n),
            y: at_least(y, n * weight.out_features),
            x_stride: weight.in_features as i64,
            y_stride: weight.out_features as i64,
            expert_stride: (weight.out_features * weight.in_features) as i64,
            num_rows: n as i32,
            in_features: weight.in_features as i32,
            out_features: weight.out_features as i32,
            rows_per_x: rows_per_x as i32,
        };
        // SAFETY: as for `linear`; the numbers of experts were written by a route over as many matrices as there are.
        unsafe { self.launcher().dense_linear(self.handle(), &params, weight.elements()) }
    }

    /// `silu(gate) * up` of rows `[n, 2, len]` into `[n, len]`.
    pub(super) fn silu_mul(
        &self,
        gate_up: &DeviceBuffer<f32>,
        out: &DeviceBuffer<f32>,
        n: usize,
        len: usize,
    ) -> Result {
        let params = SiluMulParams {
            gate_up: at_least(gate_up, 2 * n * len),
            out: at_least(out, n * len),
            len: len as i64,
            num_rows: n as i32,
        };
        // SAFETY: both buffers were checked.
        unsafe { self.launcher().dense_silu_mul(self.handle(), &params) }
    }

    /// Norms and rotates the queries and keys of a joint projection of `n` tokens; queries go to `query` `[n, heads, D]`, keys
    /// and values into the cache.
    pub(super) fn rotate(
        &self,
        sizes: AttentionSizes,
        (q_norm, k_norm): (&Norm, &Norm),
        qkv: &DeviceBuffer<f32>,
        place: Place<'_>,
        (query, kv): (&DeviceBuffer<f32>, &Kv),
        n: usize,
    ) -> Result {
        let AttentionSizes { num_heads, num_kv_heads, head_dim, rotary_dim } = sizes;
        let params = RotateParams {
            qkv: at_least(qkv, n * sizes.row()),
            q_factor: at_least(&q_norm.factor, head_dim),
            k_factor: at_least(&k_norm.factor, head_dim),
            rope: at_least(place.rope, place.capacity * rotary_dim),
            len_held: place.header.len_held(),
            query: at_least(query, n * sizes.queries()),
            keys: at_least(&kv.keys, place.capacity * sizes.keys()),
            values: at_least(&kv.values, place.capacity * sizes.keys()),
            qkv_stride: sizes.row() as i64,
            num_tokens: n as i32,
            num_heads: num_heads as i32,
            num_kv_heads: num_kv_heads as i32,
            head_dim: head_dim as i32,
            rotary_dim: rotary_dim as i32,
            offset: place.offset as i32,
            eps: q_norm.eps,
            scale: (head_dim as f32).sqrt().recip(),
        };
        // SAFETY: the buffers were checked for `n` tokens and all positions of the cache; that positions held, offset and
        // tokens stay within the capacity is checked before a header is written.
        unsafe { self.launcher().dense_rotate(self.handle(), &params) }
    }

    /// Attends with `n` tokens, of which the first stands at `place`: their queries, their rows of the joint projection, which
    /// hold the gates, and where the result goes.
    pub(super) fn attend(
        &self,
        sizes: AttentionSizes,
        place: Place<'_>,
        (query, joint, out): (Rows<'_>, Rows<'_>, Rows<'_>),
        kv: &Kv,
        (parts, segments): (&DeviceBuffer<f32>, usize),
        n: usize,
    ) -> Result {
        let AttentionSizes { num_heads, num_kv_heads, head_dim, .. } = sizes;
        let params = AttentionParams {
            query: query.address(n, sizes.queries()),
            keys: at_least(&kv.keys, place.capacity * sizes.keys()),
            values: at_least(&kv.values, place.capacity * sizes.keys()),
            len_held: place.header.len_held(),
            parts: at_least(parts, n * num_heads * segments * (head_dim + 2)),
            // The gate of a head lies behind its query.
            gate: joint.columns(head_dim).address(n, 2 * sizes.queries() - head_dim),
            out: out.address(n, sizes.queries()),
            gate_stride: joint.stride as i64,
            num_tokens: n as i32,
            num_heads: num_heads as i32,
            num_kv_heads: num_kv_heads as i32,
            head_dim: head_dim as i32,
            num_segments: segments as i32,
            offset: place.offset as i32,
        };
        // SAFETY: as for `rotate`; the segments are those of the capacity.
        unsafe { self.launcher().dense_attention(self.handle(), &params) }
    }

    /// The token of the largest of each of `n` rows of logits `[n, len]`, into `out` from element `at` on.
    pub(super) fn argmax(
        &self,
        (logits, len): (&DeviceBuffer<f32>, usize),
        parts: &DeviceBuffer<u64>,
        (out, at): (&DeviceBuffer<u32>, usize),
        n: usize,
    ) -> Result {
        let num_parts = undraft::cuda::dense::argmax_parts(len);
        let params = ArgmaxParams {
            x: at_least(logits, n * len),
            parts: at_least(parts, n * num_parts),
            out: at_least(out, at + n) + 4 * at as u64,
            len: len as i64,
            num_rows: n as i32,
            num_parts: num_parts as i32,
        };
        // SAFETY: the buffers were checked.
        unsafe { self.launcher().dense_argmax(self.handle(), &params) }
    }

    /// Chooses experts.
    ///
    /// # Safety
    /// The contract of [`undraft::cuda::raw`].
    pub(super) unsafe fn moe_route(&self, params: &MoeParams) -> Result {
        // SAFETY: the caller's promise.
        unsafe { self.launcher().dense_moe_route(self.handle(), params) }
    }

    /// Adds up what experts gave.
    ///
    /// # Safety
    /// The contract of [`undraft::cuda::raw`].
    pub(super) unsafe fn moe_sum(&self, params: &MoeParams) -> Result {
        // SAFETY: the caller's promise.
        unsafe { self.launcher().dense_moe_sum(self.handle(), params) }
    }

    /// The convolution of a window, or of part of a prompt.
    ///
    /// # Safety
    /// The contract of [`undraft::cuda::raw`].
    pub(super) unsafe fn conv(&self, params: &ConvUpdateParams) -> Result {
        // SAFETY: the caller's promise.
        unsafe { self.launcher().causal_conv1d_update(self.handle(), params) }
    }

    /// The recurrence, with f32 states.
    ///
    /// # Safety
    /// The contract of [`undraft::cuda::raw`].
    pub(super) unsafe fn recurrent(&self, params: &RecurrentParams) -> Result {
        // SAFETY: the caller's promise.
        unsafe { self.launcher().fused_recurrent_gated_delta_rule(self.handle(), params, Elements::F32) }
    }

    /// The gated norm behind the recurrence.
    ///
    /// # Safety
    /// The contract of [`undraft::cuda::raw`].
    pub(super) unsafe fn norm_gated(&self, params: &NormParams) -> Result {
        // SAFETY: the caller's promise.
        unsafe { self.launcher().rms_norm_gated(self.handle(), params) }
    }
}
