//! Metal as the runner's device: launches whose lengths are checked against the buffers that they are given, all on one queue.

use std::marker::PhantomData;
use std::sync::Arc;

use undraft::Device;
use undraft::metal::Result as MetalResult;
use undraft::metal::dense::{
    self, ArgmaxParams, AttentionParams, DenseNormParams, EmbedParams, LinearParams, MoeParams, RotateParams,
    SiluMulParams,
};
use undraft::metal::raw::{
    Captured, ConvUpdateParams, DecayForm, Elements, EncoderHandle, Launcher, NormParams, RecurrentParams, Slice,
    Switch,
};

use super::queue::{Held, Queue, Recorded};
use crate::error::Result;
use crate::gpu::{
    ArgMax, Attention, Convolution, Element, ExpertProducts, Experts, GdnState, Gpu, Header, Ids, Matrix, Memory, Norm,
    NormGated, Parts, Recurrence, Rotation, Rows, expect_len,
};

/// A Metal device that was opened, its queue and its kernels.
#[derive(Clone, Debug)]
pub struct MetalGpu(Arc<Queue>);

/// Elements in memory that host and device share.
#[derive(Debug)]
pub struct MetalBuffer<T> {
    memory: Held,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Element> MetalBuffer<T> {
    /// From an element on, which was checked to lie in it.
    fn from(&self, element: usize) -> Slice {
        self.memory.slice().skip(element * size_of::<T>())
    }
}

impl<T: Element> Memory for MetalBuffer<T> {
    fn len(&self) -> usize {
        self.len
    }
}

/// Matrices in memory that host and device share.
#[derive(Debug)]
pub struct MetalWeights {
    memory: Held,
    elements: Elements,
}

impl MetalGpu {
    fn add(&self, call: impl Fn(&Launcher, EncoderHandle) -> MetalResult<()> + Send + Sync + 'static) -> Result<()> {
        Ok(self.0.add(call)?)
    }
}

/// Rows, once `n` of `len` elements are known to lie in their buffer.
fn rows(rows: Rows<'_, MetalGpu>, n: usize, len: usize) -> Slice {
    rows.buffer().from(rows.offset(n, len))
}

/// A buffer of at least `len` elements.
fn at_least<T: Element>(buffer: &MetalBuffer<T>, len: usize) -> Slice {
    expect_len(buffer, len);
    buffer.memory.slice()
}

/// `n` ids.
fn ids(ids: Ids<'_, MetalGpu>, n: usize) -> Slice {
    ids.buffer().from(ids.offset(n))
}

/// A word of a header, and those behind it.
fn word(header: &Header<MetalGpu>, index: usize) -> Slice {
    header.words().from(index)
}

fn captured(undecided: bool) -> Captured {
    if undecided { Captured::DeltaLog } else { Captured::Final }
}

impl Gpu for MetalGpu {
    const NAME: &'static str = "metal";
    const EXPECTED: &'static str = "a Metal device";
    const MAX_TOP_K: usize = dense::MAX_TOP_K;

    type Buffer<T: Element> = MetalBuffer<T>;
    type Weights = MetalWeights;
    type Recording = Recorded;

    fn of(device: &Device) -> Option<Self> {
        device.metal_backend().map(|backend| Self(Arc::new(Queue::new(backend.launcher().clone()))))
    }

    fn uninit<T: Element>(&self, len: usize) -> Result<MetalBuffer<T>> {
        let memory = Held::new(&self.0, len.saturating_mul(size_of::<T>()))?;
        Ok(MetalBuffer { memory, len, elements: PhantomData })
    }
    fn zeroed<T: Element>(&self, len: usize) -> Result<MetalBuffer<T>> {
        let mut buffer = self.uninit(len)?;
        self.clear(&mut buffer)?;
        Ok(buffer)
    }
    fn copy_of<T: Element>(&self, from: &[T]) -> Result<MetalBuffer<T>> {
        let mut buffer = self.uninit(from.len())?;
        buffer.memory.fill(0, bytemuck::cast_slice(from))?;
        Ok(buffer)
    }
    fn upload(&self, parts: &Parts<'_>) -> Result<MetalWeights> {
        let mut memory = Held::new(&self.0, parts.memory())?;
        let mut at = 0;
        for bytes in parts.bytes() {
            memory.fill(at, bytes)?;
            at += bytes.len();
        }
        Ok(MetalWeights { memory, elements: parts.elements() })
    }
    fn write<T: Element>(&self, to: &mut MetalBuffer<T>, from: &[T]) -> Result<()> {
        let to = at_least(to, from.len());
        let words = bytemuck::cast_slice(from);
        // SAFETY: so many elements, of 4 bytes each, lie in the buffer.
        Ok(self.0.encode(|launcher, encoder| unsafe { launcher.write_words(encoder, to, words) })?)
    }
    fn clear<T: Element>(&self, buffer: &mut MetalBuffer<T>) -> Result<()> {
        let (to, len) = (buffer.memory.slice(), buffer.len as i64);
        // SAFETY: the buffer has so many elements, of 4 bytes each.
        Ok(self.0.encode(|launcher, encoder| unsafe { launcher.clear_words(encoder, to, len) })?)
    }
    fn read<T: Element>(&self, from: &MetalBuffer<T>, to: &mut [T]) -> Result<()> {
        Ok(from.memory.read(bytemuck::cast_slice_mut(to))?)
    }
    fn synchronize(&self) -> Result<()> {
        Ok(self.0.finish(|| Ok(()))?)
    }

    fn record(&self, work: impl FnOnce() -> Result<()>) -> Result<Recorded> {
        self.0.record(work)
    }
    unsafe fn replay(&self, recording: &Recorded) -> Result<()> {
        Ok(self.0.replay(recording)?)
    }

    fn embed(&self, table: &Matrix<Self>, tokens: Ids<'_, Self>, out: Rows<'_, Self>, n: usize) -> Result<()> {
        let len = table.in_features();
        assert_eq!(out.stride(), len, "rows of an embedding lie one behind the other");
        let params = EmbedParams {
            table: table.data().memory.slice(),
            tokens: ids(tokens, n),
            out: rows(out, n, len),
            len: len as i64,
            num_tokens: n as i32,
            vocab_size: table.out_features() as i32,
            dtype: table.data().elements,
        };
        // SAFETY: the table has the sizes that it says; ids and rows were checked.
        self.add(move |launcher, encoder| unsafe { launcher.dense_embed(encoder, &params) })
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
            x: rows(x, n, len),
            delta: delta.map_or(Slice::NONE, |delta| rows(delta, n, len)),
            factor: norm.factor().from(0),
            out: rows(out, n, len),
            x_stride: x.stride() as i64,
            delta_stride: delta.map_or(0, |delta| delta.stride() as i64),
            out_stride: out.stride() as i64,
            num_rows: n as i32,
            len: len as i32,
            eps: norm.eps(),
        };
        // SAFETY: all rows were checked to lie in their buffers.
        self.add(move |launcher, encoder| unsafe { launcher.dense_rms_norm(encoder, &params) })
    }

    fn linear(&self, weight: &Matrix<Self>, x: Rows<'_, Self>, y: Rows<'_, Self>, n: usize) -> Result<()> {
        let (in_features, out_features) = (weight.in_features(), weight.out_features());
        let start = x.offset(n, in_features);
        assert!(start.is_multiple_of(4) && x.stride().is_multiple_of(4), "rows are not aligned to 16 bytes");
        let params = LinearParams {
            weight: weight.data().memory.slice(),
            x: rows(x, n, in_features),
            experts: Slice::NONE,
            y: rows(y, n, out_features),
            x_stride: x.stride() as i64,
            y_stride: y.stride() as i64,
            expert_stride: 0,
            num_rows: n as i32,
            in_features: in_features as i32,
            out_features: out_features as i32,
            rows_per_x: 1,
        };
        let elements = weight.data().elements;
        // SAFETY: the weight has the sizes that it says, a multiple of 4 columns; rows were checked to lie in their buffers, and
        // to be aligned.
        self.add(move |launcher, encoder| unsafe { launcher.dense_linear(encoder, &params, elements) })
    }

    fn linear_of_experts(&self, products: ExpertProducts<'_, Self>) -> Result<()> {
        let ExpertProducts { weight, experts, x, rows_per_x, y, n } = products;
        let (in_features, out_features) = (weight.in_features(), weight.out_features());
        let params = LinearParams {
            weight: weight.data().memory.slice(),
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
        let elements = weight.data().elements;
        // SAFETY: as for `linear`; the numbers of experts were written by a route over as many matrices as there are.
        self.add(move |launcher, encoder| unsafe { launcher.dense_linear(encoder, &params, elements) })
    }

    fn silu_mul(&self, gate_up: &MetalBuffer<f32>, out: &MetalBuffer<f32>, n: usize, len: usize) -> Result<()> {
        let params = SiluMulParams {
            gate_up: at_least(gate_up, 2 * n * len),
            out: at_least(out, n * len),
            len: len as i64,
            num_rows: n as i32,
        };
        // SAFETY: both buffers were checked.
        self.add(move |launcher, encoder| unsafe { launcher.dense_silu_mul(encoder, &params) })
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
        self.add(move |launcher, encoder| unsafe { launcher.dense_rotate(encoder, &params) })
    }

    fn attention(&self, attention: Attention<'_, Self>) -> Result<()> {
        let Attention { sizes, place, query, joint, out, kv, scratch, n } = attention;
        let head_dim = sizes.head_dim;
        let parts = n * sizes.num_heads * Self::attention_scratch(place.capacity, head_dim);
        let params = AttentionParams {
            query: rows(query, n, sizes.queries()),
            keys: at_least(&kv.keys, place.capacity * sizes.keys()),
            values: at_least(&kv.values, place.capacity * sizes.keys()),
            len_held: word(place.header, Header::<Self>::LEN),
            parts: at_least(scratch, parts),
            // The gate of a head lies behind its query.
            gate: rows(joint.columns(head_dim), n, 2 * sizes.queries() - head_dim),
            out: rows(out, n, sizes.queries()),
            gate_stride: joint.stride() as i64,
            num_tokens: n as i32,
            num_heads: sizes.num_heads as i32,
            num_kv_heads: sizes.num_kv_heads as i32,
            head_dim: head_dim as i32,
            num_segments: dense::attention_segments(place.capacity) as i32,
            offset: place.offset as i32,
        };
        // SAFETY: as for `rotate`; the segments are those of the capacity.
        self.add(move |launcher, encoder| unsafe { launcher.dense_attention(encoder, &params) })
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
        // SAFETY: the buffers were checked.
        self.add(move |launcher, encoder| unsafe { launcher.dense_argmax(encoder, &params) })
    }

    fn argmax_scratch(len: usize) -> usize {
        2 * dense::argmax_parts(len)
    }

    fn moe_route(&self, experts: Experts<'_, Self>) -> Result<()> {
        let params = moe_params(experts);
        // SAFETY: the buffers were checked.
        self.add(move |launcher, encoder| unsafe { launcher.dense_moe_route(encoder, &params) })
    }

    fn moe_sum(&self, experts: Experts<'_, Self>) -> Result<()> {
        let params = moe_params(experts);
        // SAFETY: the buffers were checked.
        self.add(move |launcher, encoder| unsafe { launcher.dense_moe_sum(encoder, &params) })
    }

    fn causal_conv1d_update(&self, convolution: Convolution<'_, Self>) -> Result<()> {
        let Convolution { x, out, weight, layer, header, channels, width, max_window, undecided, n } = convolution;
        let params = ConvUpdateParams {
            x: rows(x, n, channels),
            weight: at_least(weight, width * channels),
            state: at_least(&layer.conv, (width - 1) * channels),
            log: at_least(&layer.conv_log, max_window * channels),
            cu_seqlens: word(header, header.cu_seqlens(n)),
            state_indices: word(header, header.state_indices()),
            num_pending: word(header, Header::<Self>::NUM_PENDING),
            out: rows(out, n, channels),
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
        self.add(move |launcher, encoder| unsafe { launcher.causal_conv1d_update(encoder, &params) })
    }

    fn fused_recurrent_gated_delta_rule(&self, recurrence: Recurrence<'_, Self>) -> Result<()> {
        let Recurrence { dims, qkv, a, b, gates, out, layer, header, max_window, undecided, n } = recurrence;
        let (heads, keys, values) = (dims.num_v_heads(), dims.key_dim(), dims.value_dim());
        let [first_k, first_decay, first_delta, log_len] = GdnState::<Self>::log_parts(dims, max_window);
        expect_len(&layer.log, log_len);
        let [log_k, log_decay, log_delta] = [first_k, first_decay, first_delta].map(|first| layer.log.from(first));
        expect_len(gates, 2 * heads);
        let params = RecurrentParams {
            q: rows(qkv, n, keys),
            k: rows(qkv.columns(keys), n, keys),
            v: rows(qkv.columns(2 * keys), n, values),
            decay: rows(a, n, heads),
            beta: rows(b, n, heads),
            a_log: gates.from(0),
            dt_bias: gates.from(heads),
            out: rows(out, n, values),
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
            longest: n.max(max_window) as i32,
            decay_form: DecayForm::Gate,
            beta_is_logit: Switch::On,
            l2_norm: Switch::On,
            eps: 1e-6,
            capture: captured(undecided),
            ..RecurrentParams::new(dims, 1)
        };
        // SAFETY: as above; entries pending lie in one slot of the logs, and the window's go into the other.
        self.add(move |launcher, encoder| unsafe {
            launcher.fused_recurrent_gated_delta_rule(encoder, &params, Elements::F32)
        })
    }

    fn rms_norm_gated(&self, norm: NormGated<'_, Self>) -> Result<()> {
        let NormGated { x, z, weight, out, num_heads, head_dim, eps, n } = norm;
        let len = num_heads * head_dim;
        let params = NormParams {
            x: rows(x, n, len),
            z: rows(z, n, len),
            weight: at_least(weight, head_dim),
            out: rows(out, n, len),
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
        self.add(move |launcher, encoder| unsafe { launcher.rms_norm_gated(encoder, &params) })
    }
}

/// Of buffers that were checked.
fn moe_params(experts: Experts<'_, MetalGpu>) -> MoeParams {
    experts.check();
    MoeParams {
        logits: experts.logits.from(0),
        experts: experts.chosen.from(0),
        weights: experts.weights.from(0),
        results: experts.results.from(0),
        shared: experts.shared.from(0),
        out: experts.out.from(0),
        len: experts.hidden_size as i64,
        num_tokens: experts.n as i32,
        num_experts: experts.num_experts as i32,
        top_k: experts.top_k as i32,
        norm_topk_prob: experts.norm_topk_prob.into(),
    }
}
