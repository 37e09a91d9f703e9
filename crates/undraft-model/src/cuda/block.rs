//! One block on the device: a mixer, then an MLP, each behind a norm and added to its input.

use undraft::GdnDims;
use undraft::cuda::DeviceBuffer;
use undraft::cuda::dense::MoeParams;
use undraft::cuda::raw::{Captured, ConvUpdateParams, DecayForm, NormParams, RecurrentParams, Switch};

use super::ops::{AttentionSizes, Gpu, Kv, Place, Result, Rows};
use super::weights::{Matrix, Norm};
use super::workspace::{ATTENTION_TOKENS, Workspace};

/// `x += mixer(input_norm(x)); x += mlp(post_norm(x))`.
#[derive(Debug)]
pub(super) struct Block<M = Mixer> {
    pub(super) input_norm: Norm,
    pub(super) mixer: M,
    pub(super) post_norm: Norm,
    pub(super) mlp: FeedForward,
}

#[derive(Debug)]
pub(super) enum Mixer {
    Gdn(Box<Gdn>),
    Attention(Box<Attention>),
}

/// A Gated DeltaNet mixer.
#[derive(Debug)]
pub(super) struct Gdn {
    pub(super) dims: GdnDims,
    pub(super) conv_width: usize,
    /// Rows of q, k, v, then z, then b, then a.
    pub(super) in_proj: Matrix,
    pub(super) out_proj: Matrix,
    /// `[W, C]`.
    pub(super) conv_weight: DeviceBuffer<f32>,
    pub(super) a_log: DeviceBuffer<f32>,
    pub(super) dt_bias: DeviceBuffer<f32>,
    /// Plain, `[V]`.
    pub(super) norm_weight: DeviceBuffer<f32>,
    pub(super) norm_eps: f32,
}

/// A gated full-attention mixer.
#[derive(Debug)]
pub(super) struct Attention {
    pub(super) sizes: AttentionSizes,
    /// Rows of queries with gates, then keys, then values.
    pub(super) qkv_proj: Matrix,
    pub(super) o_proj: Matrix,
    pub(super) q_norm: Norm,
    pub(super) k_norm: Norm,
}

#[derive(Debug)]
pub(super) enum FeedForward {
    Dense(Mlp),
    Experts(Box<Moe>),
}

/// `down(silu(gate x) * up x)`, of one or of several experts.
#[derive(Debug)]
pub(super) struct Mlp {
    /// Rows of the gate, then of what it gates.
    pub(super) gate_up: Matrix,
    pub(super) down: Matrix,
}

#[derive(Debug)]
pub(super) struct Moe {
    /// Rows of the experts, then that of the shared expert's gate.
    pub(super) router: Matrix,
    pub(super) experts: Mlp,
    pub(super) shared: Mlp,
    pub(super) top_k: usize,
    pub(super) norm_topk_prob: bool,
}

/// State and logs of a Gated DeltaNet layer of one sequence.
#[derive(Debug)]
pub(super) struct GdnState {
    /// `[HV, V, K]`.
    pub(super) state: DeviceBuffer<f32>,
    /// `[W - 1, C]`.
    pub(super) conv: DeviceBuffer<f32>,
    /// `[max_window, C]`.
    pub(super) conv_log: DeviceBuffer<f32>,
    /// `[2, max_window, H, K]`.
    pub(super) log_k: DeviceBuffer<f32>,
    /// `[2, max_window, HV]`.
    pub(super) log_decay: DeviceBuffer<f32>,
    /// `[2, max_window, HV, V]`.
    pub(super) log_delta: DeviceBuffer<f32>,
}

/// What the parts of a pass share.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) work: &'a Workspace,
    pub(super) place: Place<'a>,
    /// Tokens.
    pub(super) n: usize,
    /// Tokens whose values are wanted, the last ones; of the others nothing but keys and values is needed.
    pub(super) num_out: usize,
    /// Whether the window can be taken back.
    pub(super) undecided: bool,
    /// Longest window that can be taken back.
    pub(super) max_window: usize,
}

impl Block<Mixer> {
    pub(super) fn memory(&self) -> usize {
        let mixer = match &self.mixer {
            Mixer::Gdn(gdn) => gdn.in_proj.memory() + gdn.out_proj.memory(),
            Mixer::Attention(attention) => attention.memory(),
        };
        mixer + self.mlp.memory()
    }
}

impl Gdn {
    /// From `work.h` to `work.delta`.
    pub(super) fn forward(&self, pass: Pass<'_>, layer: &GdnState) -> Result {
        let Pass { gpu, work, n, .. } = pass;
        let (channels, heads, values) = (self.dims.conv_dim(), self.dims.num_v_heads(), self.dims.value_dim());
        let hidden_size = self.out_proj.out_features;
        let row = self.in_proj.out_features;
        let wide = Rows::new(&work.wide, row);
        gpu.linear(&self.in_proj, Rows::new(&work.h, hidden_size), wide, n)?;
        self.recur(pass, layer)?;
        let inner = Rows::new(&work.inner, values);
        let params = NormParams {
            x: Rows::new(&work.o, values).address(n, values),
            z: wide.columns(channels).address(n, values),
            weight: self.norm_weight.address(),
            out: inner.address(n, values),
            x_stride: values as i64,
            z_stride: row as i64,
            out_stride: values as i64,
            num_rows: n as i64,
            num_heads: heads as i32,
            head_dim: self.dims.head_v_dim() as i32,
            eps: self.norm_eps,
            ..NormParams::default()
        };
        // SAFETY: rows of the workspace were checked; the weight has an element for each of a head's.
        unsafe { gpu.norm_gated(&params)? };
        gpu.linear(&self.out_proj, inner, Rows::new(&work.delta, hidden_size), n)
    }

    /// Convolution and recurrence, from `work.wide` to `work.o`. Without tokens what is pending is settled and no more.
    pub(super) fn recur(&self, pass: Pass<'_>, layer: &GdnState) -> Result {
        let Pass { gpu, work, n, max_window, .. } = pass;
        let (header, dims) = (pass.place.header, &self.dims);
        let (channels, heads, values) = (dims.conv_dim(), dims.num_v_heads(), dims.value_dim());
        let row = self.in_proj.out_features;
        let (wide, mixed) = (Rows::new(&work.wide, row), Rows::new(&work.mixed, channels));
        let capture = if pass.undecided { Captured::DeltaLog } else { Captured::Final };
        let conv = ConvUpdateParams {
            x: wide.address(n, channels),
            weight: self.conv_weight.address(),
            state: layer.conv.address(),
            log: layer.conv_log.address(),
            cu_seqlens: header.cu_seqlens(n),
            state_indices: header.state_indices(),
            num_pending: header.num_pending(),
            out: mixed.address(n, channels),
            x_stride: row as i64,
            out_stride: channels as i64,
            state_stride: layer.conv.len() as i64,
            channels: channels as i64,
            num_seqs: 1,
            width: self.conv_width as i32,
            log_max: max_window as i32,
            silu: Switch::On,
            capture,
            ..ConvUpdateParams::default()
        };
        // SAFETY: rows of the workspace were checked; weight, state and log were made for the layer's sizes and `max_window`
        // tokens; the header holds the bounds of `n` tokens, slot 0, and at most `max_window` entries pending.
        unsafe { gpu.conv(&conv)? };
        let recurrent = RecurrentParams {
            q: mixed.address(n, dims.key_dim()),
            k: mixed.columns(dims.key_dim()).address(n, dims.key_dim()),
            v: mixed.columns(2 * dims.key_dim()).address(n, values),
            decay: wide.columns(channels + values + heads).address(n, heads),
            beta: wide.columns(channels + values).address(n, heads),
            a_log: self.a_log.address(),
            dt_bias: self.dt_bias.address(),
            out: Rows::new(&work.o, values).address(n, values),
            state: layer.state.address(),
            cu_seqlens: header.cu_seqlens(n),
            state_indices: header.state_indices(),
            pending_k: layer.log_k.address(),
            pending_decay: layer.log_decay.address(),
            pending_delta: layer.log_delta.address(),
            pending_slots: header.pending_slot(),
            num_pending: header.num_pending(),
            log_k: layer.log_k.address(),
            log_decay: layer.log_decay.address(),
            log_delta: layer.log_delta.address(),
            log_slots: header.log_slot(),
            q_stride: channels as i64,
            k_stride: channels as i64,
            v_stride: channels as i64,
            decay_stride: row as i64,
            beta_stride: row as i64,
            pending_max: max_window as i32,
            log_max: max_window as i32,
            max_window: n.max(1) as i32,
            max_pending: max_window as i32,
            decay_form: DecayForm::Gate,
            beta_is_logit: Switch::On,
            l2_norm: Switch::On,
            eps: 1e-6,
            capture,
            ..RecurrentParams::new(dims, 1)
        };
        // SAFETY: as above; entries pending lie in one slot of the logs, and the window's go into the other.
        unsafe { gpu.recurrent(&recurrent) }
    }
}

impl Attention {
    /// From `work.h` `[n, H]` to `work.delta` `[num_out, H]`.
    pub(super) fn forward(&self, pass: Pass<'_>, kv: &Kv) -> Result {
        let Pass { gpu, work, place, n, num_out, .. } = pass;
        let sizes = self.sizes;
        let hidden_size = self.o_proj.out_features;
        let wide = Rows::new(&work.wide, sizes.row());
        gpu.linear(&self.qkv_proj, Rows::new(&work.h, hidden_size), wide, n)?;
        gpu.rotate(sizes, (&self.q_norm, &self.k_norm), &work.wide, place, (&work.mixed, kv), n)?;
        let (query, inner) = (Rows::new(&work.mixed, sizes.queries()), Rows::new(&work.inner, sizes.queries()));
        let skipped = n - num_out;
        for first in (skipped..n).step_by(ATTENTION_TOKENS) {
            let place = Place { offset: place.offset + first, ..place };
            let tokens = (query.rows(first), wide.rows(first), inner.rows(first - skipped));
            let parts = (&work.attention_parts, work.segments);
            gpu.attend(sizes, place, tokens, kv, parts, (n - first).min(ATTENTION_TOKENS))?;
        }
        gpu.linear(&self.o_proj, inner, Rows::new(&work.delta, hidden_size), num_out)
    }

    pub(super) fn memory(&self) -> usize {
        self.qkv_proj.memory() + self.o_proj.memory()
    }
}

impl FeedForward {
    /// From `work.h` to `work.delta`, `[n, H]` each.
    pub(super) fn forward(&self, pass: Pass<'_>, n: usize) -> Result {
        match self {
            Self::Dense(mlp) => mlp.forward(pass, &pass.work.delta, n),
            Self::Experts(moe) => moe.forward(pass, n),
        }
    }

    fn memory(&self) -> usize {
        match self {
            Self::Dense(mlp) => mlp.memory(),
            Self::Experts(moe) => moe.router.memory() + moe.experts.memory() + moe.shared.memory(),
        }
    }
}

impl Mlp {
    fn forward(&self, pass: Pass<'_>, out: &DeviceBuffer<f32>, n: usize) -> Result {
        let Pass { gpu, work, .. } = pass;
        let (hidden_size, inner) = (self.down.out_features, self.down.in_features);
        gpu.linear(&self.gate_up, Rows::new(&work.h, hidden_size), Rows::new(&work.wide, 2 * inner), n)?;
        gpu.silu_mul(&work.wide, &work.inner, n, inner)?;
        gpu.linear(&self.down, Rows::new(&work.inner, inner), Rows::new(out, hidden_size), n)
    }

    fn memory(&self) -> usize {
        self.gate_up.memory() + self.down.memory()
    }
}

impl Moe {
    fn forward(&self, pass: Pass<'_>, n: usize) -> Result {
        let Pass { gpu, work, .. } = pass;
        let Some(space) = &work.experts else { return Ok(()) };
        let (hidden_size, inner) = (self.experts.down.out_features, self.experts.down.in_features);
        let num_experts = self.experts.down.num_matrices;
        gpu.linear(&self.router, Rows::new(&work.h, hidden_size), Rows::new(&space.logits, num_experts + 1), n)?;
        let params = MoeParams {
            logits: space.logits.address(),
            experts: space.chosen.address(),
            weights: space.weights.address(),
            results: space.results.address(),
            shared: space.shared.address(),
            out: work.delta.address(),
            len: hidden_size as i64,
            num_tokens: n as i32,
            num_experts: num_experts as i32,
            top_k: self.top_k as i32,
            norm_topk_prob: self.norm_topk_prob.into(),
        };
        assert!(n <= work.max_tokens, "{n} tokens in a pass");
        // SAFETY: the space was made for the model's experts and `max_tokens` tokens; so was `work.delta`.
        unsafe { gpu.moe_route(&params)? };
        let chosen = n * self.top_k;
        gpu.linear_of_experts(&self.experts.gate_up, &space.chosen, (&work.h, self.top_k), &space.gate_up, chosen)?;
        gpu.silu_mul(&space.gate_up, &space.inner, chosen, inner)?;
        gpu.linear_of_experts(&self.experts.down, &space.chosen, (&space.inner, 1), &space.results, chosen)?;
        self.shared.forward(pass, &space.shared, n)?;
        // SAFETY: as above; weights, results and gates are those of these tokens.
        unsafe { gpu.moe_sum(&params) }
    }
}
