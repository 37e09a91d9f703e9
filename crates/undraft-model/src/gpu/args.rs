//! Arguments of the operations of [`Gpu`].

use undraft::GdnDims;

use super::block::GdnState;
use super::device::{Gpu, Memory};
use super::weights::{Matrix, Norm};
use super::workspace::Header;

/// f32 rows in a buffer.
#[derive(Debug)]
pub struct Rows<'a, G: Gpu> {
    buffer: &'a G::Buffer<f32>,
    start: usize,
    stride: usize,
}

impl<G: Gpu> Clone for Rows<'_, G> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<G: Gpu> Copy for Rows<'_, G> {}

impl<'a, G: Gpu> Rows<'a, G> {
    /// Rows of `len` elements one behind the other.
    pub(crate) fn new(buffer: &'a G::Buffer<f32>, len: usize) -> Self {
        Self { buffer, start: 0, stride: len }
    }
    /// The columns from `column` on.
    pub(crate) fn columns(self, column: usize) -> Self {
        Self { start: self.start + column, ..self }
    }
    /// The rows from `row` on.
    pub(crate) fn rows(self, row: usize) -> Self {
        Self { start: self.start + row * self.stride, ..self }
    }
    /// The buffer.
    pub fn buffer(&self) -> &'a G::Buffer<f32> {
        self.buffer
    }
    /// Elements from one row to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }
    /// The first element, once `n` rows of `len` elements are known to lie in the buffer.
    pub fn offset(&self, n: usize, len: usize) -> usize {
        let end = if n == 0 { self.start } else { self.start + (n - 1) * self.stride + len };
        assert!(end <= self.buffer.len(), "rows end at {end}, expected at most {}", self.buffer.len());
        self.start
    }
}

/// Token ids in a buffer.
#[derive(Debug)]
pub struct Ids<'a, G: Gpu> {
    buffer: &'a G::Buffer<u32>,
    start: usize,
}

impl<G: Gpu> Clone for Ids<'_, G> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<G: Gpu> Copy for Ids<'_, G> {}

impl<'a, G: Gpu> Ids<'a, G> {
    /// Those from element `start` on.
    pub(crate) fn new(buffer: &'a G::Buffer<u32>, start: usize) -> Self {
        Self { buffer, start }
    }
    /// The buffer.
    pub fn buffer(&self) -> &'a G::Buffer<u32> {
        self.buffer
    }
    /// The first element, once `n` are known to lie in the buffer.
    pub fn offset(&self, n: usize) -> usize {
        let end = self.start + n;
        assert!(end <= self.buffer.len(), "ids end at {end}, expected at most {}", self.buffer.len());
        self.start
    }
}

/// That a buffer has at least `len` elements.
pub(crate) fn expect_len(buffer: &impl Memory, len: usize) {
    assert!(buffer.len() >= len, "a buffer of {} elements, expected at least {len}", buffer.len());
}

/// `y[t] = W[experts[t]] x[t / rows_per_x]` for `n` rows.
#[derive(Debug)]
pub struct ExpertProducts<'a, G: Gpu> {
    /// As many matrices as there are experts.
    pub weight: &'a Matrix<G>,
    /// `[n]`.
    pub experts: &'a G::Buffer<u32>,
    /// `[n / rows_per_x, in_features]`.
    pub x: &'a G::Buffer<f32>,
    /// Rows of `y` that read the same row of `x`, one behind the other.
    pub rows_per_x: usize,
    /// `[n, out_features]`.
    pub y: &'a G::Buffer<f32>,
    /// Rows.
    pub n: usize,
}

/// Sizes of a full-attention mixer.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSizes {
    /// Heads of the queries.
    pub num_heads: usize,
    /// Heads of keys and values; query head `h` reads head `h / (num_heads / num_kv_heads)`.
    pub num_kv_heads: usize,
    /// `D`.
    pub head_dim: usize,
    /// Values of a head that are turned, the first ones; even.
    pub rotary_dim: usize,
}

impl AttentionSizes {
    /// Elements of the queries of a token.
    pub fn queries(&self) -> usize {
        self.num_heads * self.head_dim
    }
    /// Elements of the keys, or values, of a token.
    pub fn keys(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }
    /// Elements of a token's joint projection: `[num_heads, 2, D]` (query, gate), then keys, then values.
    pub fn row(&self) -> usize {
        2 * self.queries() + 2 * self.keys()
    }
}

/// Keys and values of a layer.
#[derive(Debug)]
pub struct Kv<G: Gpu> {
    /// `[capacity, num_kv_heads, D]`.
    pub keys: G::Buffer<f32>,
    /// `[capacity, num_kv_heads, D]`.
    pub values: G::Buffer<f32>,
}

/// Where tokens stand: token t at the positions held, plus `offset`, plus t; below the capacity.
#[derive(Debug)]
pub struct Place<'a, G: Gpu> {
    /// Has the positions held.
    pub header: &'a Header<G>,
    /// Positions between those held and the first token.
    pub offset: usize,
    /// Cosines, then sines, of all positions, `[capacity, rotary_dim]`.
    pub rope: &'a G::Buffer<f32>,
    /// Positions there is room for.
    pub capacity: usize,
}

impl<G: Gpu> Clone for Place<'_, G> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<G: Gpu> Copy for Place<'_, G> {}

/// Norm of each query and key head, then rotation of its first `rotary_dim` values: value `i` of the first half turns with
/// value `i + rotary_dim / 2`, `a cos - b sin` and `b cos + a sin`, without FMA. Queries are multiplied by `D^-0.5` last.
#[derive(Debug)]
pub struct Rotation<'a, G: Gpu> {
    /// Sizes.
    pub sizes: AttentionSizes,
    /// Of the queries, `[D]`.
    pub q_norm: &'a Norm<G>,
    /// Of the keys, `[D]`.
    pub k_norm: &'a Norm<G>,
    /// Joint projections `[n, sizes.row()]`.
    pub qkv: &'a G::Buffer<f32>,
    /// Positions.
    pub place: Place<'a, G>,
    /// Gets the queries, `[n, num_heads, D]`.
    pub query: &'a G::Buffer<f32>,
    /// Gets keys and values, in the rows of the tokens' positions.
    pub kv: &'a Kv<G>,
    /// Tokens.
    pub n: usize,
}

/// Softmax attention of `n` tokens, each over all positions up to its own.
#[derive(Debug)]
pub struct Attention<'a, G: Gpu> {
    /// Sizes.
    pub sizes: AttentionSizes,
    /// Positions.
    pub place: Place<'a, G>,
    /// `[n, num_heads, D]`, scaled.
    pub query: Rows<'a, G>,
    /// Joint projections `[n, sizes.row()]`: the gate of a head lies `D` elements behind its query.
    pub joint: Rows<'a, G>,
    /// `[n, num_heads, D]`.
    pub out: Rows<'a, G>,
    /// Keys and values.
    pub kv: &'a Kv<G>,
    /// `[n, num_heads, attention_scratch]`: see [`Gpu::attention_scratch`].
    pub scratch: &'a G::Buffer<f32>,
    /// Tokens, at most 8.
    pub n: usize,
}

/// The index of the largest element of `n` rows, of equal ones the first (both zeros are equal); [`super::INVALID`] for a row with NaN
/// or plus infinity, or of minus infinity alone.
#[derive(Debug)]
pub struct ArgMax<'a, G: Gpu> {
    /// `[n, len]`.
    pub logits: &'a G::Buffer<f32>,
    /// Elements of a row.
    pub len: usize,
    /// `[n, argmax_scratch]`: see [`Gpu::argmax_scratch`].
    pub scratch: &'a G::Buffer<u32>,
    /// Gets the indices, from `at` on.
    pub out: Ids<'a, G>,
    /// Rows.
    pub n: usize,
}

/// The experts of `n` tokens.
#[derive(Debug)]
pub struct Experts<'a, G: Gpu> {
    /// `[n, num_experts + 1]`: of the experts, then of the shared expert's gate.
    pub logits: &'a G::Buffer<f32>,
    /// `[n, top_k]`, rising numbers; the route writes them.
    pub chosen: &'a G::Buffer<u32>,
    /// `[n, top_k]`; the route writes them, the sum reads them.
    pub weights: &'a G::Buffer<f32>,
    /// `[n, top_k, H]` of the experts; for the sum.
    pub results: &'a G::Buffer<f32>,
    /// `[n, H]` of the shared expert; for the sum.
    pub shared: &'a G::Buffer<f32>,
    /// `[n, H]`; the sum writes it.
    pub out: &'a G::Buffer<f32>,
    /// `H`.
    pub hidden_size: usize,
    /// Experts, the shared one not counted.
    pub num_experts: usize,
    /// Experts that a token takes.
    pub top_k: usize,
    /// Whether the chosen probabilities are divided by their sum.
    pub norm_topk_prob: bool,
    /// Tokens.
    pub n: usize,
}

impl<G: Gpu> Clone for Experts<'_, G> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<G: Gpu> Copy for Experts<'_, G> {}

impl<G: Gpu> Experts<'_, G> {
    /// Checks all buffers.
    pub(crate) fn check(&self) {
        let chosen = self.n * self.top_k;
        expect_len(self.logits, self.n * (self.num_experts + 1));
        expect_len(self.chosen, chosen);
        expect_len(self.weights, chosen);
        expect_len(self.results, chosen * self.hidden_size);
        expect_len(self.shared, self.n * self.hidden_size);
        expect_len(self.out, self.n * self.hidden_size);
    }
}

/// The convolution of one sequence, slot 0, over `n` tokens (0 settle what is pending and no more).
#[derive(Debug)]
pub struct Convolution<'a, G: Gpu> {
    /// `[n, C]`.
    pub x: Rows<'a, G>,
    /// `[n, C]`.
    pub out: Rows<'a, G>,
    /// `[W, C]`.
    pub weight: &'a G::Buffer<f32>,
    /// State `[W - 1, C]` and log `[max_window, C]`. The first `num_pending` entries of the log are moved into the state before
    /// anything else; with `undecided` the window's inputs are the log's new entries and the state stays, without it they go into
    /// the state.
    pub layer: &'a GdnState<G>,
    /// Has the entries pending.
    pub header: &'a Header<G>,
    /// `C`.
    pub channels: usize,
    /// `W`.
    pub width: usize,
    /// Entries of the log.
    pub max_window: usize,
    /// Whether the window can be taken back.
    pub undecided: bool,
    /// Tokens.
    pub n: usize,
}

/// The recurrence of one sequence, slot 0, over `n` tokens (0 replay what is pending and no more): q and k are normalised
/// with eps 1e-6, the decay is given as a gate, beta as a logit, o is scaled by `K^-0.5`; value head `hv` reads key head
/// `hv / (HV / H)`.
#[derive(Debug)]
pub struct Recurrence<'a, G: Gpu> {
    /// H, HV, K, V.
    pub dims: &'a GdnDims,
    /// Rows of q `[H, K]`, k `[H, K]`, v `[HV, V]`, one behind the other.
    pub qkv: Rows<'a, G>,
    /// `[n, HV]`: g is `-exp(A_log) * softplus(a + dt_bias)`.
    pub a: Rows<'a, G>,
    /// `[n, HV]`: logits of beta.
    pub b: Rows<'a, G>,
    /// `A_log`, then `dt_bias`, `[2, HV]`.
    pub gates: &'a G::Buffer<f32>,
    /// `[n, HV, V]`.
    pub out: Rows<'a, G>,
    /// State `[HV, V, K]` and a log of two slots of `max_window` entries. The first `num_pending` entries of the log's
    /// `pending_slot` are replayed into the state first; with `undecided` the state stays as it is then, and the window fills the log's
    /// `log_slot`, which is the other one; without it the state after the tokens is left.
    pub layer: &'a GdnState<G>,
    /// Has the entries pending and the slots.
    pub header: &'a Header<G>,
    /// Entries of a slot of the log.
    pub max_window: usize,
    /// Whether the window can be taken back.
    pub undecided: bool,
    /// Tokens.
    pub n: usize,
}

/// Norm and gate of `n` rows of heads.
#[derive(Debug)]
pub struct NormGated<'a, G: Gpu> {
    /// `[n, num_heads, head_dim]`.
    pub x: Rows<'a, G>,
    /// `[n, num_heads, head_dim]`.
    pub z: Rows<'a, G>,
    /// `[head_dim]`.
    pub weight: &'a G::Buffer<f32>,
    /// `[n, num_heads, head_dim]`.
    pub out: Rows<'a, G>,
    /// Value heads.
    pub num_heads: usize,
    /// `V`.
    pub head_dim: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Rows.
    pub n: usize,
}
