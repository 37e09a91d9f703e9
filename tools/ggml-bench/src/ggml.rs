//! ggml's `ggml_gated_delta_net` on one CPU thread, through `ggml/graph.c`. The only file here with `unsafe`.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::{NonNull, null_mut};

use anyhow::{Context, Result, bail, ensure};
use undraft::cpu::{AlignedBuffer, Isa};

use crate::tokens::{Sizes, Tokens};

/// `struct gdn_graph`.
#[repr(C)]
struct Graph {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn ggml_version() -> *const c_char;
    safe fn ggml_cpu_has_avx512() -> c_int;
    safe fn ggml_cpu_has_avx2() -> c_int;
    safe fn ggml_cpu_has_fma() -> c_int;
    safe fn ggml_cpu_has_neon() -> c_int;
    fn gdn_graph_new(
        h: i64,
        hv: i64,
        dim: i64,
        decay_dim: i64,
        num_tokens: i64,
        snapshots: i64,
        num_slots: i64,
    ) -> *mut Graph;
    fn gdn_graph_compute(graph: *mut Graph, inputs: *const *const f32, out: *mut f32, target: *mut f32) -> c_int;
    fn gdn_graph_free(graph: *mut Graph);
}

/// ggml's version.
pub fn version() -> String {
    // SAFETY: `ggml_version` gives a static string that ends with a zero.
    unsafe { CStr::from_ptr(ggml_version()) }.to_string_lossy().into_owned()
}

/// The instruction set of undraft that is nearest to what ggml was compiled for.
pub fn isa() -> Isa {
    match () {
        () if ggml_cpu_has_avx512() != 0 => Isa::Avx512,
        () if ggml_cpu_has_avx2() != 0 && ggml_cpu_has_fma() != 0 => Isa::Avx2,
        () if ggml_cpu_has_neon() != 0 => Isa::Neon,
        () => Isa::Scalar,
    }
}

/// Where llama.cpp keeps recurrent states: `[snapshots, num_slots, HV, V, K]`, plane `s` the states `s` tokens back.
pub struct Cache<'a> {
    pub planes: &'a mut [f32],
    pub slot: usize,
    /// The plane that the slot's state is read from.
    pub read_plane: usize,
}

/// The operation for windows of one size.
///
/// Its output `o | snapshots` is a buffer of its own, the same in each call, as it is in an engine's compute buffer: the
/// operation has no way to update a state in place.
pub struct GatedDeltaNet {
    sizes: Sizes,
    snapshots: usize,
    /// Of the cache; 0 without one.
    num_slots: usize,
    graph: NonNull<Graph>,
    out: AlignedBuffer,
}

impl GatedDeltaNet {
    /// The operation alone; [`GatedDeltaNet::run`] runs it.
    ///
    /// # Errors
    /// For sizes that ggml does not have.
    pub fn new(sizes: Sizes, snapshots: usize) -> Result<Self> {
        Self::build(sizes, snapshots, 0)
    }

    /// The operation and a copy of its snapshots into a [`Cache`]; [`GatedDeltaNet::run_and_store`] runs it.
    ///
    /// # Errors
    /// For sizes that ggml does not have.
    pub fn with_store(sizes: Sizes, snapshots: usize, num_slots: usize) -> Result<Self> {
        ensure!(num_slots > 0, "`num_slots` is 0, expected at least 1");
        Self::build(sizes, snapshots, num_slots)
    }

    fn build(sizes: Sizes, snapshots: usize, num_slots: usize) -> Result<Self> {
        let Sizes { dims, num_tokens } = sizes;
        let (k, v) = (dims.head_k_dim(), dims.head_v_dim());
        ensure!(k == v, "`head_k_dim` is {k}, ggml expects `head_v_dim` = {v}");
        ensure!(num_tokens > 0, "`num_tokens` is 0, expected at least 1");
        // The operation leaves further snapshots unwritten.
        ensure!((1..=num_tokens).contains(&snapshots), "`snapshots` is {snapshots}, expected 1..={num_tokens}");
        let out = AlignedBuffer::zeroed(num_tokens * dims.value_dim() + snapshots * dims.state_len())?;
        // SAFETY: plain numbers that fit each other: K = V and at least one token and snapshot, checked above, HV a multiple
        // of H and all at least 1 by `GdnDims`.
        let graph = unsafe {
            gdn_graph_new(
                dims.num_k_heads() as i64,
                dims.num_v_heads() as i64,
                v as i64,
                dims.decay_dim() as i64,
                num_tokens as i64,
                snapshots as i64,
                num_slots as i64,
            )
        };
        let graph = NonNull::new(graph).context("ggml has no memory for a graph")?;
        Ok(Self { sizes, snapshots, num_slots, graph, out })
    }

    /// Runs the operation; see [`GatedDeltaNet::o`] and [`GatedDeltaNet::snapshot`] for the results.
    ///
    /// # Errors
    /// Where the sizes of the tokens or of the state `[HV, V, K]` differ from the graph's.
    pub fn run(&mut self, tokens: &Tokens, state: &[f32]) -> Result<()> {
        let (got, expected) = (state.len(), self.sizes.dims.state_len());
        ensure!(self.num_slots == 0, "this graph stores into a cache, expected one that does not");
        ensure!(got == expected, "`state` has {got} elements, expected {expected}");
        let inputs = self.inputs(tokens, state.as_ptr())?;
        let out = self.out.as_mut_ptr();
        // SAFETY: the graph is live and has no cache. Its inputs were checked, are only read, and outlive the call; what
        // is written is `out`, which was made to hold o and the snapshots.
        Self::status(unsafe { gdn_graph_compute(self.graph.as_ptr(), inputs.as_ptr(), out, null_mut()) })
    }

    /// Runs the operation on the state of a slot and copies the snapshots into the slot's planes.
    ///
    /// # Errors
    /// Where sizes differ from the graph's, or the slot or the plane is out of range.
    pub fn run_and_store(&mut self, tokens: &Tokens, cache: Cache<'_>) -> Result<()> {
        let Self { sizes, snapshots, num_slots, .. } = *self;
        let Cache { planes, slot, read_plane } = cache;
        let len = sizes.dims.state_len();
        let (got, expected) = (planes.len(), snapshots * num_slots * len);
        ensure!(slot < num_slots, "`slot` is {slot}, expected less than {num_slots}");
        ensure!(read_plane < snapshots, "`read_plane` is {read_plane}, expected less than {snapshots}");
        ensure!(got == expected, "`planes` has {got} elements, expected {expected}");
        let planes = planes.as_mut_ptr();
        // SAFETY: plane and slot are in range, and `planes` holds `snapshots * num_slots` states, by the checks above.
        let (state, target) = unsafe { (planes.add((read_plane * num_slots + slot) * len), planes.add(slot * len)) };
        let inputs = self.inputs(tokens, state)?;
        let out = self.out.as_mut_ptr();
        // SAFETY: the graph is live. Its inputs were checked and outlive the call; tokens are only read. It writes `out`,
        // which was made to hold o and the snapshots, and then, `num_slots` states apart, `snapshots` states from `target`
        // on, all within `planes`, which is borrowed mutably.
        Self::status(unsafe { gdn_graph_compute(self.graph.as_ptr(), inputs.as_ptr(), out, target) })
    }

    /// The inputs in the graph's order, with tokens of the graph's sizes.
    fn inputs(&self, tokens: &Tokens, state: *const f32) -> Result<[*const f32; 6]> {
        let Sizes { dims, num_tokens } = self.sizes;
        let (key, value, heads) = (dims.key_dim(), dims.value_dim(), dims.num_v_heads());
        let Tokens { q, k, v, g, beta } = tokens;
        for (name, got, row) in [
            ("q", q.len(), key),
            ("k", k.len(), key),
            ("v", v.len(), value),
            ("g", g.len(), dims.decay_len()),
            ("beta", beta.len(), heads),
        ] {
            ensure!(got == num_tokens * row, "`{name}` has {got} elements, expected {num_tokens} rows of {row}");
        }
        Ok([q.as_ptr(), k.as_ptr(), v.as_ptr(), g.as_ptr(), beta.as_ptr(), state])
    }

    fn status(status: c_int) -> Result<()> {
        match status {
            0 => Ok(()),
            _ => bail!("ggml could not compute the graph"),
        }
    }

    /// Outputs, `[num_tokens, HV, V]`.
    pub fn o(&self) -> &[f32] {
        &self.out[..self.sizes.num_tokens * self.sizes.dims.value_dim()]
    }

    /// The state `back` tokens before the last one, `[HV, V, K]`.
    ///
    /// # Panics
    /// If `back` is not less than the number of snapshots.
    pub fn snapshot(&self, back: usize) -> &[f32] {
        let (first, len) = (self.o().len(), self.sizes.dims.state_len());
        &self.out[first + back * len..][..len]
    }
}

impl Drop for GatedDeltaNet {
    fn drop(&mut self) {
        // SAFETY: the graph is live, and nothing uses it after this.
        unsafe { gdn_graph_free(self.graph.as_ptr()) }
    }
}
