//! One block on the device: a mixer, then an MLP, each behind a norm and added to its input.

use undraft::GdnDims;

use super::args::{
    Attention as AttentionArgs, AttentionSizes, Convolution, ExpertProducts, Experts, Kv, NormGated, Place, Recurrence,
    Rotation, Rows,
};
use super::device::Gpu;
use super::weights::{Matrix, Norm};
use super::workspace::{ATTENTION_TOKENS, Workspace};
use crate::error::Result;

/// `x += mixer(input_norm(x)); x += mlp(post_norm(x))`.
#[derive(Debug)]
pub(super) struct Block<G: Gpu, M = Mixer<G>> {
    pub(super) input_norm: Norm<G>,
    pub(super) mixer: M,
    pub(super) post_norm: Norm<G>,
    pub(super) mlp: FeedForward<G>,
}

#[derive(Debug)]
pub(super) enum Mixer<G: Gpu> {
    Gdn(Box<Gdn<G>>),
    Attention(Box<Attention<G>>),
}

/// A Gated DeltaNet mixer.
#[derive(Debug)]
pub(super) struct Gdn<G: Gpu> {
    pub(super) dims: GdnDims,
    pub(super) conv_width: usize,
    /// Rows of q, k, v, then z, then b, then a.
    pub(super) in_proj: Matrix<G>,
    pub(super) out_proj: Matrix<G>,
    /// `[W, C]`.
    pub(super) conv_weight: G::Buffer<f32>,
    /// `A_log`, then `dt_bias`, `[2, HV]`.
    pub(super) gates: G::Buffer<f32>,
    /// Plain, `[V]`.
    pub(super) norm_weight: G::Buffer<f32>,
    pub(super) norm_eps: f32,
}

/// A gated full-attention mixer.
#[derive(Debug)]
pub(super) struct Attention<G: Gpu> {
    pub(super) sizes: AttentionSizes,
    /// Rows of queries with gates, then keys, then values.
    pub(super) qkv_proj: Matrix<G>,
    pub(super) o_proj: Matrix<G>,
    pub(super) q_norm: Norm<G>,
    pub(super) k_norm: Norm<G>,
}

#[derive(Debug)]
pub(super) enum FeedForward<G: Gpu> {
    Dense(Mlp<G>),
    Experts(Box<Moe<G>>),
}

/// `down(silu(gate x) * up x)`, of one or of several experts.
#[derive(Debug)]
pub(super) struct Mlp<G: Gpu> {
    /// Rows of the gate, then of what it gates.
    pub(super) gate_up: Matrix<G>,
    pub(super) down: Matrix<G>,
}

#[derive(Debug)]
pub(super) struct Moe<G: Gpu> {
    /// Rows of the experts, then that of the shared expert's gate.
    pub(super) router: Matrix<G>,
    pub(super) experts: Mlp<G>,
    pub(super) shared: Mlp<G>,
    pub(super) top_k: usize,
    pub(super) norm_topk_prob: bool,
}

/// State and logs of a Gated DeltaNet layer of one sequence.
#[derive(Debug)]
pub struct GdnState<G: Gpu> {
    /// `[HV, V, K]`.
    pub state: G::Buffer<f32>,
    /// `[W - 1, C]`.
    pub conv: G::Buffer<f32>,
    /// `[max_window, C]`.
    pub conv_log: G::Buffer<f32>,
    /// k `[2, max_window, H, K]`, decays `[2, max_window, HV]`, deltas `[2, max_window, HV, V]`, from the elements of
    /// [`GdnState::log_parts`] on.
    pub log: G::Buffer<f32>,
}

impl<G: Gpu> GdnState<G> {
    /// First elements of k, decays and deltas in the log, multiples of 4; then its length.
    pub fn log_parts(dims: &GdnDims, max_window: usize) -> [usize; 4] {
        let entries = 2 * max_window;
        let decays = (entries * dims.key_dim()).next_multiple_of(4);
        let deltas = decays + (entries * dims.num_v_heads()).next_multiple_of(4);
        [0, decays, deltas, deltas + entries * dims.value_dim()]
    }
}

/// What the parts of a pass share.
pub(super) struct Pass<'a, G: Gpu> {
    pub(super) gpu: &'a G,
    pub(super) work: &'a Workspace<G>,
    pub(super) place: Place<'a, G>,
    /// Tokens.
    pub(super) n: usize,
    /// Tokens whose values are wanted, the last ones; of the others nothing but keys and values is needed.
    pub(super) num_out: usize,
    /// Whether the window can be taken back.
    pub(super) undecided: bool,
    /// Longest window that can be taken back.
    pub(super) max_window: usize,
}

impl<G: Gpu> Clone for Pass<'_, G> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<G: Gpu> Copy for Pass<'_, G> {}

impl<G: Gpu> Block<G> {
    pub(super) fn memory(&self) -> usize {
        let mixer = match &self.mixer {
            Mixer::Gdn(gdn) => gdn.in_proj.memory() + gdn.out_proj.memory(),
            Mixer::Attention(attention) => attention.memory(),
        };
        mixer + self.mlp.memory()
    }
}

impl<G: Gpu> Gdn<G> {
    /// From `work.h` to `work.delta`.
    pub(super) fn forward(&self, pass: Pass<'_, G>, layer: &GdnState<G>) -> Result<()> {
        let Pass { gpu, work, n, .. } = pass;
        let (channels, heads, values) = (self.dims.conv_dim(), self.dims.num_v_heads(), self.dims.value_dim());
        let hidden_size = self.out_proj.out_features();
        let row = self.in_proj.out_features();
        let wide = Rows::new(&work.wide, row);
        gpu.linear(&self.in_proj, Rows::new(&work.h, hidden_size), wide, n)?;
        self.recur(pass, layer)?;
        let inner = Rows::new(&work.inner, values);
        gpu.rms_norm_gated(NormGated {
            x: Rows::new(&work.o, values),
            z: wide.columns(channels),
            weight: &self.norm_weight,
            out: inner,
            num_heads: heads,
            head_dim: self.dims.head_v_dim(),
            eps: self.norm_eps,
            n,
        })?;
        gpu.linear(&self.out_proj, inner, Rows::new(&work.delta, hidden_size), n)
    }

    /// Convolution and recurrence, from `work.wide` to `work.o`. Without tokens what is pending is settled and no more.
    pub(super) fn recur(&self, pass: Pass<'_, G>, layer: &GdnState<G>) -> Result<()> {
        let Pass { gpu, work, n, max_window, undecided, .. } = pass;
        let (header, dims) = (pass.place.header, &self.dims);
        let (channels, heads, values) = (dims.conv_dim(), dims.num_v_heads(), dims.value_dim());
        let wide = Rows::new(&work.wide, self.in_proj.out_features());
        let mixed = Rows::new(&work.mixed, channels);
        gpu.causal_conv1d_update(Convolution {
            x: wide,
            out: mixed,
            weight: &self.conv_weight,
            layer,
            header,
            channels,
            width: self.conv_width,
            max_window,
            undecided,
            n,
        })?;
        gpu.fused_recurrent_gated_delta_rule(Recurrence {
            dims,
            qkv: mixed,
            a: wide.columns(channels + values + heads),
            b: wide.columns(channels + values),
            gates: &self.gates,
            out: Rows::new(&work.o, values),
            layer,
            header,
            max_window,
            undecided,
            n,
        })
    }
}

impl<G: Gpu> Attention<G> {
    /// From `work.h` `[n, H]` to `work.delta` `[num_out, H]`.
    pub(super) fn forward(&self, pass: Pass<'_, G>, kv: &Kv<G>) -> Result<()> {
        let Pass { gpu, work, place, n, num_out, .. } = pass;
        let sizes = self.sizes;
        let hidden_size = self.o_proj.out_features();
        let wide = Rows::new(&work.wide, sizes.row());
        gpu.linear(&self.qkv_proj, Rows::new(&work.h, hidden_size), wide, n)?;
        gpu.rotate(Rotation {
            sizes,
            q_norm: &self.q_norm,
            k_norm: &self.k_norm,
            qkv: &work.wide,
            place,
            query: &work.mixed,
            kv,
            n,
        })?;
        let (query, inner) = (Rows::new(&work.mixed, sizes.queries()), Rows::new(&work.inner, sizes.queries()));
        let skipped = n - num_out;
        for first in (skipped..n).step_by(ATTENTION_TOKENS) {
            let place = Place { offset: place.offset + first, ..place };
            gpu.attention(AttentionArgs {
                sizes,
                place,
                query: query.rows(first),
                joint: wide.rows(first),
                out: inner.rows(first - skipped),
                kv,
                scratch: &work.attention_scratch,
                n: (n - first).min(ATTENTION_TOKENS),
            })?;
        }
        gpu.linear(&self.o_proj, inner, Rows::new(&work.delta, hidden_size), num_out)
    }

    pub(super) fn memory(&self) -> usize {
        self.qkv_proj.memory() + self.o_proj.memory()
    }
}

impl<G: Gpu> FeedForward<G> {
    /// From `work.h` to `work.delta`, `[n, H]` each.
    pub(super) fn forward(&self, pass: Pass<'_, G>, n: usize) -> Result<()> {
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

impl<G: Gpu> Mlp<G> {
    fn forward(&self, pass: Pass<'_, G>, out: &G::Buffer<f32>, n: usize) -> Result<()> {
        let Pass { gpu, work, .. } = pass;
        let (hidden_size, inner) = (self.down.out_features(), self.down.in_features());
        gpu.linear(&self.gate_up, Rows::new(&work.h, hidden_size), Rows::new(&work.wide, 2 * inner), n)?;
        gpu.silu_mul(&work.wide, &work.inner, n, inner)?;
        gpu.linear(&self.down, Rows::new(&work.inner, inner), Rows::new(out, hidden_size), n)
    }

    fn memory(&self) -> usize {
        self.gate_up.memory() + self.down.memory()
    }
}

impl<G: Gpu> Moe<G> {
    fn forward(&self, pass: Pass<'_, G>, n: usize) -> Result<()> {
        let Pass { gpu, work, .. } = pass;
        let Some(space) = &work.experts else { return Ok(()) };
        let (hidden_size, inner) = (self.experts.down.out_features(), self.experts.down.in_features());
        let num_experts = self.experts.down.num_matrices();
        gpu.linear(&self.router, Rows::new(&work.h, hidden_size), Rows::new(&space.logits, num_experts + 1), n)?;
        let experts = Experts {
            logits: &space.logits,
            chosen: &space.chosen,
            weights: &space.weights,
            results: &space.results,
            shared: &space.shared,
            out: &work.delta,
            hidden_size,
            num_experts,
            top_k: self.top_k,
            norm_topk_prob: self.norm_topk_prob,
            n,
        };
        gpu.moe_route(experts)?;
        let chosen = n * self.top_k;
        let products = |weight, x, rows_per_x, y| {
            gpu.linear_of_experts(ExpertProducts { weight, experts: &space.chosen, x, rows_per_x, y, n: chosen })
        };
        products(&self.experts.gate_up, &work.h, self.top_k, &space.gate_up)?;
        gpu.silu_mul(&space.gate_up, &space.inner, chosen, inner)?;
        products(&self.experts.down, &space.inner, 1, &space.results)?;
        self.shared.forward(pass, &space.shared, n)?;
        gpu.moe_sum(experts)
    }
}
