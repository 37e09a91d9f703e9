"""The operations on torch tensors, CPU and CUDA.

Every function calls one dispatcher operation of the namespace ``torch.ops.undraft``, which works in place: states and
logs are changed, outputs go into ``out``, which is made where it is not given. On CUDA a call puts kernels on torch's
current stream of the tensors' device and returns; it does not synchronise and can be captured in a CUDA graph.

Sizes: ``B`` sequences, ``T`` tokens of each, ``num_tokens`` of all, ``H`` key heads, ``HV`` value heads (a multiple of
``H``), ``K`` and ``V`` sizes of a key and of a value head, ``W`` width of the convolution, ``C`` its channels. Tokens
come as ``[B, T, ..]``, or packed as ``[num_tokens, ..]`` with ``cu_seqlens``.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .._library import Error
from .._options import (
    ACTIVATION,
    DECAY,
    GATE_ACTIVATION,
    HEAD_MAP,
    ROUNDING,
    Activation,
    Capture,
    DecayForm,
    GateActivation,
    HeadMap,
    Rounding,
    check_capture,
    check_checkpoints,
    check_together,
    choice,
)
from . import _registration as _registration
from ._sequences import int32, sequences

__all__ = [
    "DeltaLog",
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "chunk_gated_delta_rule",
    "commit_states",
    "conv_weight_to_tap_major",
    "fused_gdn_gating",
    "fused_recurrent_gated_delta_rule",
    "rms_norm_gated",
    "state_to_key_major",
    "state_to_value_major",
    "verify",
]

_ops = torch.ops.undraft


class DeltaLog(NamedTuple):
    """What a window leaves so that it can be taken back: per token the key, the decay factor and the delta, all f32.

    A log of several layers has one more axis in front, of all three tensors; :meth:`layer` is one of them.
    """

    k: Tensor
    """``[num_slots, max_tokens, H, K]``, as used: normalised where the call normalises."""
    decay: Tensor
    """``[num_slots, max_tokens, HV]``, or ``[num_slots, max_tokens, HV, K]`` with a decay per channel (KDA)."""
    delta: Tensor
    """``[num_slots, max_tokens, HV, V]``, ``(v - S k) * beta``."""

    @classmethod
    def empty(
        cls,
        num_slots: int,
        max_tokens: int,
        num_k_heads: int,
        num_v_heads: int,
        head_k_dim: int,
        head_v_dim: int,
        *,
        num_layers: int | None = None,
        per_channel: bool = False,
        device: torch.device | str | None = None,
    ) -> "DeltaLog":
        """A log of zeros for windows of up to ``max_tokens`` tokens; with ``num_layers`` one for all layers."""
        outer = (num_slots, max_tokens) if num_layers is None else (num_layers, num_slots, max_tokens)
        decay = (num_v_heads, head_k_dim) if per_channel else (num_v_heads,)

        def make(*shape: int) -> Tensor:
            return torch.zeros(*outer, *shape, dtype=torch.float32, device=device)

        return cls(make(num_k_heads, head_k_dim), make(*decay), make(num_v_heads, head_v_dim))

    def layer(self, layer: int) -> "DeltaLog":
        """The log of one layer of a log of several: views, no copies."""
        return DeltaLog(self.k[layer], self.decay[layer], self.delta[layer])


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    *,
    state_indices: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    decay: DecayForm = "log",
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    beta_is_logit: bool = False,
    head_map: HeadMap = "grouped",
    qk_l2norm_eps: float | None = None,
    rounding: Rounding = "f32",
    scale: float | None = None,
    max_window: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """Runs the recurrence token by token and moves the states on, for good: decode and exact prefill.

    A window here gives the bits of its tokens one by one, and of :func:`verify` with a commit of all of them.

    ============================ =============================================== ====================
    argument                     shape                                           dtype
    ============================ =============================================== ====================
    ``q``, ``k``                 ``[B, T, H, K]`` or ``[num_tokens, H, K]``      f32, bf16, f16
    ``v``                        ``[B, T, HV, V]`` or ``[num_tokens, HV, V]``    f32, bf16, f16
    ``g``                        ``[.., HV]``; a decay per channel ``[.., HV, K]``  f32, bf16, f16
    ``beta``                     ``[.., HV]``                                    f32, bf16, f16
    ``state``, in and out        ``[num_slots, HV, V, K]``                       f32, bf16, f16
    ``state_indices``            ``[B]``, -1 = padding, no slot twice            int32 (int64 is converted)
    ``cu_seqlens``, if packed    ``[B + 1]``                                     int32 (int64 is converted)
    ============================ =============================================== ====================

    q, k and v may be views of one fused row ``[q | k | v]``: the heads of a token are contiguous, tokens may lie
    further apart.

    Args:
        state_indices: Slot of each sequence; default slots ``0 .. B - 1``.
        cu_seqlens: Where the sequences of packed tensors begin and end; by default every packed token is a sequence.
        decay: What ``g`` is: ``"log"`` the factor is ``exp(g)``; ``"linear"`` the factor itself; ``"neg_log"``
            ``exp(-g)``; ``"gate"`` the raw gate ``a``, the factor is ``exp(-exp(A_log) * softplus(a + dt_bias))``.
        A_log: ``[HV]`` f32, with ``decay="gate"``.
        dt_bias: ``[HV]`` (or ``[HV, K]``) f32, with ``decay="gate"``.
        beta_is_logit: Whether the operation takes the sigmoid of ``beta``.
        head_map: Which key head value head ``hv`` reads: ``"grouped"`` ``hv // (HV // H)``, ``"tiled"`` ``hv % H``.
        qk_l2norm_eps: Normalises q and k as ``x * rsqrt(sum(x^2) + eps)``; None takes them as they are.
        rounding: ``"io"`` rounds beta and the normalised q and k to the dtype of q and k, as some references do.
        scale: Factor on the output, default ``K ** -0.5``.
        max_window: With packed tensors on CUDA, a promise that no sequence is longer, which chooses the kernel; 0:
            none.
        out: Like ``v``; made where it is None.

    Returns:
        ``out``, shaped like ``v``.

    Raises:
        RuntimeError: Names the argument, what was expected and what came; nothing was touched.

    Example:
        >>> import torch, undraft.torch
        >>> q = k = torch.randn(2, 1, 4, 64)            # B = 2 sequences, T = 1 token, H = 4 key heads
        >>> v = torch.randn(2, 1, 8, 64)                # HV = 8 value heads
        >>> g, beta = -torch.rand(2, 1, 8), torch.rand(2, 1, 8)
        >>> state = torch.zeros(16, 8, 64, 64)          # 16 slots
        >>> slots = torch.tensor([3, 5], dtype=torch.int32)
        >>> o = undraft.torch.fused_recurrent_gated_delta_rule(
        ...     q, k, v, g, beta, state, state_indices=slots, qk_l2norm_eps=1e-6)
        >>> o.shape, bool(state[3].any()), bool(state[0].any())
        (torch.Size([2, 1, 8, 64]), True, False)
    """
    if torch.is_grad_enabled():
        _refuse_grad(q=q, k=k, v=v, g=g, beta=beta, state=state, A_log=A_log, dt_bias=dt_bias, out=out)
    cu_seqlens, state_indices, window = sequences(q, cu_seqlens, state_indices, 4)
    if out is None:
        out = torch.empty_like(v, memory_format=torch.contiguous_format)
    _ops.fused_recurrent_gated_delta_rule(
        q,
        k,
        v,
        g,
        beta,
        state,
        out,
        cu_seqlens,
        state_indices,
        A_log,
        dt_bias,
        choice("decay", decay, DECAY),
        beta_is_logit,
        choice("head_map", head_map, HEAD_MAP),
        -1.0 if qk_l2norm_eps is None else qk_l2norm_eps,
        choice("rounding", rounding, ROUNDING),
        _scale(scale, q),
        window or max_window,
    )
    return out


def verify(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    log: DeltaLog | None = None,
    *,
    capture: Capture = "delta_log",
    captured: Tensor | None = None,
    state_indices: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    parents: Tensor | None = None,
    pending_log: DeltaLog | None = None,
    num_pending: Tensor | None = None,
    pending_path: Tensor | None = None,
    decay: DecayForm = "log",
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    beta_is_logit: bool = False,
    head_map: HeadMap = "grouped",
    qk_l2norm_eps: float | None = None,
    rounding: Rounding = "f32",
    scale: float | None = None,
    max_window: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """Runs a window of drafted tokens that can be taken back: the states stay, the window goes into the log.

    ``out`` is, bit for bit, that of :func:`fused_recurrent_gated_delta_rule` over the same tokens, however they are cut
    into windows. Afterwards :func:`commit_states` says how many tokens stay; not calling it keeps none.

    The arguments of :func:`fused_recurrent_gated_delta_rule`, and:

    Args:
        log: Filled for the slots of the call; windows have at most ``max_tokens`` tokens.
        capture: ``"delta_log"``, or ``"per_token"``: ``captured`` takes the state after each token,
            ``[B, max_tokens, HV, V, K]`` in the dtype of ``state``, and there is no log.
        captured: With ``capture="per_token"``.
        parents: ``[B, T]`` or ``[num_tokens]`` int32, a draft tree in each window: the position in the window of the
            token that a token follows, -1 = the committed state; parents come before their children. Default: chains.
        pending_log: The log of the window before, of which ``num_pending`` entries stay and are replayed into the
            states first: a commit and the next window in one pass over the states. It is another log than ``log``: a
            caller keeps two and swaps them.
        num_pending: ``[B]`` int32, with ``pending_log``.
        pending_path: ``[B, max_tokens]`` int32: which entries those are, rising; default the first ones.

    Returns:
        ``out``, shaped like ``v``.

    Raises:
        RuntimeError: Names the argument, what was expected and what came; nothing was touched.

    Example:
        >>> import torch, undraft.torch as ut
        >>> q = k = torch.randn(1, 3, 2, 32)            # a window of 3 drafted tokens
        >>> v, g, beta = torch.randn(1, 3, 4, 32), -torch.rand(1, 3, 4), torch.rand(1, 3, 4)
        >>> state = torch.zeros(8, 4, 32, 32)
        >>> log = ut.DeltaLog.empty(8, 4, 2, 4, 32, 32)
        >>> o = ut.verify(q, k, v, g, beta, state, log)
        >>> bool(state.any())                           # as it was
        False
        >>> ut.commit_states(state, log, torch.tensor([2], dtype=torch.int32))  # two of the three stay
        >>> once = torch.zeros(8, 4, 32, 32)
        >>> _ = ut.fused_recurrent_gated_delta_rule(q[:, :2], k[:, :2], v[:, :2], g[:, :2], beta[:, :2], once)
        >>> torch.equal(state, once)
        True
    """
    if torch.is_grad_enabled():
        _refuse_grad(q=q, k=k, v=v, g=g, beta=beta, state=state, A_log=A_log, dt_bias=dt_bias, out=out)
    check_capture(capture, log, captured)
    check_together(pending_log=pending_log, num_pending=num_pending)
    cu_seqlens, state_indices, window = sequences(q, cu_seqlens, state_indices, 4)
    if out is None:
        out = torch.empty_like(v, memory_format=torch.contiguous_format)
    log_k, log_decay, log_delta = log or (None, None, None)
    pending_k, pending_decay, pending_delta = pending_log or (None, None, None)
    _ops.verify(
        q,
        k,
        v,
        g,
        beta,
        state,
        log_k,
        log_decay,
        log_delta,
        captured,
        out,
        cu_seqlens,
        state_indices,
        None if parents is None else int32("parents", parents).reshape(-1),
        pending_k,
        pending_decay,
        pending_delta,
        None if num_pending is None else int32("num_pending", num_pending),
        None if pending_path is None else int32("pending_path", pending_path),
        A_log,
        dt_bias,
        choice("decay", decay, DECAY),
        beta_is_logit,
        choice("head_map", head_map, HEAD_MAP),
        -1.0 if qk_l2norm_eps is None else qk_l2norm_eps,
        choice("rounding", rounding, ROUNDING),
        _scale(scale, q),
        window or max_window,
    )
    return out


def commit_states(
    state: Tensor,
    log: DeltaLog,
    num_kept: Tensor,
    *,
    state_indices: Tensor | None = None,
    path: Tensor | None = None,
    head_map: HeadMap = "grouped",
    conv_state: Tensor | None = None,
    conv_log: Tensor | None = None,
) -> None:
    """Replays the kept tokens of a window into the states: all slots, and all layers, in one call.

    The states are then, bit for bit, those of decoding just those tokens. ``num_kept`` is read on the device, so that a
    CUDA graph may replay a commit whose counts change.

    ========================= ================================================== ===============
    argument                  shape; one more axis ``[num_layers, ..]`` in front  dtype
                              of the first four for all layers at once
    ========================= ================================================== ===============
    ``state``, in and out     ``[num_slots, HV, V, K]``                          f32, bf16, f16
    ``log``                   :class:`DeltaLog`                                  f32
    ``conv_state``, in, out   ``[num_slots, W - 1, C]``                          f32
    ``conv_log``              ``[num_slots, max_tokens, C]``                     f32
    ``num_kept``              ``[B]``, each 0 to the tokens of its window        int32 (int64 is converted)
    ``state_indices``         ``[B]``, -1 = padding; default ``0 .. B - 1``      int32 (int64 is converted)
    ``path``                  ``[B, max_tokens]``, rising                        int32 (int64 is converted)
    ========================= ================================================== ===============

    Args:
        num_kept: How many of the log's entries stay of each sequence, 0 = none: the states are as before the window.
        path: Which entries stay, of a draft tree: each the parent of the next; of a sequence the first ``num_kept``
            count. Default: the first entries.
        head_map: As in the call of :func:`verify`.
        conv_state: The convolution's state is moved on as well, by the entries of ``conv_log``.
        conv_log: With ``conv_state``; filled by :func:`causal_conv1d_update`.

    Raises:
        RuntimeError: Names the argument, what was expected and what came; nothing was touched.
    """
    num_kept = int32("num_kept", num_kept)
    no_tokens, state_indices, _ = sequences(num_kept, None, state_indices, 0)
    if path is not None:
        path = int32("path", path)
    check_together(conv_state=conv_state, conv_log=conv_log)
    _ops.commit_states(state, *log, num_kept, state_indices, path, choice("head_map", head_map, HEAD_MAP))
    if conv_state is not None:
        _ops.commit_conv_states(conv_state, conv_log, num_kept, state_indices, path, no_tokens)


def causal_conv1d_update(
    x: Tensor,
    weight: Tensor,
    state: Tensor,
    *,
    bias: Tensor | None = None,
    activation: Activation = "silu",
    state_indices: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    log: Tensor | None = None,
    parents: Tensor | None = None,
    num_pending: Tensor | None = None,
    pending_path: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Causal depthwise convolution of a window; with a log it can be taken back, without one the state moves on.

    ``y[t, c] = act(bias[c] + sum_j weight[j, c] * x[t - W + 1 + j, c])``

    ===================== ====================================================== ====================
    argument              shape                                                  dtype
    ===================== ====================================================== ====================
    ``x``                 ``[B, T, C]`` or ``[num_tokens, C]``                   f32, bf16, f16
    ``weight``            ``[W, C]``, last tap = the present token               f32
    ``bias``              ``[C]``                                                f32
    ``state``, in, out    ``[num_slots, W - 1, C]``, oldest input first          f32
    ``log``, out          ``[num_slots, max_tokens, C]``, the window's inputs    f32
    ===================== ====================================================== ====================

    Args:
        weight: The package causal-conv1d and transformers have ``[C, W]``; :func:`conv_weight_to_tap_major` turns it,
            once.
        activation: ``"silu"`` or ``"none"``.
        state_indices, cu_seqlens, parents: As in :func:`verify`.
        log: Takes the inputs of the window, and ``state`` stays as it was; :func:`commit_states` moves it on.
        num_pending: ``[B]`` int32: so many entries of ``log`` stay of the window before and are moved into ``state``
            first.
        pending_path: ``[B, max_tokens]`` int32: which entries those are, rising; default the first ones.
        out: Like ``x``; made where it is None.

    Returns:
        ``out``, shaped like ``x``.

    Raises:
        RuntimeError: Names the argument, what was expected and what came; nothing was touched.
    """
    if torch.is_grad_enabled():
        _refuse_grad(x=x, weight=weight, state=state, bias=bias, out=out)
    cu_seqlens, state_indices, _ = sequences(x, cu_seqlens, state_indices, 3)
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _ops.causal_conv1d_update(
        x,
        weight,
        state,
        log,
        out,
        cu_seqlens,
        state_indices,
        bias,
        None if parents is None else int32("parents", parents).reshape(-1),
        None if num_pending is None else int32("num_pending", num_pending),
        None if pending_path is None else int32("pending_path", pending_path),
        choice("activation", activation, ACTIVATION),
    )
    return out


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    state: Tensor,
    *,
    bias: Tensor | None = None,
    activation: Activation = "silu",
    state_indices: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """:func:`causal_conv1d_update` without a log, for prompts: the state moves on.

    The results are the same, bit for bit; long sequences are shared out over more of the device.
    """
    if torch.is_grad_enabled():
        _refuse_grad(x=x, weight=weight, state=state, bias=bias, out=out)
    cu_seqlens, state_indices, _ = sequences(x, cu_seqlens, state_indices, 3)
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    silu = choice("activation", activation, ACTIVATION)
    _ops.causal_conv1d_fn(x, weight, state, out, cu_seqlens, state_indices, bias, silu)
    return out


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    *,
    state_indices: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    decay: DecayForm = "log",
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    beta_is_logit: bool = False,
    head_map: HeadMap = "grouped",
    qk_l2norm_eps: float | None = None,
    rounding: Rounding = "f32",
    scale: float | None = None,
    checkpoints: Tensor | None = None,
    checkpoint_every: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """The matrix form of the recurrence, 64 tokens at a time, for prompts; moves the states on.

    Deterministic and close to :func:`fused_recurrent_gated_delta_rule`, not bit-equal to it. The arguments of that
    function, and:

    Args:
        checkpoints: ``[num_checkpoints, HV, V, K]`` in the dtype of ``state``: a sequence of n tokens leaves its states
            after ``checkpoint_every``, ``2 * checkpoint_every``, .. tokens there, sequences one after the other; at
            least ``num_tokens // checkpoint_every`` of them.
        checkpoint_every: Tokens from one checkpoint to the next, with ``checkpoints``; a multiple of 64 changes nothing
            else.

    Returns:
        ``out``, shaped like ``v``.

    Raises:
        RuntimeError: Names the argument, what was expected and what came; nothing was touched.
    """
    if torch.is_grad_enabled():
        _refuse_grad(q=q, k=k, v=v, g=g, beta=beta, state=state, A_log=A_log, dt_bias=dt_bias, out=out)
    check_checkpoints(checkpoints, checkpoint_every)
    cu_seqlens, state_indices, _ = sequences(q, cu_seqlens, state_indices, 4)
    if out is None:
        out = torch.empty_like(v, memory_format=torch.contiguous_format)
    _ops.chunk_gated_delta_rule(
        q,
        k,
        v,
        g,
        beta,
        state,
        checkpoints,
        out,
        cu_seqlens,
        state_indices,
        A_log,
        dt_bias,
        choice("decay", decay, DECAY),
        beta_is_logit,
        choice("head_map", head_map, HEAD_MAP),
        -1.0 if qk_l2norm_eps is None else qk_l2norm_eps,
        choice("rounding", rounding, ROUNDING),
        _scale(scale, q),
        checkpoint_every,
    )
    return out


def fused_gdn_gating(
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    *,
    g: Tensor | None = None,
    beta: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Log decay and beta from the gate projections: ``g = -exp(A_log) * softplus(a + dt_bias)``, ``beta = sigmoid(b)``.

    Args:
        a: ``[.., HV]``, or ``[.., HV, K]`` with a decay per channel; f32, bf16, f16.
        b: ``[.., HV]``; f32, bf16, f16.
        A_log: ``[HV]`` f32.
        dt_bias: ``[HV]`` f32, or ``[HV, K]``.
        g: Like ``a`` in f32; made where it is None.
        beta: Like ``b`` in f32; made where it is None.

    Returns:
        ``g`` and ``beta``.

    Raises:
        RuntimeError: Names the argument, what was expected and what came; nothing was touched.
    """
    if torch.is_grad_enabled():
        _refuse_grad(a=a, b=b, A_log=A_log, dt_bias=dt_bias, g=g, beta=beta)
    if g is None:
        g = torch.empty_like(a, dtype=torch.float32, memory_format=torch.contiguous_format)
    if beta is None:
        beta = torch.empty_like(b, dtype=torch.float32, memory_format=torch.contiguous_format)
    _ops.fused_gdn_gating(a, b, A_log, dt_bias, g, beta)
    return g, beta


def rms_norm_gated(
    x: Tensor,
    z: Tensor,
    weight: Tensor,
    *,
    eps: float = 1e-6,
    activation: GateActivation = "silu",
    out: Tensor | None = None,
) -> Tensor:
    """``out = x / sqrt(mean(x^2) + eps) * weight * act(z)``, over the last axis.

    Args:
        x: ``[.., HV, V]``; f32, bf16, f16.
        z: Like ``x``, the gate.
        weight: ``[V]`` f32, plain (no ``1 + w``).
        eps: Under the root, on the mean.
        activation: Of the gate, ``"silu"`` or ``"sigmoid"``.
        out: Like ``x``; made where it is None.

    Returns:
        ``out``, shaped like ``x``.

    Raises:
        RuntimeError: Names the argument, what was expected and what came; nothing was touched.
    """
    if torch.is_grad_enabled():
        _refuse_grad(x=x, z=z, weight=weight, out=out)
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _ops.rms_norm_gated(x, z, weight, out, eps, choice("activation", activation, GATE_ACTIVATION))
    return out


def conv_weight_to_tap_major(weight: Tensor) -> Tensor:
    """A convolution's weight ``[C, W]`` or ``[C, 1, W]`` (transformers, causal-conv1d) as ``[W, C]`` f32: a copy."""
    if weight.dim() == 3:
        weight = weight.squeeze(1)
    return weight.detach().t().to(torch.float32).clone(memory_format=torch.contiguous_format)


def state_to_value_major(state: Tensor) -> Tensor:
    """States ``[.., HV, K, V]`` (transformers, flash-linear-attention) as ``[.., HV, V, K]``: a copy."""
    return state.transpose(-1, -2).clone(memory_format=torch.contiguous_format)


def state_to_key_major(state: Tensor) -> Tensor:
    """States ``[.., HV, V, K]`` as ``[.., HV, K, V]`` (transformers, flash-linear-attention): a copy."""
    return state.transpose(-1, -2).clone(memory_format=torch.contiguous_format)


def _refuse_grad(**tensors: Tensor | None) -> None:
    for arg, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad:
            raise Error(
                f"`{arg}` requires a gradient, which the operations do not compute; call within `torch.no_grad()`, or "
                f"pass `{arg}.detach()`"
            )


def _scale(scale: float | None, q: Tensor) -> float:
    return 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
