//! `chunk_gated_delta_rule`.

use undraft_core::ops::ChunkGatedDeltaRuleArgs;
use undraft_core::{DecayShape, GdnDims};

use crate::backend::CudaBackend;
use crate::device::Output;
use crate::driver::DeviceBuffer;
use crate::error::{CudaError, Result};
use crate::ops::delta_inputs::{DeltaInputs, set_delta_inputs};
use crate::raw::{CUstream, DecayForm, DevicePtr, Elements, Grid, Launcher, Switch};
use crate::select::Kernel;
use crate::select::chunk::{self, ATTENTION_PARTS, ChunkCall, ChunkKernel, INVERSE_PARTS};

const OP: &str = "chunk_gated_delta_rule";
const CHUNK: u64 = chunk::CHUNK as u64;
/// Rows of a chunk's factors, as in the kernels.
const NUM_FACTORS: u64 = 4;
/// What each part of the workspace begins at a multiple of, and the workspace itself.
const ALIGNMENT: u64 = 256;

/// Parameters of the launches; shapes in [`undraft_core::ops::ChunkGatedDeltaRuleArgs`].
#[derive(Clone, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ChunkParams {
    pub q: DevicePtr,
    pub k: DevicePtr,
    pub v: DevicePtr,
    pub decay: DevicePtr,
    pub beta: DevicePtr,
    /// Or 0, unless the decay's form is `Gate`.
    pub a_log: DevicePtr,
    /// Or 0, unless the decay's form is `Gate`.
    pub dt_bias: DevicePtr,
    pub out: DevicePtr,
    pub state: DevicePtr,
    /// Of the states' element type; or 0 where `every` is.
    pub checkpoints: DevicePtr,
    pub cu_seqlens: DevicePtr,
    pub state_indices: DevicePtr,
    /// Scratch of [`Launcher::chunk_workspace_bytes`], aligned to 256 bytes; its contents need not outlive the launches.
    pub workspace: DevicePtr,
    pub q_stride: i64,
    pub k_stride: i64,
    pub v_stride: i64,
    pub decay_stride: i64,
    pub beta_stride: i64,
    pub out_stride: i64,
    /// Elements from one slot's state to the next, at least `HV V K`.
    pub state_stride: i64,
    /// Tokens from one checkpoint to the next; 0: none.
    pub every: i32,
    /// All sequences together have no more tokens.
    pub num_tokens: i32,
    pub num_seqs: i32,
    pub num_k_heads: i32,
    pub num_v_heads: i32,
    pub head_k_dim: i32,
    pub head_v_dim: i32,
    pub q_dtype: Elements,
    /// What `round_io` rounds to, as well.
    pub k_dtype: Elements,
    pub v_dtype: Elements,
    pub decay_dtype: Elements,
    pub beta_dtype: Elements,
    pub out_dtype: Elements,
    pub state_dtype: Elements,
    pub decay_form: DecayForm,
    /// Whether the decay is `[HV, K]` a token.
    pub per_channel: Switch,
    pub beta_is_logit: Switch,
    /// Whether value head `hv` reads key head `hv % H`; else `hv / (HV / H)`.
    pub tiled: Switch,
    /// Whether q and k are normalised, with `eps`.
    pub l2_norm: Switch,
    /// Whether beta and the normalised q and k are rounded to the element type of k.
    pub round_io: Switch,
    pub eps: f32,
    pub scale: f32,
    /// Filled in by the launch.
    pub parts: ChunkWorkspace,
}

/// Parts of the workspace, as the kernels know them; filled in by the launch.
#[derive(Clone, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ChunkWorkspace {
    pub chunks: DevicePtr,
    pub first_chunk: DevicePtr,
    pub first_checkpoint: DevicePtr,
    pub queries: DevicePtr,
    pub keys: DevicePtr,
    pub queries_from_start: DevicePtr,
    pub keys_from_start: DevicePtr,
    pub keys_to_end: DevicePtr,
    pub carry: DevicePtr,
    pub inverse: DevicePtr,
    pub attention: DevicePtr,
    pub factors: DevicePtr,
    pub query_tiles: DevicePtr,
    pub key_tiles: DevicePtr,
    pub inverse_tiles: DevicePtr,
    pub attention_tiles: DevicePtr,
    /// Whether q and k are read where they are, not from tiles.
    pub keys_in_place: Switch,
}

impl ChunkParams {
    /// The sizes, contiguous rows, and the defaults of the enums; everything else is 0.
    pub fn new(dims: &GdnDims, num_seqs: usize, num_tokens: usize) -> Self {
        Self {
            q_stride: dims.key_dim() as i64,
            k_stride: dims.key_dim() as i64,
            v_stride: dims.value_dim() as i64,
            decay_stride: dims.decay_len() as i64,
            beta_stride: dims.num_v_heads() as i64,
            out_stride: dims.value_dim() as i64,
            state_stride: dims.state_len() as i64,
            num_tokens: num_tokens as i32,
            num_seqs: num_seqs as i32,
            num_k_heads: dims.num_k_heads() as i32,
            num_v_heads: dims.num_v_heads() as i32,
            head_k_dim: dims.head_k_dim() as i32,
            head_v_dim: dims.head_v_dim() as i32,
            per_channel: (dims.decay_shape() == DecayShape::PerChannel).into(),
            scale: undraft_core::ops::DeltaRuleInputs::default_scale(dims),
            ..Self::default()
        }
    }

    /// Whether the tensor cores' kernels may copy q and k in pieces of 16 bytes, and as they are.
    fn keys_in_place(&self, padded_k: usize) -> bool {
        let rounds = self.round_io == Switch::On && self.l2_norm == Switch::On;
        let aligned = (self.q | self.k).is_multiple_of(16) && (self.q_stride | self.k_stride) % 8 == 0;
        aligned && !rounds && self.head_k_dim as usize == padded_k
    }

    /// Chunks of all sequences, at most: each ends a chunk early, and so does each checkpoint.
    fn max_chunks(&self) -> u64 {
        let [tokens, seqs, every] = [self.num_tokens, self.num_seqs, self.every].map(|n| n.max(0) as u64);
        let early = if every.is_multiple_of(CHUNK) { 0 } else { tokens / every };
        tokens / CHUNK + early + seqs + 1
    }

    /// The parts of a workspace at this address, and the bytes of all. `padded_k`: that of the tensor cores' kernels.
    fn parts(&self, workspace: DevicePtr, padded_k: Option<usize>) -> (ChunkWorkspace, u64) {
        let positive = |n: i32| n.max(0) as u64;
        let (tokens, seqs, chunks) = (positive(self.num_tokens), positive(self.num_seqs), self.max_chunks());
        let (k_heads, v_heads, k_dim) =
            (positive(self.num_k_heads), positive(self.num_v_heads), positive(self.head_k_dim));
        let mut end = 0;
        // The address of a part of so many elements of so many bytes.
        let mut part = |len: u64, size: u64| {
            let start = end;
            end += (size * len).next_multiple_of(ALIGNMENT);
            workspace + start
        };
        let mut parts = ChunkWorkspace {
            chunks: part(4 * chunks, 4),
            first_chunk: part(seqs + 1, 4),
            first_checkpoint: part(seqs + 1, 4),
            factors: part(chunks * v_heads * NUM_FACTORS * CHUNK, 4),
            ..Default::default()
        };
        if let Some(padded_k) = padded_k {
            let keys = chunks * k_heads * CHUNK * padded_k as u64;
            let triangles = |parts: usize| chunks * v_heads * parts as u64 * CHUNK * CHUNK;
            parts.query_tiles = part(keys, 2);
            parts.key_tiles = part(keys, 2);
            parts.inverse_tiles = part(triangles(INVERSE_PARTS), 2);
            parts.attention_tiles = part(triangles(ATTENTION_PARTS), 2);
        } else {
            let channels = if self.per_channel == Switch::On { v_heads * k_dim } else { 0 };
            parts.queries = part(tokens * k_heads * k_dim, 4);
            parts.keys = part(tokens * k_heads * k_dim, 4);
            parts.queries_from_start = part(tokens * channels, 4);
            parts.keys_from_start = part(tokens * channels, 4);
            parts.keys_to_end = part(tokens * channels, 4);
            parts.carry = part(chunks * channels, 4);
            parts.inverse = part(chunks * v_heads * CHUNK * CHUNK, 4);
            parts.attention = part(chunks * v_heads * CHUNK * CHUNK, 4);
        }
        (parts, end)
    }
}

impl Launcher {
    /// `K` of the tensor cores' kernels, if they run the call.
    fn chunk_on_tensor_cores(&self, params: &ChunkParams) -> Option<usize> {
        chunk::on_tensor_cores(&ChunkCall {
            q: params.q_dtype.into(),
            k: params.k_dtype.into(),
            head_k_dim: params.head_k_dim.max(0) as usize,
            per_channel: params.per_channel == Switch::On,
            max_shared: self.device.attributes().max_shared,
        })
    }

    /// Bytes of scratch for a call with these sizes, element types, numbers of tokens and sequences, and `every`.
    pub fn chunk_workspace_bytes(&self, params: &ChunkParams) -> u64 {
        params.parts(0, self.chunk_on_tensor_cores(params)).1
    }

    /// The matrix form of the recurrence over the sequences, in several launches.
    ///
    /// # Errors
    /// [`CudaError`] of a launch.
    ///
    /// # Safety
    /// The contract of [`crate::raw`].
    pub unsafe fn chunk_gated_delta_rule(&self, stream: CUstream, params: &ChunkParams) -> Result<()> {
        let padded_k = self.chunk_on_tensor_cores(params);
        let (mut parts, _) = params.parts(params.workspace, padded_k);
        parts.keys_in_place = padded_k.is_some_and(|k| params.keys_in_place(k)).into();
        let (chunks, most) = (params.max_chunks(), i32::MAX as u64);
        if chunks > most {
            return Err(CudaError::Launch { op: OP, what: "chunks", got: chunks, most });
        }
        let params = ChunkParams { parts, ..params.clone() };
        let [seqs, k_heads, v_heads, k_dim, v_dim] =
            [params.num_seqs, params.num_k_heads, params.num_v_heads, params.head_k_dim, params.head_v_dim]
                .map(|n| n.max(0) as u64);
        if seqs == 0 {
            return Ok(());
        }
        let scan_blocks = seqs * v_heads * v_dim.div_ceil(chunk::COLUMNS as u64);
        let launch = |kernel: ChunkKernel, blocks| {
            let shared = kernel.shared_memory(k_dim as usize, params.per_channel == Switch::On);
            let grid = Grid { blocks: (blocks, 1), threads: kernel.threads(), shared };
            // The first one waits for whatever the caller has launched before.
            let overlap = kernel != ChunkKernel::Plan;
            // SAFETY: the kernels take these parameters and wait for the launch before; the workspace is cut as they expect it;
            // the caller's promise.
            unsafe { self.launch_with(OP, Kernel::Chunk(kernel), grid, overlap, stream, &params) }
        };
        launch(ChunkKernel::Plan, 1)?;
        if let Some(padded_k) = padded_k {
            launch(ChunkKernel::Tiles { padded_k }, chunks * v_heads)?;
            launch(ChunkKernel::MmaScan { padded_k }, scan_blocks)
        } else {
            launch(ChunkKernel::Keys, chunks * k_heads)?;
            launch(ChunkKernel::Weights, chunks * v_heads)?;
            launch(ChunkKernel::Scan, scan_blocks)
        }
    }
}

pub(crate) fn run(backend: &CudaBackend, args: ChunkGatedDeltaRuleArgs<'_>) -> Result<()> {
    let stream = backend.stream();
    let ChunkGatedDeltaRuleArgs { inputs, state, checkpoints, out, .. } = args;
    let num_tokens = inputs.cu_seqlens.last().map_or(0, |&n| n as usize);
    let mut params = ChunkParams::new(&inputs.dims, inputs.state_indices.len(), num_tokens);

    let device = DeltaInputs::upload(stream, &inputs)?;
    set_delta_inputs!(params, device, inputs);

    let state = Output::upload(stream, state)?;
    let out_rows = Output::upload(stream, out.data)?;
    (params.state, params.state_dtype) = (state.address(), state.dtype().into());
    (params.out, params.out_stride) = (out_rows.address(), out.row_stride as i64);
    params.out_dtype = out_rows.dtype().into();
    // Beyond every sequence's end there is no checkpoint.
    params.every = checkpoints.as_ref().filter(|c| c.every <= num_tokens).map_or(0, |c| c.every as i32);
    let checkpoints = checkpoints.map(|c| Output::upload(stream, c.states)).transpose()?;
    params.checkpoints = checkpoints.as_ref().map_or(0, |states| states.address());
    let workspace =
        DeviceBuffer::<u8>::uninit(stream.driver(), backend.launcher().chunk_workspace_bytes(&params) as usize)?;
    params.workspace = workspace.address();

    // SAFETY: the buffers were made from checked arguments and live until the results are back.
    unsafe { backend.launcher().chunk_gated_delta_rule(stream.handle(), &params)? };
    if let Some(states) = checkpoints {
        states.download(stream)?;
    }
    state.download(stream)?;
    out_rows.download(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chunks of a sequence, cut at checkpoints one by one.
    fn count(tokens: usize, every: usize) -> u64 {
        let (mut done, mut chunks) = (0, 0);
        while done < tokens {
            let until_checkpoint = if every == 0 { usize::MAX } else { every - done % every };
            done += until_checkpoint.min(64).min(tokens - done);
            chunks += 1;
        }
        chunks
    }

    #[test]
    fn the_bound_on_chunks_holds_and_is_near() {
        let dims = GdnDims::new(1, 1, 8, 8).unwrap();
        for every in [0, 1, 40, 63, 64, 65, 128, 200] {
            for lens in [&[][..], &[0], &[1], &[64], &[65, 0, 2], &[200; 9], &[63; 30], &[8192]] {
                let mut params = ChunkParams::new(&dims, lens.len(), lens.iter().sum());
                params.every = every as i32;
                let (got, bound) = (lens.iter().map(|&n| count(n, every)).sum::<u64>(), params.max_chunks());
                assert!(got <= bound, "{lens:?}, every {every}: {got} chunks, bound {bound}");
                assert!(
                    bound <= 2 * got + lens.len() as u64 + 1,
                    "{lens:?}, every {every}: {got} chunks, bound {bound}"
                );
            }
        }
    }
}
