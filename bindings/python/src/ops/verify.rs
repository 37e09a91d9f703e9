//! `verify`: the recurrence over windows that can be taken back.

use undraft::cuda::raw::{Captured, RecurrentParams};
use undraft::ops::{CommitStatesArgs, FusedRecurrentArgs};
use undraft::{Backend, CaptureMut, DecayShape, DeltaLogMut};

use super::delta_rule::{DeltaRule, check_same_dtype, check_states, delta_rule, max_window, set_params};
use super::{address, check_counts, i32_of};
use crate::args::{Op, Values, op_args};
use crate::error::{Error, Result};
use crate::host;
use crate::tensor::{Device, Tensor};

pub(super) const OP: Op = Op { name: "verify", params: Args::PARAMS, run };

op_args!(Args {
    In q, In k, In v, In g, In beta, Out state,
    MaybeOut log_k, MaybeOut log_decay, MaybeOut log_delta, MaybeOut captured, Out out,
    In cu_seqlens, In state_indices, MaybeIn parents,
    MaybeIn pending_k, MaybeIn pending_decay, MaybeIn pending_delta, MaybeIn num_pending, MaybeIn pending_path,
    MaybeIn A_log, MaybeIn dt_bias,
    Int decay, Bool beta_is_logit, Int head_map, Float qk_l2norm_eps, Int rounding, Float scale, Int max_window,
});

/// The three tensors of a delta log, of one layer or several.
#[derive(Clone, Copy)]
pub(super) struct Log<'a> {
    pub(super) k: &'a Tensor,
    pub(super) decay: &'a Tensor,
    pub(super) delta: &'a Tensor,
    pub(super) max_tokens: usize,
}

impl<'a> Log<'a> {
    /// Checks the shapes; `layers` is an axis in front, or nothing.
    pub(super) fn new(
        [k, decay, delta]: [&'a Tensor; 3],
        layers: &[(&'static str, usize)],
        dims: &undraft::GdnDims,
        num_slots: usize,
    ) -> Result<Self> {
        let max_tokens = k.size(layers.len() + 1);
        let outer = [layers, &[("num_slots", num_slots), ("max_tokens", max_tokens)]].concat();
        let hv = ("num_v_heads", dims.num_v_heads());
        let key = ("head_k_dim", dims.head_k_dim());
        k.check_shape(&[&outer[..], &[("num_k_heads", dims.num_k_heads()), key]].concat())?;
        let of_decay = [hv, key];
        let of_decay = &of_decay[..if dims.decay_shape() == DecayShape::PerHead { 1 } else { 2 }];
        decay.check_shape(&[&outer[..], of_decay].concat())?;
        delta.check_shape(&[&outer[..], &[hv, ("head_v_dim", dims.head_v_dim())]].concat())?;
        for tensor in [k, decay, delta] {
            tensor.check_f32()?;
        }
        Ok(Self { k, decay, delta, max_tokens })
    }

    /// For kernels: contiguous, aligned to vectors.
    pub(super) fn check_device(&self) -> Result<()> {
        for tensor in [self.k, self.decay, self.delta] {
            tensor.check_alignment(16)?;
        }
        Ok(())
    }
    fn check_contiguous(&self) -> Result<()> {
        [self.k, self.decay, self.delta].iter().try_for_each(|tensor| tensor.check_contiguous())
    }

    /// The log as the CPU back end takes it.
    ///
    /// # Safety
    /// The tensors lie in host memory, and nobody else reads or writes them for `'b`.
    pub(super) unsafe fn host<'b>(&self) -> Result<DeltaLogMut<'b>> {
        // SAFETY: the caller's promise.
        unsafe {
            Ok(DeltaLogMut {
                k: self.k.f32s_mut()?,
                decay: self.decay.f32s_mut()?,
                delta: self.delta.f32s_mut()?,
                max_tokens: self.max_tokens,
            })
        }
    }
}

/// What a window leaves, its sizes checked.
enum Leaves<'a> {
    Log(Log<'a>),
    States { states: &'a Tensor, max_tokens: usize },
}

/// What stays of the window before.
struct Pending<'a> {
    log: Log<'a>,
    num: &'a Tensor,
    path: Option<&'a Tensor>,
}

fn three<'a>(tensors: [&'a Option<Tensor>; 3], of: &'static str) -> Result<Option<[&'a Tensor; 3]>> {
    match tensors.map(Option::as_ref) {
        [Some(k), Some(decay), Some(delta)] => Ok(Some([k, decay, delta])),
        [None, None, None] => Ok(None),
        _ => Err(Error::Missing { arg: of, because: "whole: k, decay and delta" }),
    }
}

fn run(values: &mut Values<'_>) -> Result<()> {
    let (args, device) = Args::read(values)?;
    let rule = delta_rule!(args)?;
    let window = max_window(args.max_window)?;
    let (dims, num_slots, num_seqs) = (&rule.dims, rule.num_slots, ("num_seqs", rule.num_seqs));
    let log = three([&args.log_k, &args.log_decay, &args.log_delta], "log")?;
    let leaves = match (log, &args.captured) {
        (Some(log), None) => Leaves::Log(Log::new(log, &[], dims, num_slots)?),
        (None, Some(states)) => {
            let max_tokens = states.size(1);
            check_states(states, &[num_seqs, ("max_tokens", max_tokens)], dims)?;
            states.check_contiguous()?;
            check_same_dtype(states, &rule.state)?;
            Leaves::States { states, max_tokens }
        }
        (None, None) => {
            let because = "with capture `delta_log`; or `captured` with capture `per_token`";
            return Err(Error::Missing { arg: "log", because });
        }
        (Some(_), Some(_)) => return Err(Error::Unexpected { arg: "captured", only: "without a log," }),
    };
    if let Some(parents) = &args.parents {
        parents.check_shape(&[("num_tokens", rule.num_tokens())])?;
        parents.check_i32()?;
        parents.check_contiguous()?;
    }
    let pending = three([&args.pending_k, &args.pending_decay, &args.pending_delta], "pending_log")?;
    let pending = match (pending, &args.num_pending) {
        (Some(log), Some(num)) => {
            let log = Log::new(log, &[], dims, num_slots)?;
            log.check_contiguous()?;
            num.check_shape(&[num_seqs])?;
            num.check_i32()?;
            num.check_contiguous()?;
            let path = args.pending_path.as_ref();
            check_path(path, rule.num_seqs, log.max_tokens)?;
            Some(Pending { log, num, path })
        }
        (None, None) => match &args.pending_path {
            Some(_) => return Err(Error::Unexpected { arg: "pending_path", only: "with `pending_log`," }),
            None => None,
        },
        (Some(_), None) => return Err(Error::Missing { arg: "num_pending", because: "with `pending_log`" }),
        (None, Some(_)) => return Err(Error::Missing { arg: "pending_log", because: "with `num_pending`" }),
    };
    if let Leaves::Log(log) = &leaves {
        log.check_contiguous()?;
    }
    match device {
        Device::Cpu => on_cpu(&args, &rule, &leaves, pending.as_ref(), window),
        Device::Cuda(index) => on_cuda(values, index, &args, &rule, &leaves, pending.as_ref(), window),
        got => Err(Error::UnsupportedDevice { arg: "q", got, expected: "a CPU or CUDA tensor" }),
    }
}

/// A path's shape: `[num_seqs, max_tokens]`.
pub(super) fn check_path(path: Option<&Tensor>, num_seqs: usize, max_tokens: usize) -> Result<()> {
    if let Some(path) = path {
        path.check_shape(&[("num_seqs", num_seqs), ("max_tokens", max_tokens)])?;
        path.check_i32()?;
        path.check_contiguous()?;
    }
    Ok(())
}

fn on_cpu(
    args: &Args,
    rule: &DeltaRule,
    leaves: &Leaves<'_>,
    pending: Option<&Pending<'_>>,
    window: usize,
) -> Result<()> {
    let backend = host::backend();
    // SAFETY: here and below: the tensors lie in host memory, torch or NumPy keeps them for this call; what is written shares
    // no memory with the rest, and one of the argument sets exists at a time.
    let gates = unsafe { rule.gates()? };
    // SAFETY: as above.
    let parents = args.parents.map_or(Ok(&[][..]), |parents| unsafe { parents.i32s() })?;
    let windows = || -> Result<_> {
        // SAFETY: as above.
        let inputs = unsafe { rule.inputs(&gates, parents, window)? };
        let (log, capture) = match leaves {
            // SAFETY: as above.
            Leaves::Log(log) => (Some(unsafe { log.host()? }), CaptureMut::DeltaLog),
            Leaves::States { states, max_tokens } => {
                // SAFETY: as above.
                let states = unsafe { states.states()? };
                (None, CaptureMut::PerToken { states, max_tokens: *max_tokens })
            }
        };
        let args = FusedRecurrentArgs {
            inputs,
            num_slots: rule.num_slots,
            // SAFETY: as above.
            state: unsafe { rule.state.states()? },
            log,
            num_pending: &[],
            pending_path: &[],
            capture,
            // SAFETY: as above.
            out: unsafe { rule.out.rows_mut(rule.out_tokens())? },
        };
        Ok(args.check()?)
    };
    // Checked before the states are touched.
    windows()?;
    if let Some(Pending { log, num, path }) = pending {
        // SAFETY: as above.
        let state_indices = unsafe { rule.state_indices.i32s()? };
        // SAFETY: as above.
        let num_kept = unsafe { num.u32s()? };
        check_counts("num_pending", num_kept, state_indices)?;
        let commit = CommitStatesArgs {
            dims: rule.dims,
            head_map: rule.head_map(),
            num_slots: rule.num_slots,
            // SAFETY: as above.
            state: unsafe { rule.state.states()? },
            // SAFETY: as above.
            log: unsafe { log.host()? },
            state_indices,
            num_kept,
            // SAFETY: as above.
            path: path.map_or(Ok(&[][..]), |path| unsafe { path.u32s() })?,
        };
        backend.commit_states(commit.check()?)?;
    }
    Ok(backend.fused_recurrent_gated_delta_rule(windows()?)?)
}

fn on_cuda(
    values: &mut Values<'_>,
    index: i32,
    args: &Args,
    rule: &DeltaRule,
    leaves: &Leaves<'_>,
    pending: Option<&Pending<'_>>,
    window: usize,
) -> Result<()> {
    let mut params = RecurrentParams::new(&rule.dims, rule.num_seqs);
    set_params!(params, rule);
    params.parents = address(args.parents.as_ref());
    let most = match leaves {
        Leaves::Log(log) => {
            log.check_device()?;
            params.capture = Captured::DeltaLog;
            params.log_k = log.k.data as u64;
            params.log_decay = log.decay.data as u64;
            params.log_delta = log.delta.data as u64;
            params.log_max = i32_of("max_tokens", log.max_tokens)?;
            log.max_tokens
        }
        Leaves::States { states, max_tokens } => {
            states.check_alignment(16)?;
            params.capture = Captured::PerToken;
            params.captured = states.data as u64;
            params.capture_max = i32_of("max_tokens", *max_tokens)?;
            *max_tokens
        }
    };
    if window > most {
        return Err(Error::MaxWindow { max_window: most, seq: 0, got: window });
    }
    let longest = if window > 0 { window } else { most }.min(rule.num_tokens());
    params.max_window = i32_of("max_window", longest)?;
    if let Some(Pending { log, num, path }) = pending {
        log.check_device()?;
        params.pending_k = log.k.data as u64;
        params.pending_decay = log.decay.data as u64;
        params.pending_delta = log.delta.data as u64;
        params.pending_max = i32_of("max_tokens", log.max_tokens)?;
        params.num_pending = num.data as u64;
        params.pending_path = address(*path);
    }
    let (launcher, stream) = values.caller.cuda(index)?;
    // SAFETY: sizes, strides, element types, alignment and overlap are checked, so that the two logs are two; the caller's library
    // keeps the tensors until the stream's work is done; what the lists hold is the caller's promise.
    unsafe { launcher.fused_recurrent_gated_delta_rule(stream, &params, rule.state_elements()?)? };
    Ok(())
}
