//! CUDA as the runner's device: launches whose lengths are checked against the buffers that they are given, all on the one
//! stream of the back end.

use std::sync::Arc;

use undraft::Device;
use undraft::cuda::dense::{
    self, ArgmaxParams, AttentionParams, DenseNormParams, EmbedParams, LinearParams, MoeParams, RotateParams,
    SiluMulParams,
};
use undraft::cuda::driver::{DeviceElement, DevicePtr, Graph, Stream};
use undraft::cuda::raw::{
    CUstream, Captured, ConvUpdateParams, DecayForm, Elements, Launcher, NormParams, RecurrentParams, Switch,
};
use undraft::cuda::{CudaBackend, DeviceBuffer};
use undraft::{bf16, f16};

use crate::error::Result;
use crate::gpu::{
    ArgMax, Attention, Convolution, Element, ExpertProducts, Experts, GdnState, Gpu, Header, Ids, Matrix, Memory, Norm,
    NormGated, Parts, Recurrence, Rotation, Rows, expect_len,
};

/// An NVIDIA GPU, its stream and its kernels.
#[derive(Clone, Debug)]
pub struct CudaGpu(Arc<CudaBackend>);

impl CudaGpu {
    fn stream(&self) -> &Stream {
        self.0.stream()
    }
    fn launcher(&self) -> &Launcher {
        self.0.launcher()
    }
    fn handle(&self) -> CUstream {
        self.0.stream().handle()
    }
}

/// Matrices in device memory.
#[derive(Debug)]
pub enum CudaWeights {
    /// f32.
    F32(DeviceBuffer<f32>),
    /// bf16.
    Bf16(DeviceBuffer<bf16>),
    /// f16.
    F16(DeviceBuffer<f16>),
}

impl CudaWeights {
    fn address(&self) -> DevicePtr {
        match self {
            Self::F32(buffer) => buffer.address(),
            Self::Bf16(buffer) => buffer.address(),
            Self::F16(buffer) => buffer.address(),
        }
    }
    fn elements(&self) -> Elements {
        match self {
            Self::F32(_) => Elements::F32,
            Self::Bf16(_) => Elements::Bf16,
            Self::F16(_) => Elements::F16,
        }
    }
}

fn concatenated<T: DeviceElement>(stream: &Stream, parts: &[impl AsRef<[T]>]) -> Result<DeviceBuffer<T>> {
    let mut buffer = DeviceBuffer::uninit(stream.driver(), parts.iter().map(|part| part.as_ref().len()).sum())?;
    let mut at = 0;
    for part in parts {
        buffer.write(stream, at, part.as_ref())?;
        at += part.as_ref().len();
    }
    Ok(buffer)
}

impl<T: Element> Memory for DeviceBuffer<T> {
    fn len(&self) -> usize {
        DeviceBuffer::len(self)
    }
}

/// Address of rows, once `n` of `len` elements are known to lie in their buffer.
fn address(rows: Rows<'_, CudaGpu>, n: usize, len: usize) -> DevicePtr {
    rows.buffer().address() + 4 * rows.offset(n, len) as u64
}

/// Address of a buffer of at least `len` elements.
fn at_least<T: Element>(buffer: &DeviceBuffer<T>, len: usize) -> DevicePtr {
    expect_len(buffer, len);
    buffer.address()
}

/// Address of `n` ids.
fn ids(ids: Ids<'_, CudaGpu>, n: usize) -> DevicePtr {
    ids.buffer().address() + 4 * ids.offset(n) as u64
}

/// Address of a word of a header.
fn word(header: &Header<CudaGpu>, index: usize) -> DevicePtr {
    header.words().address() + 4 * index as u64
}

fn captured(undecided: bool) -> Captured {
    if undecided { Captured::DeltaLog } else { Captured::Final }
}

impl Gpu for CudaGpu {
    const NAME: &'static str = "cuda";
    const EXPECTED: &'static str = "a CUDA device";
    const MAX_TOP_K: usize = dense::MAX_TOP_K;

    type Buffer<T: Element> = DeviceBuffer<T>;
    type Weights = CudaWeights;
    type Recording = Graph;

    fn of(device: &Device) -> Option<Self> {
        device.cuda_backend().map(|backend| Self(backend.clone()))
    }

    fn uninit<T: Element>(&self, len: usize) -> Result<DeviceBuffer<T>> {
        Ok(DeviceBuffer::uninit(self.stream().driver(), len)?)
    }
    fn zeroed<T: Element>(&self, len: usize) -> Result<DeviceBuffer<T>> {
        Ok(DeviceBuffer::zeroed(self.stream(), len)?)
    }
    fn copy_of<T: Element>(&self, from: &[T]) -> Result<DeviceBuffer<T>> {
        Ok(DeviceBuffer::from_slice(self.stream(), from)?)
    }
    fn upload(&self, parts: &Parts<'_>) -> Result<CudaWeights> {
        Ok(match parts {
            Parts::F32(parts) => CudaWeights::F32(concatenated(self.stream(), parts)?),
            Parts::Bf16(parts) => CudaWeights::Bf16(concatenated(self.stream(), parts)?),
            Parts::F16(parts) => CudaWeights::F16(concatenated(self.stream(), parts)?),
        })
    }
    fn write<T: Element>(&self, to: &mut DeviceBuffer<T>, from: &[T]) -> Result<()> {
        to.write(self.stream(), 0, from)?;
        Ok(())
    }
    fn clear<T: Element>(&self, buffer: &mut DeviceBuffer<T>) -> Result<()> {
        buffer.fill(self.stream(), 0)?;
        Ok(())
    }
    fn read<T: Element>(&self, from: &DeviceBuffer<T>, to: &mut [T]) -> Result<()> {
        from.read(self.stream(), 0, to)?;
        Ok(())
    }
    fn synchronize(&self) -> Result<()> {
        self.stream().synchronize()?;
        Ok(())
    }

    fn record(&self, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mut done = Ok(());
        let graph = self.stream().capture(|| {
            done = work();
            Ok(())
        });
        done?;
        Ok(graph?)
    }
    unsafe fn replay(&self, recording: &Graph) -> Result<()> {
        // SAFETY: recorded on this driver, as all recordings of a model are; the caller's promise.
        unsafe { recording.launch(self.stream())? };
        Ok(())
    }

    fn embed(&self, table: &Matrix<Self>, tokens: Ids<'_, Self>, out: Rows<'_, Self>, n: usize) -> Result<()> {
        let len = table.in_features();
        assert_eq!(out.stride(), len, "rows of an embedding lie one behind the other");
        let params = EmbedParams {
            table: table.data().address(),
            tokens: ids(tokens, n),
            out: address(out, n, len),
            len: len as i64,
            num_tokens: n as i32,
            vocab_size: table.out_features() as i32,
            dtype: table.data().elements(),
        };
        // SAFETY: the table has the sizes that it says; ids and rows were checked.
        unsafe { self.launcher().dense_embed(self.handle(), &params)? };
        Ok(())
    }

    fn rms_norm(
        &self,
        norm: &Norm<Self>,
        x: Rows<'_, Self>,
        delta: Option<Rows<'_, Self>>,
        out: Rows<'_, Self>,
        n: usize,
    ) -> Result<()> {
        let len = norm.factor().len();
        let params = DenseNormParams {
            x: address(x, n, len),
            delta: delta.map_or(0, |delta| address(delta, n, len)),
            factor: norm.factor().address(),
            out: address(out, n, len),
            x_stride: x.stride() as i64,
            delta_stride: delta.map_or(0, |delta| delta.stride() as i64),
            out_stride: out.stride() as i64,
            num_rows: n as i32,
            len: len as i32,
            eps: norm.eps(),
        };
        // SAFETY: all rows were checked to lie in their buffers.
        unsafe { self.launcher().dense_rms_norm(self.handle(), &params)? };
        Ok(())
    }

    fn linear(&self, weight: &Matrix<Self>, x: Rows<'_, Self>, y: Rows<'_, Self>, n: usize) -> Result<()> {
        let (in_features, out_features) = (weight.in_features(), weight.out_features());
        let start = x.offset(n, in_features);
        assert!(start.is_multiple_of(4) && x.stride().is_multiple_of(4), "rows are not aligned to 16 bytes");
        let params = LinearParams {
            weight: weight.data().address(),
            x: address(x, n, in_features),
            experts: 0,
            y: address(y, n, out_features),
            x_stride: x.stride() as i64,
            y_stride: y.stride() as i64,
            expert_stride: 0,
            num_rows: n as i32,
            in_features: in_features as i32,
            out_features: out_features as i32,
            rows_per_x: 1,
        };
        // SAFETY: the weight has the sizes that it says, a multiple of 4 columns; rows were checked to lie in their buffers, and
        // to be aligned.
        unsafe { self.launcher().dense_linear(self.handle(), &params, weight.data().elements())? };
        Ok(())
    }

    fn linear_of_experts(&self, products: ExpertProducts<'_, Self>) -> Result<()> {
        let ExpertProducts { weight, experts, x, rows_per_x, y, n } = products;
        let (in_features, out_features) = (weight.in_features(), weight.out_features());
        let params = LinearParams {
            weight: weight.data().address(),
            x: at_least(x, n / rows_per_x * in_features),
            experts: at_least(experts, n),
            y: at_least(y, n * out_features),
            x_stride: in_features as i64,
            y_stride: out_features as i64,
            expert_stride: (out_features * in_features) as i64,
            num_rows: n as i32,
            in_features: in_features as i32,
            out_features: out_features as i32,
            rows_per_x: rows_per_x as i32,
        };
        // SAFETY: as for `linear`; the numbers of experts were written by a route over as many matrices as there are.
        unsafe { self.launcher().dense_linear(self.handle(), &params, weight.data().elements())? };
        Ok(())
    }

    fn silu_mul(&self, gate_up: &DeviceBuffer<f32>, out: &DeviceBuffer<f32>, n: usize, len: usize) -> Result<()> {
        let params = SiluMulParams {
            gate_up: at_least(gate_up, 2 * n * len),
            out: at_least(out, n * len),
            len: len as i64,
            num_rows: n as i32,
        };
        // SAFETY: both buffers were checked.
        unsafe { self.launcher().dense_silu_mul(self.handle(), &params)? };
        Ok(())
    }

    fn rotate(&self, rotation: Rotation<'_, Self>) -> Result<()> {
        let Rotation { sizes, q_norm, k_norm, qkv, place, query, kv, n } = rotation;
        let params = RotateParams {
            qkv: at_least(qkv, n * sizes.row()),
            q_factor: at_least(q_norm.factor(), sizes.head_dim),
            k_factor: at_least(k_norm.factor(), sizes.head_dim),
            rope: at_least(place.rope, place.capacity * sizes.rotary_dim),
            len_held: word(place.header, Header::<Self>::LEN),
            query: at_least(query, n * sizes.queries()),
            keys: at_least(&kv.keys, place.capacity * sizes.keys()),
            values: at_least(&kv.values, place.capacity * sizes.keys()),
            qkv_stride: sizes.row() as i64,
            num_tokens: n as i32,
            num_heads: sizes.num_heads as i32,
            num_kv_heads: sizes.num_kv_heads as i32,
            head_dim: sizes.head_dim as i32,
            rotary_dim: sizes.rotary_dim as i32,
            offset: place.offset as i32,
            eps: q_norm.eps(),
            scale: (sizes.head_dim as f32).sqrt().recip(),
        };
        // SAFETY: the buffers were checked for `n` tokens and all positions of the cache; that positions held, offset and
        // tokens stay within the capacity is checked before a header is written.
        unsafe { self.launcher().dense_rotate(self.handle(), &params)? };
        Ok(())
    }

    fn attention(&self, attention: Attention<'_, Self>) -> Result<()> {
        let Attention { sizes, place, query, joint, out, kv, scratch, n } = attention;
        let head_dim = sizes.head_dim;
        let parts = n * sizes.num_heads * Self::attention_scratch(place.capacity, head_dim);
        let params = AttentionParams {
            query: address(query, n, sizes.queries()),
            keys: at_least(&kv.keys, place.capacity * sizes.keys()),
            values: at_least(&kv.values, place.capacity * sizes.keys()),
            len_held: word(place.header, Header::<Self>::LEN),
            parts: at_least(scratch, parts),
            // The gate of a head lies behind its query.
            gate: address(joint.columns(head_dim), n, 2 * sizes.queries() - head_dim),
            out: address(out, n, sizes.queries()),
            gate_stride: joint.stride() as i64,
            num_tokens: n as i32,
            num_heads: sizes.num_heads as i32,
            num_kv_heads: sizes.num_kv_heads as i32,
            head_dim: head_dim as i32,
            num_segments: dense::attention_segments(place.capacity) as i32,
            offset: place.offset as i32,
        };
        // SAFETY: as for `rotate`; the segments are those of the capacity.
        unsafe { self.launcher().dense_attention(self.handle(), &params)? };
        Ok(())
    }

    fn attention_scratch(capacity: usize, head_dim: usize) -> usize {
        dense::attention_segments(capacity) * (head_dim + 2)
    }

    fn argmax(&self, argmax: ArgMax<'_, Self>) -> Result<()> {
        let ArgMax { logits, len, scratch, out, n } = argmax;
        let params = ArgmaxParams {
            x: at_least(logits, n * len),
            parts: at_least(scratch, n * Self::argmax_scratch(len)),
            out: ids(out, n),
            len: len as i64,
            num_rows: n as i32,
            num_parts: dense::argmax_parts(len) as i32,
        };
        // SAFETY: the buffers were checked; memory begins at multiples of 256 bytes, and a part is two words.
        unsafe { self.launcher().dense_argmax(self.handle(), &params)? };
        Ok(())
    }

    fn argmax_scratch(len: usize) -> usize {
        2 * dense::argmax_parts(len)
    }

    fn moe_route(&self, experts: Experts<'_, Self>) -> Result<()> {
        let params = moe_params(experts);
        // SAFETY: the buffers were checked.
        unsafe { self.launcher().dense_moe_route(self.handle(), &params)? };
        Ok(())
    }

    fn moe_sum(&self, experts: Experts<'_, Self>) -> Result<()> {
        let params = moe_params(experts);
        // SAFETY: the buffers were checked.
        unsafe { self.launcher().dense_moe_sum(self.handle(), &params)? };
        Ok(())
    }

    fn causal_conv1d_update(&self, convolution: Convolution<'_, Self>) -> Result<()> {
        let Convolution { x, out, weight, layer, header, channels, width, max_window, undecided, n } = convolution;
        let params = ConvUpdateParams {
            x: address(x, n, channels),
            weight: at_least(weight, width * channels),
            state: at_least(&layer.conv, (width - 1) * channels),
            log: at_least(&layer.conv_log, max_window * channels),
            cu_seqlens: word(header, header.cu_seqlens(n)),
            state_indices: word(header, header.state_indices()),
            num_pending: word(header, Header::<Self>::NUM_PENDING),
            out: address(out, n, channels),
            x_stride: x.stride() as i64,
            out_stride: out.stride() as i64,
            state_stride: layer.conv.len() as i64,
            channels: channels as i64,
            num_seqs: 1,
            width: width as i32,
            log_max: max_window as i32,
            silu: Switch::On,
            capture: captured(undecided),
            ..ConvUpdateParams::default()
        };
        // SAFETY: rows, weight, state and log were checked; the header holds the bounds of `n` tokens, slot 0, and at most
        // `max_window` entries pending.
        unsafe { self.launcher().causal_conv1d_update(self.handle(), &params)? };
        Ok(())
    }

    fn fused_recurrent_gated_delta_rule(&self, recurrence: Recurrence<'_, Self>) -> Result<()> {
        let Recurrence { dims, qkv, a, b, gates, out, layer, header, max_window, undecided, n } = recurrence;
        let (heads, keys, values) = (dims.num_v_heads(), dims.key_dim(), dims.value_dim());
        let [first_k, first_decay, first_delta, log_len] = GdnState::<Self>::log_parts(dims, max_window);
        let log = at_least(&layer.log, log_len);
        let [log_k, log_decay, log_delta] = [first_k, first_decay, first_delta].map(|first| log + 4 * first as u64);
        let a_log = at_least(gates, 2 * heads);
        let params = RecurrentParams {
            q: address(qkv, n, keys),
            k: address(qkv.columns(keys), n, keys),
            v: address(qkv.columns(2 * keys), n, values),
            decay: address(a, n, heads),
            beta: address(b, n, heads),
            a_log,
            dt_bias: a_log + 4 * heads as u64,
            out: address(out, n, values),
            state: at_least(&layer.state, dims.state_len()),
            cu_seqlens: word(header, header.cu_seqlens(n)),
            state_indices: word(header, header.state_indices()),
            pending_k: log_k,
            pending_decay: log_decay,
            pending_delta: log_delta,
            pending_slots: word(header, Header::<Self>::PENDING_SLOT),
            num_pending: word(header, Header::<Self>::NUM_PENDING),
            log_k,
            log_decay,
            log_delta,
            log_slots: word(header, Header::<Self>::LOG_SLOT),
            q_stride: qkv.stride() as i64,
            k_stride: qkv.stride() as i64,
            v_stride: qkv.stride() as i64,
            decay_stride: a.stride() as i64,
            beta_stride: b.stride() as i64,
            out_stride: out.stride() as i64,
            pending_max: max_window as i32,
            log_max: max_window as i32,
            max_window: n.max(1) as i32,
            max_pending: max_window as i32,
            decay_form: DecayForm::Gate,
            beta_is_logit: Switch::On,
            l2_norm: Switch::On,
            eps: 1e-6,
            capture: captured(undecided),
            ..RecurrentParams::new(dims, 1)
        };
        // SAFETY: as above; entries pending lie in one slot of the logs, and the window's go into the other.
        unsafe { self.launcher().fused_recurrent_gated_delta_rule(self.handle(), &params, Elements::F32)? };
        Ok(())
    }

    fn rms_norm_gated(&self, norm: NormGated<'_, Self>) -> Result<()> {
        let NormGated { x, z, weight, out, num_heads, head_dim, eps, n } = norm;
        let len = num_heads * head_dim;
        let params = NormParams {
            x: address(x, n, len),
            z: address(z, n, len),
            weight: at_least(weight, head_dim),
            out: address(out, n, len),
            x_stride: x.stride() as i64,
            z_stride: z.stride() as i64,
            out_stride: out.stride() as i64,
            num_rows: n as i64,
            num_heads: num_heads as i32,
            head_dim: head_dim as i32,
            eps,
            ..NormParams::default()
        };
        // SAFETY: rows were checked; the weight has an element for each of a head's.
        unsafe { self.launcher().rms_norm_gated(self.handle(), &params)? };
        Ok(())
    }
}

/// Of buffers that were checked.
fn moe_params(experts: Experts<'_, CudaGpu>) -> MoeParams {
    experts.check();
    MoeParams {
        logits: experts.logits.address(),
        experts: experts.chosen.address(),
        weights: experts.weights.address(),
        results: experts.results.address(),
        shared: experts.shared.address(),
        out: experts.out.address(),
        len: experts.hidden_size as i64,
        num_tokens: experts.n as i32,
        num_experts: experts.num_experts as i32,
        top_k: experts.top_k as i32,
        norm_topk_prob: experts.norm_topk_prob.into(),
    }
}
