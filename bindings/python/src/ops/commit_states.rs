//! `commit_states`, and the same for the states of a convolution.

use undraft::cuda::raw::{Captured, CommitParams, ConvUpdateParams};
use undraft::ops::{CausalConv1dUpdateArgs, CommitStatesArgs, ConvLogMut};
use undraft::{Activation, Backend, Capture, ConvDims, DecayShape, GdnDims, Rows, RowsMut};

use super::delta_rule::{check_sequences, check_states, head_map, slot_stride};
use super::verify::{Log, check_path};
use super::{address, check_counts, i32_of};
use crate::args::{Op, Values, op_args};
use crate::error::{Error, Result};
use crate::host;
use crate::tensor::{Device, Shape, Tensor};

pub(super) const OP: Op = Op { name: "commit_states", params: Args::PARAMS, run };
pub(super) const CONV_OP: Op = Op { name: "commit_conv_states", params: ConvArgs::PARAMS, run: run_conv };

op_args!(Args {
    Out state, In log_k, In log_decay, In log_delta, In num_kept, In state_indices, MaybeIn path, Int head_map,
});

op_args!(ConvArgs {
    Out state, In log, In num_kept, In state_indices, MaybeIn path, In no_tokens,
});

impl Tensor {
    /// One layer of a tensor with an axis of layers in front.
    fn layer(&self, layer: usize) -> Tensor {
        let stride = self.strides.as_slice()[0].max(0) as usize;
        let rest = |shape: &Shape| Shape::new(&shape.as_slice()[1..]).unwrap_or(*shape);
        let data = self.data + layer * stride * self.element_size;
        Tensor { data, shape: rest(&self.shape), strides: rest(&self.strides), ..*self }
    }
    /// Layers of a tensor of so many axes, or one more: each layer as a tensor of its own.
    fn layers(&self, rank: usize) -> Vec<Tensor> {
        match self.rank() == rank {
            true => vec![*self],
            false => (0..self.size(0)).map(|layer| self.layer(layer)).collect(),
        }
    }
    /// Elements from one layer to the next; 0 where there is one.
    fn layer_stride(&self, rank: usize) -> i64 {
        if self.rank() == rank || self.size(0) < 2 { 0 } else { self.strides.as_slice()[0] }
    }
}

/// Checks counts and path against the sequences; gives their number.
fn check_lists(num_kept: &Tensor, state_indices: &Tensor, path: Option<&Tensor>, max_tokens: usize) -> Result<usize> {
    let num_seqs = state_indices.size(0);
    for tensor in [state_indices, num_kept] {
        tensor.check_shape(&[("num_seqs", num_seqs)])?;
        tensor.check_i32()?;
        tensor.check_contiguous()?;
    }
    check_path(path, num_seqs, max_tokens)?;
    Ok(num_seqs)
}

fn run(values: &mut Values<'_>) -> Result<()> {
    let (args, device) = Args::read(values)?;
    let Args { state, log_k, log_decay, log_delta, num_kept, state_indices, .. } = &args;
    let layers = match state.rank() {
        4 => None,
        5 => Some(("num_layers", state.size(0))),
        _ => {
            let expected = "[num_slots, HV, V, K], or [num_layers, num_slots, HV, V, K]";
            return Err(Error::Rank { arg: "state", got: Box::new(state.shape), expected });
        }
    };
    let axis = usize::from(layers.is_some());
    let rank = |n: usize| n + axis;
    if log_k.rank() != rank(4) {
        let expected = "[num_slots, max_tokens, H, K], with layers in front as `state`";
        return Err(Error::Rank { arg: "log_k", got: Box::new(log_k.shape), expected });
    }
    let dims = GdnDims::new(log_k.size(axis + 2), state.size(axis + 1), log_k.size(axis + 3), state.size(axis + 2))?;
    let per_channel = log_decay.rank() == rank(4);
    let dims = if per_channel { dims.with_decay_shape(DecayShape::PerChannel) } else { dims };
    let num_slots = state.size(axis);
    let outer: Vec<_> = layers.into_iter().chain([("num_slots", num_slots)]).collect();
    check_states(state, &outer, &dims)?;
    let log = Log::new([log_k, log_decay, log_delta], &outer[..axis], &dims, num_slots)?;
    let head_map = head_map(args.head_map)?;
    let num_seqs = check_lists(num_kept, state_indices, args.path.as_ref(), log.max_tokens)?;
    // Each layer by itself lies without gaps.
    let parts = [(state, 4), (log_k, 4), (log_decay, if per_channel { 4 } else { 3 }), (log_delta, 4)];
    let [states, ks, decays, deltas] = parts.map(|(tensor, rank)| tensor.layers(rank));
    let first = [&ks, &decays, &deltas].into_iter().filter_map(|layers| layers.first());
    first.into_iter().try_for_each(|tensor| tensor.check_contiguous())?;

    match device {
        Device::Cpu => {
            let backend = host::backend();
            // SAFETY: here and below: the tensors lie in host memory, torch or NumPy keeps them for this call; what is written
            // shares no memory with the rest, and one layer's arguments exist at a time.
            let (indices, kept) = unsafe { (state_indices.i32s()?, num_kept.u32s()?) };
            check_counts("num_kept", kept, indices)?;
            // SAFETY: as above.
            let path = args.path.map_or(Ok(&[][..]), |path| unsafe { path.u32s() })?;
            // Layers differ in their memory alone: what is wrong is wrong with the first, before anything is touched.
            for (((state, k), decay), delta) in states.iter().zip(&ks).zip(&decays).zip(&deltas) {
                let log = Log { k, decay, delta, max_tokens: log.max_tokens };
                let args = CommitStatesArgs {
                    dims,
                    head_map,
                    num_slots,
                    // SAFETY: as above.
                    state: unsafe { state.states()? },
                    // SAFETY: as above.
                    log: unsafe { log.host()? },
                    state_indices: indices,
                    num_kept: kept,
                    path,
                };
                backend.commit_states(args.check()?)?;
            }
            Ok(())
        }
        Device::Cuda(index) => {
            log.check_device()?;
            state.check_alignment(16)?;
            let Some(first) = states.first() else { return Ok(()) };
            let params = CommitParams {
                state: state.data as u64,
                log_k: log_k.data as u64,
                log_decay: log_decay.data as u64,
                log_delta: log_delta.data as u64,
                state_indices: state_indices.data as u64,
                num_kept: num_kept.data as u64,
                path: address(args.path.as_ref()),
                state_stride: slot_stride(first, 0, &dims)?,
                layer_state_stride: state.layer_stride(4),
                layer_k_stride: log_k.layer_stride(4),
                layer_decay_stride: log_decay.layer_stride(parts[2].1),
                layer_delta_stride: log_delta.layer_stride(4),
                num_seqs: i32_of("B", num_seqs)?,
                num_k_heads: dims.num_k_heads() as i32,
                num_v_heads: dims.num_v_heads() as i32,
                head_k_dim: dims.head_k_dim() as i32,
                head_v_dim: dims.head_v_dim() as i32,
                log_max: i32_of("max_tokens", log.max_tokens)?,
                per_channel: per_channel.into(),
                tiled: (head_map == undraft::HeadMap::Tiled).into(),
                ..CommitParams::default()
            };
            if dims.head_k_dim().is_multiple_of(4) && params.layer_state_stride % 4 != 0 {
                let (arg, shape, strides) = (state.arg, Box::new(state.shape), Box::new(state.strides));
                return Err(Error::Strides { arg, shape, strides, expected: "layers at a multiple of 4 elements" });
            }
            let num_layers = u16::try_from(states.len()).map_err(|_| {
                let (arg, got) = ("num_layers", states.len() as i64);
                Error::Number { arg, got, expected: "65535 at most" }
            })?;
            let (launcher, stream) = values.caller.cuda(index)?;
            // SAFETY: sizes, strides, element types, alignment and overlap are checked; the caller's library keeps the tensors
            // until the stream's work is done; what the lists hold is the caller's promise.
            unsafe { launcher.commit_states(stream, &params, state.float()?.into(), num_layers)? };
            Ok(())
        }
        got => Err(Error::UnsupportedDevice { arg: "state", got, expected: "a CPU or CUDA tensor" }),
    }
}

fn run_conv(values: &mut Values<'_>) -> Result<()> {
    let (args, device) = ConvArgs::read(values)?;
    let ConvArgs { state, log, num_kept, state_indices, no_tokens, .. } = &args;
    let layers = match state.rank() {
        3 => None,
        4 => Some(("num_layers", state.size(0))),
        _ => {
            let expected = "[num_slots, W - 1, C], or [num_layers, num_slots, W - 1, C]";
            return Err(Error::Rank { arg: "conv_state", got: Box::new(state.shape), expected });
        }
    };
    let axis = usize::from(layers.is_some());
    let (num_slots, width, channels) = (state.size(axis), state.size(axis + 1) + 1, state.size(axis + 2));
    let dims = ConvDims::new(channels, width)?;
    let max_tokens = log.size(axis + 1);
    let outer: Vec<_> = layers.into_iter().chain([("num_slots", num_slots)]).collect();
    log.check_shape(&[&outer[..], &[("max_tokens", max_tokens), ("channels", channels)]].concat())?;
    state.check_f32()?;
    log.check_f32()?;
    let num_seqs = check_lists(num_kept, state_indices, args.path.as_ref(), max_tokens)?;
    check_sequences(no_tokens, state_indices)?;
    let (states, logs) = (state.layers(3), log.layers(3));
    logs.first().map_or(Ok(()), Tensor::check_contiguous)?;

    match device {
        Device::Cpu => {
            let backend = host::backend();
            let zeros = vec![0.0; width * channels];
            // SAFETY: here and below: as in `run`.
            let (cu_seqlens, indices, kept) = unsafe { (no_tokens.i32s()?, state_indices.i32s()?, num_kept.u32s()?) };
            check_counts("num_kept", kept, indices)?;
            // SAFETY: as above.
            let path = args.path.map_or(Ok(&[][..]), |path| unsafe { path.u32s() })?;
            for (state, log) in states.iter().zip(&logs) {
                // A window of no tokens only moves the kept inputs into the state.
                let args = CausalConv1dUpdateArgs {
                    dims,
                    x: Rows::new(&[] as &[f32], channels),
                    weight: &zeros,
                    bias: None,
                    activation: Activation::None,
                    cu_seqlens,
                    state_indices: indices,
                    num_slots,
                    // SAFETY: as above.
                    state: unsafe { state.f32s_mut()? },
                    // SAFETY: as above.
                    log: Some(ConvLogMut { x: unsafe { log.f32s_mut()? }, max_tokens }),
                    num_pending: kept,
                    pending_path: path,
                    parents: &[],
                    capture: Capture::DeltaLog,
                    out: RowsMut::new(&mut [] as &mut [f32], channels),
                };
                backend.causal_conv1d_update(args.check()?)?;
            }
            Ok(())
        }
        Device::Cuda(index) => {
            let Some(first) = states.first() else { return Ok(()) };
            let state_stride = first.outer_stride(0)? as i64;
            let (launcher, stream) = values.caller.cuda(index)?;
            // Read, and not used where a window has no tokens.
            let weight = values.caller.scratch(index, 4 * width * channels)?;
            for (state, log) in states.iter().zip(&logs) {
                let params = ConvUpdateParams {
                    weight,
                    state: state.data as u64,
                    log: log.data as u64,
                    cu_seqlens: no_tokens.data as u64,
                    state_indices: state_indices.data as u64,
                    num_pending: num_kept.data as u64,
                    pending_path: address(args.path.as_ref()),
                    x_stride: channels as i64,
                    out_stride: channels as i64,
                    state_stride,
                    channels: channels as i64,
                    num_seqs: i32_of("B", num_seqs)?,
                    width: width as i32,
                    log_max: i32_of("max_tokens", max_tokens)?,
                    capture: Captured::DeltaLog,
                    ..ConvUpdateParams::default()
                };
                // SAFETY: as in `run`; the lengths are 0, so that no inputs or outputs are needed.
                unsafe { launcher.causal_conv1d_update(stream, &params)? };
            }
            Ok(())
        }
        got => Err(Error::UnsupportedDevice { arg: "conv_state", got, expected: "a CPU or CUDA tensor" }),
    }
}
