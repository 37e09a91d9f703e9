//! wgpu as the runner's device.

use std::marker::PhantomData;
use std::sync::Arc;

use undraft::wgpu::dense::{
    self, ArgmaxBuffers, ArgmaxParams, AttentionBuffers, AttentionParams, DenseNormBuffers, DenseNormParams,
    EmbedBuffers, EmbedParams, LinearBuffers, LinearParams, MoeBuffers, MoeParams, RotateBuffers, RotateParams,
    SiluMulBuffers, SiluMulParams,
};
use undraft::wgpu::raw::{
    Captured, ConvBuffers, ConvParams, DecayForm, Elements, NormBuffers, NormParams, RecurrentBuffers, RecurrentParams,
};
use undraft::wgpu::{Batch, Binding, Device, Recorded, WgpuError, wgpu};
use undraft::{ConvDims, DType, DecayShape};

use super::queue::Queue;
use crate::error::Result;
use crate::gpu::{
    ArgMax, Attention, Convolution, Element, ExpertProducts, Experts, GdnState, Gpu, Header, Ids, Matrix, Memory, Norm,
    NormGated, Parts, Recurrence, Rotation, Rows, expect_len,
};

/// An adapter that was opened, and the dispatches that wait for it.
#[derive(Clone, Debug)]
pub struct WgpuGpu(Arc<Queue>);

/// Elements in memory of the adapter.
#[derive(Debug)]
pub struct WgpuBuffer<T> {
    buffer: wgpu::Buffer,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Element> Memory for WgpuBuffer<T> {
    fn len(&self) -> usize {
        self.len
    }
}

/// Matrices in memory of the adapter.
#[derive(Debug)]
pub struct WgpuWeights {
    buffer: wgpu::Buffer,
    dtype: Elements,
}

impl WgpuGpu {
    fn device(&self) -> &Device {
        self.0.device()
    }

    /// A buffer of zeros. Kernels count elements, and bytes of a binding, in 32 bits.
    fn buffer(&self, bytes: usize) -> Result<wgpu::Buffer> {
        match u32::try_from(bytes) {
            Ok(bytes) => Ok(self.device().buffer("undraft", bytes.into())?),
            Err(_) => Err(WgpuError::TooLarge { arg: "bytes of a buffer", got: bytes as u64 })?,
        }
    }

    fn add(&self, add: impl FnOnce(&mut Batch<'static>) -> undraft::wgpu::Result<()>) -> Result<()> {
        Ok(self.0.add(add)?)
    }
}

/// All of a buffer of at least `len` elements.
fn at_least<T: Element>(buffer: &WgpuBuffer<T>, len: usize) -> Binding<'_> {
    expect_len(buffer, len);
    (&buffer.buffer).into()
}

/// The buffer of rows, and their first element in it.
fn rows<'a>(rows: Rows<'a, WgpuGpu>, n: usize, len: usize) -> (Binding<'a>, u32) {
    ((&rows.buffer().buffer).into(), rows.offset(n, len) as u32)
}

/// The buffer of ids, and the first one in it.
fn ids<'a>(ids: Ids<'a, WgpuGpu>, n: usize) -> (Binding<'a>, u32) {
    ((&ids.buffer().buffer).into(), ids.offset(n) as u32)
}

fn captured(undecided: bool) -> u32 {
    if undecided { Captured::DeltaLog.word() } else { Captured::Final.word() }
}

fn words(header: &Header<WgpuGpu>) -> Binding<'_> {
    (&header.words().buffer).into()
}

impl Gpu for WgpuGpu {
    const NAME: &'static str = "wgpu";
    const EXPECTED: &'static str = "an adapter of wgpu";
    const MAX_TOP_K: usize = dense::MAX_TOP_K;

    type Buffer<T: Element> = WgpuBuffer<T>;
    type Weights = WgpuWeights;
    type Recording = Recorded;

    fn of(device: &undraft::Device) -> Option<Self> {
        device.wgpu_backend().map(|backend| Self(Arc::new(Queue::new(backend.device().clone()))))
    }

    fn uninit<T: Element>(&self, len: usize) -> Result<WgpuBuffer<T>> {
        self.zeroed(len)
    }
    fn zeroed<T: Element>(&self, len: usize) -> Result<WgpuBuffer<T>> {
        let buffer = self.buffer(len.saturating_mul(size_of::<T>()))?;
        Ok(WgpuBuffer { buffer, len, elements: PhantomData })
    }
    fn copy_of<T: Element>(&self, from: &[T]) -> Result<WgpuBuffer<T>> {
        let buffer = self.zeroed(from.len())?;
        self.device().write(&buffer.buffer, 0, from)?;
        Ok(buffer)
    }
    fn upload(&self, parts: &Parts<'_>) -> Result<WgpuWeights> {
        let buffer = self.buffer(parts.memory())?;
        let mut at = 0;
        for bytes in parts.bytes() {
            self.device().write(&buffer, at, bytes)?;
            at += bytes.len() as u64;
        }
        // What was written is held on the host until something is submitted.
        self.synchronize()?;
        Ok(WgpuWeights { buffer, dtype: parts.elements() })
    }
    fn write<T: Element>(&self, to: &mut WgpuBuffer<T>, from: &[T]) -> Result<()> {
        self.0.flush()?;
        Ok(self.device().write(&to.buffer, 0, from)?)
    }
    fn clear<T: Element>(&self, buffer: &mut WgpuBuffer<T>) -> Result<()> {
        self.0.flush()?;
        let mut encoder = self.device().wgpu().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.clear_buffer(&buffer.buffer, 0, None);
        self.device().queue().submit([encoder.finish()]);
        Ok(())
    }
    fn read<T: Element>(&self, from: &WgpuBuffer<T>, to: &mut [T]) -> Result<()> {
        self.0.flush()?;
        expect_len(from, to.len());
        if to.is_empty() {
            return Ok(());
        }
        let read = self.device().read(&[Binding::part(&from.buffer, 0..size_of_val(to) as u64)])?;
        bytemuck::cast_slice_mut(to).copy_from_slice(&read[0]);
        Ok(())
    }
    fn synchronize(&self) -> Result<()> {
        self.0.flush()?;
        self.device().queue().submit([]);
        Ok(self.device().wait()?)
    }

    fn record(&self, work: impl FnOnce() -> Result<()>) -> Result<Recorded> {
        self.0.record(work)
    }
    unsafe fn replay(&self, recording: &Recorded) -> Result<()> {
        self.0.flush()?;
        Ok(recording.submit()?)
    }

    fn embed(&self, table: &Matrix<Self>, tokens: Ids<'_, Self>, out: Rows<'_, Self>, n: usize) -> Result<()> {
        let len = table.in_features();
        assert_eq!(out.stride(), len, "rows of an embedding lie one behind the other");
        let (tokens, tokens_first) = ids(tokens, n);
        let (out, out_first) = rows(out, n, len);
        let params = EmbedParams {
            tokens_first,
            out_first,
            len: len as u32,
            num_tokens: n as u32,
            vocab_size: table.out_features() as u32,
            dtype: table.data().dtype.word(),
        };
        let buffers = EmbedBuffers { table: (&table.data().buffer).into(), tokens, out };
        self.add(|batch| batch.dense_embed(&buffers, &params))
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
        let (x_stride, out_stride) = (x.stride() as u32, out.stride() as u32);
        let delta_stride = delta.map_or(0, |delta| delta.stride() as u32);
        let factor = at_least(norm.factor(), len);
        let ((x, x_first), (out, out_first)) = (rows(x, n, len), rows(out, n, len));
        // Without a delta something else is bound that the kernel only reads.
        let has_delta = delta.is_some().into();
        let (delta, delta_first) = delta.map_or((factor, 0), |delta| rows(delta, n, len));
        let params = DenseNormParams {
            x_first,
            delta_first,
            out_first,
            x_stride,
            delta_stride,
            out_stride,
            has_delta,
            num_rows: n as u32,
            len: len as u32,
            eps: norm.eps(),
        };
        let buffers = DenseNormBuffers { x, delta, factor, out };
        self.add(|batch| batch.dense_rms_norm(&buffers, &params))
    }

    fn linear(&self, weight: &Matrix<Self>, x: Rows<'_, Self>, y: Rows<'_, Self>, n: usize) -> Result<()> {
        let (in_features, out_features) = (weight.in_features(), weight.out_features());
        let (x_stride, y_stride) = (x.stride() as u32, y.stride() as u32);
        let ((x, x_first), (y, y_first)) = (rows(x, n, in_features), rows(y, n, out_features));
        assert!(x_first.is_multiple_of(4) && x_stride.is_multiple_of(4), "rows are not aligned to 4 elements");
        let params = LinearParams {
            x_first,
            y_first,
            x_stride,
            y_stride,
            num_rows: n as u32,
            in_features: in_features as u32,
            out_features: out_features as u32,
            rows_per_x: 1,
            ..LinearParams::default()
        };
        let WgpuWeights { buffer, dtype } = weight.data();
        let buffers = LinearBuffers { weight: buffer.into(), x, experts: None, y };
        self.add(|batch| batch.dense_linear(&buffers, &params, *dtype))
    }

    fn linear_of_experts(&self, products: ExpertProducts<'_, Self>) -> Result<()> {
        let ExpertProducts { weight, experts, x, rows_per_x, y, n } = products;
        let (in_features, out_features) = (weight.in_features(), weight.out_features());
        let params = LinearParams {
            x_stride: in_features as u32,
            y_stride: out_features as u32,
            num_rows: n as u32,
            in_features: in_features as u32,
            out_features: out_features as u32,
            rows_per_x: rows_per_x as u32,
            ..LinearParams::default()
        };
        let WgpuWeights { buffer, dtype } = weight.data();
        let buffers = LinearBuffers {
            weight: buffer.into(),
            x: at_least(x, n / rows_per_x * in_features),
            experts: Some(at_least(experts, n)),
            y: at_least(y, n * out_features),
        };
        self.add(|batch| batch.dense_linear(&buffers, &params, *dtype))
    }

    fn silu_mul(&self, gate_up: &WgpuBuffer<f32>, out: &WgpuBuffer<f32>, n: usize, len: usize) -> Result<()> {
        let params = SiluMulParams { num_rows: n as u32, len: len as u32 };
        let buffers = SiluMulBuffers { gate_up: at_least(gate_up, 2 * n * len), out: at_least(out, n * len) };
        self.add(|batch| batch.dense_silu_mul(&buffers, &params))
    }

    fn rotate(&self, rotation: Rotation<'_, Self>) -> Result<()> {
        let Rotation { sizes, q_norm, k_norm, qkv, place, query, kv, n } = rotation;
        let params = RotateParams {
            len_at: Header::<Self>::LEN as u32,
            offset: place.offset as u32,
            num_tokens: n as u32,
            num_heads: sizes.num_heads as u32,
            num_kv_heads: sizes.num_kv_heads as u32,
            head_dim: sizes.head_dim as u32,
            rotary_dim: sizes.rotary_dim as u32,
            eps: q_norm.eps(),
            scale: (sizes.head_dim as f32).sqrt().recip(),
        };
        let buffers = RotateBuffers {
            qkv: at_least(qkv, n * sizes.row()),
            q_factor: at_least(q_norm.factor(), sizes.head_dim),
            k_factor: at_least(k_norm.factor(), sizes.head_dim),
            rope: at_least(place.rope, place.capacity * sizes.rotary_dim),
            words: words(place.header),
            query: at_least(query, n * sizes.queries()),
            keys: at_least(&kv.keys, place.capacity * sizes.keys()),
            values: at_least(&kv.values, place.capacity * sizes.keys()),
        };
        self.add(|batch| batch.dense_rotate(&buffers, &params))
    }

    fn attention(&self, attention: Attention<'_, Self>) -> Result<()> {
        let Attention { sizes, place, query, joint, out, kv, scratch, n } = attention;
        let head_dim = sizes.head_dim;
        let (query, query_first) = rows(query, n, sizes.queries());
        // The gate of a head lies behind its query.
        let (gate, gate_first) = rows(joint.columns(head_dim), n, 2 * sizes.queries() - head_dim);
        let (out, out_first) = rows(out, n, sizes.queries());
        let params = AttentionParams {
            query_first,
            gate_first,
            out_first,
            gate_stride: joint.stride() as u32,
            len_at: Header::<Self>::LEN as u32,
            offset: place.offset as u32,
            num_tokens: n as u32,
            num_heads: sizes.num_heads as u32,
            num_kv_heads: sizes.num_kv_heads as u32,
            head_dim: head_dim as u32,
            num_segments: dense::attention_segments(place.capacity) as u32,
            ..AttentionParams::default()
        };
        let parts = n * sizes.num_heads * Self::attention_scratch(place.capacity, head_dim);
        let buffers = AttentionBuffers {
            query,
            keys: at_least(&kv.keys, place.capacity * sizes.keys()),
            values: at_least(&kv.values, place.capacity * sizes.keys()),
            words: words(place.header),
            parts: at_least(scratch, parts),
            gate,
            out,
        };
        self.add(|batch| batch.dense_attention(&buffers, &params))
    }

    fn attention_scratch(capacity: usize, head_dim: usize) -> usize {
        dense::attention_segments(capacity) * (head_dim + 2)
    }

    fn argmax(&self, argmax: ArgMax<'_, Self>) -> Result<()> {
        let ArgMax { logits, len, scratch, out, n } = argmax;
        let (out, out_first) = ids(out, n);
        let num_parts = dense::argmax_parts(len) as u32;
        let params = ArgmaxParams { out_first, len: len as u32, num_rows: n as u32, num_parts };
        let parts = at_least(scratch, n * Self::argmax_scratch(len));
        let buffers = ArgmaxBuffers { x: at_least(logits, n * len), parts, out };
        self.add(|batch| batch.dense_argmax(&buffers, &params))
    }

    fn argmax_scratch(len: usize) -> usize {
        2 * dense::argmax_parts(len)
    }

    fn moe_route(&self, experts: Experts<'_, Self>) -> Result<()> {
        let (buffers, params) = moe(experts);
        self.add(|batch| batch.dense_moe_route(&buffers, &params))
    }

    fn moe_sum(&self, experts: Experts<'_, Self>) -> Result<()> {
        let (buffers, params) = moe(experts);
        self.add(|batch| batch.dense_moe_sum(&buffers, &params))
    }

    fn causal_conv1d_update(&self, convolution: Convolution<'_, Self>) -> Result<()> {
        let Convolution { x, out, weight, layer, header, channels, width, max_window, undecided, n } = convolution;
        let (x_stride, out_stride) = (x.stride() as u32, out.stride() as u32);
        let ((x, x_first), (out, out_first)) = (rows(x, n, channels), rows(out, n, channels));
        let dims = ConvDims::new(channels, width).map_err(undraft::Error::from)?;
        let params = ConvParams {
            log_max: max_window as u32,
            x_first,
            x_stride,
            out_first,
            out_stride,
            cu_seqlens: header.cu_seqlens(n) as u32,
            state_indices: header.state_indices() as u32,
            num_pending: Header::<Self>::NUM_PENDING as u32,
            silu: 1,
            capture: captured(undecided),
            ..ConvParams::new(&dims, 1)?
        };
        let buffers = ConvBuffers {
            state: at_least(&layer.conv, (width - 1) * channels),
            log: Some(at_least(&layer.conv_log, max_window * channels)),
            out,
            x,
            weight: at_least(weight, width * channels),
            bias: None,
            ints: words(header),
        };
        self.add(|batch| batch.causal_conv1d_update(&buffers, &params))
    }

    fn fused_recurrent_gated_delta_rule(&self, recurrence: Recurrence<'_, Self>) -> Result<()> {
        let Recurrence { dims, qkv, a, b, gates, out, layer, header, max_window, undecided, n } = recurrence;
        let (heads, keys, values) = (dims.num_v_heads(), dims.key_dim(), dims.value_dim());
        let [first_k, first_decay, first_delta, log_len] =
            GdnState::<Self>::log_parts(dims, max_window).map(|first| first as u32);
        let (q_stride, a_stride, b_stride) = (qkv.stride() as u32, a.stride() as u32, b.stride() as u32);
        let out_stride = out.stride() as u32;
        let (tokens, q_first) = rows(qkv, n, 2 * keys + values);
        let ((of_a, decay_first), (_, beta_first)) = (rows(a, n, heads), rows(b, n, heads));
        let (out, out_first) = rows(out, n, values);
        let params = RecurrentParams {
            out_first,
            out_stride,
            pending_k_first: first_k,
            pending_decay_first: first_decay,
            pending_delta_first: first_delta,
            pending_max: max_window as u32,
            log_k_first: first_k,
            log_decay_first: first_decay,
            log_delta_first: first_delta,
            log_max: max_window as u32,
            q_first,
            k_first: q_first + keys as u32,
            v_first: q_first + 2 * keys as u32,
            q_stride,
            k_stride: q_stride,
            v_stride: q_stride,
            decay_first,
            beta_first,
            decay_stride: a_stride,
            beta_stride: b_stride,
            dt_bias_first: heads as u32,
            cu_seqlens: header.cu_seqlens(n) as u32,
            state_indices: header.state_indices() as u32,
            num_pending: Header::<Self>::NUM_PENDING as u32,
            pending_slots: Header::<Self>::PENDING_SLOT as u32,
            log_slots: Header::<Self>::LOG_SLOT as u32,
            decay_form: DecayForm::Gate.word(),
            beta_is_logit: 1,
            l2_norm: 1,
            eps: 1e-6,
            capture: captured(undecided),
            ..RecurrentParams::new(dims, 1)?
        };
        let buffers = RecurrentBuffers {
            state: at_least(&layer.state, dims.state_len()),
            captured: None,
            out,
            log: Some(at_least(&layer.log, log_len as usize)),
            tokens,
            gates: of_a,
            weights: Some(at_least(gates, 2 * heads)),
            ints: words(header),
        };
        self.add(|batch| batch.fused_recurrent_gated_delta_rule(&buffers, &params, DType::F32, DecayShape::PerHead))
    }

    fn rms_norm_gated(&self, norm: NormGated<'_, Self>) -> Result<()> {
        let NormGated { x, z, weight, out, num_heads, head_dim, eps, n } = norm;
        let len = num_heads * head_dim;
        let (x_stride, z_stride, out_stride) = (x.stride() as u32, z.stride() as u32, out.stride() as u32);
        let ((x, x_first), (z, z_first), (out, out_first)) = (rows(x, n, len), rows(z, n, len), rows(out, n, len));
        let params = NormParams {
            x_first,
            z_first,
            out_first,
            x_stride,
            z_stride,
            out_stride,
            num_rows: n as u32,
            num_heads: num_heads as u32,
            head_dim: head_dim as u32,
            eps,
            ..NormParams::default()
        };
        let buffers = NormBuffers { x, z, weight: at_least(weight, head_dim), out };
        self.add(|batch| batch.rms_norm_gated(&buffers, &params))
    }
}

/// Of buffers that were checked.
fn moe<'a>(experts: Experts<'a, WgpuGpu>) -> (MoeBuffers<'a>, MoeParams) {
    experts.check();
    let buffers = MoeBuffers {
        logits: (&experts.logits.buffer).into(),
        experts: (&experts.chosen.buffer).into(),
        weights: (&experts.weights.buffer).into(),
        results: (&experts.results.buffer).into(),
        shared: (&experts.shared.buffer).into(),
        out: (&experts.out.buffer).into(),
    };
    let params = MoeParams {
        len: experts.hidden_size as u32,
        num_tokens: experts.n as u32,
        num_experts: experts.num_experts as u32,
        top_k: experts.top_k as u32,
        norm_topk_prob: experts.norm_topk_prob.into(),
    };
    (buffers, params)
}
