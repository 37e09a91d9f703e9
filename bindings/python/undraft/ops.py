"""The operations on arrays of host memory: NumPy's, and any that export DLPack. Needs no torch.

They work in place: states and logs are changed, outputs go into ``out``, which is made where it is not given. Shapes,
dtypes and options are those of :mod:`undraft.torch.ops`, bit for bit the same results; bf16 comes through DLPack, or as
the dtype of the package ml_dtypes.

===================================== ===================================================== ==================
argument                              shape                                                 dtype
===================================== ===================================================== ==================
``q``, ``k``                          ``[B, T, H, K]`` or ``[num_tokens, H, K]``            f32, bf16, f16
``v``, ``out``                        ``[B, T, HV, V]`` or ``[num_tokens, HV, V]``          f32, bf16, f16
``g``                                 ``[.., HV]``, or ``[.., HV, K]`` (a decay per channel)  f32, bf16, f16
``beta``                              ``[.., HV]``                                          f32, bf16, f16
``state``                             ``[num_slots, HV, V, K]``                             f32, bf16, f16
``log``                               :class:`DeltaLog`                                     f32
``state_indices``                     ``[B]``, -1 = padding; default ``0 .. B - 1``         int32
``cu_seqlens``                        ``[B + 1]``; default: every packed token a sequence   int32
``parents``                           ``[B, T]`` or ``[num_tokens]``; default chains        int32
``num_kept``, ``num_pending``         ``[B]``                                               int32
``path``, ``pending_path``            ``[B, max_tokens]``; default the first entries        int32
===================================== ===================================================== ==================

Integers may be lists. Every function raises :class:`undraft.Error` with the argument, what was expected and what came;
nothing was touched then.
"""

import ctypes
import math
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._arrays import Array, ArrayView, empty_like, int32, shape_of, view
from ._library import Error, call, find
from ._options import (
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

Integers = Array | list[int] | list[list[int]]


class DeltaLog(NamedTuple):
    """What a window leaves so that it can be taken back: per token the key, the decay factor and the delta, all f32.

    A log of several layers has one more axis in front, of all three arrays; :meth:`layer` is one of them.
    """

    k: Array
    """``[num_slots, max_tokens, H, K]``, as used: normalised where the call normalises."""
    decay: Array
    """``[num_slots, max_tokens, HV]``, or ``[num_slots, max_tokens, HV, K]`` with a decay per channel (KDA)."""
    delta: Array
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
    ) -> "DeltaLog":
        """A log of zeros for windows of up to ``max_tokens`` tokens; with ``num_layers`` one for all layers."""
        outer = (num_slots, max_tokens) if num_layers is None else (num_layers, num_slots, max_tokens)
        decay = (num_v_heads, head_k_dim) if per_channel else (num_v_heads,)

        def make(*shape: int) -> NDArray[np.float32]:
            return np.zeros((*outer, *shape), np.float32)

        return cls(make(num_k_heads, head_k_dim), make(*decay), make(num_v_heads, head_v_dim))

    def layer(self, layer: int) -> "DeltaLog":
        """The log of one layer of a log of several: views, no copies."""
        return DeltaLog(*(array[layer] for array in self))  # type: ignore[index]


class _Op:
    """An operation: turns values into 64 bits each."""

    def __init__(self, name: str, params: str) -> None:
        self._number = find(name)
        self._params = params.split()

    def __call__(self, *values: Array | float | None) -> None:
        views: list[ArrayView] = []
        bits = (ctypes.c_uint64 * len(values))()
        for i, (name, value) in enumerate(zip(self._params, values, strict=True)):
            if value is None:
                continue
            if isinstance(value, int):
                bits[i] = value & 0xFFFF_FFFF_FFFF_FFFF
            elif isinstance(value, float):
                bits[i] = struct.unpack("=Q", struct.pack("=d", value))[0]
            else:
                views.append(view(name, value))
                bits[i] = ctypes.addressof(views[-1])
        call(self._number, bits)


_RULE = "decay beta_is_logit head_map qk_l2norm_eps rounding scale"
_recurrent = _Op(
    "fused_recurrent_gated_delta_rule",
    f"q k v g beta state out cu_seqlens state_indices A_log dt_bias {_RULE} max_window",
)
_verify = _Op(
    "verify",
    "q k v g beta state log_k log_decay log_delta captured out cu_seqlens state_indices parents "
    f"pending_k pending_decay pending_delta num_pending pending_path A_log dt_bias {_RULE} max_window",
)
_commit = _Op("commit_states", "state log_k log_decay log_delta num_kept state_indices path head_map")
_commit_conv = _Op("commit_conv_states", "conv_state conv_log num_kept state_indices path no_tokens")
_conv_update = _Op(
    "causal_conv1d_update",
    "x weight state log out cu_seqlens state_indices bias parents num_pending pending_path silu",
)
_conv_fn = _Op("causal_conv1d_fn", "x weight state out cu_seqlens state_indices bias silu")
_chunk = _Op(
    "chunk_gated_delta_rule",
    f"q k v g beta state checkpoints out cu_seqlens state_indices A_log dt_bias {_RULE} checkpoint_every",
)
_gating = _Op("fused_gdn_gating", "a b A_log dt_bias g beta")
_norm = _Op("rms_norm_gated", "x z weight out eps silu")


def fused_recurrent_gated_delta_rule(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    state: Array,
    *,
    state_indices: Integers | None = None,
    cu_seqlens: Integers | None = None,
    decay: DecayForm = "log",
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    beta_is_logit: bool = False,
    head_map: HeadMap = "grouped",
    qk_l2norm_eps: float | None = None,
    rounding: Rounding = "f32",
    scale: float | None = None,
    out: Array | None = None,
) -> Array:
    """Runs the recurrence token by token and moves the states on, for good: decode and exact prefill.

    Args:
        decay: What ``g`` is: ``"log"`` the factor is ``exp(g)``; ``"linear"`` the factor itself; ``"neg_log"``
            ``exp(-g)``; ``"gate"`` the raw gate ``a``, the factor is ``exp(-exp(A_log) * softplus(a + dt_bias))``.
        A_log: ``[HV]`` f32, with ``decay="gate"``.
        dt_bias: ``[HV]`` (or ``[HV, K]``) f32, with ``decay="gate"``.
        beta_is_logit: Whether the operation takes the sigmoid of ``beta``.
        head_map: Which key head value head ``hv`` reads: ``"grouped"`` ``hv // (HV // H)``, ``"tiled"`` ``hv % H``.
        qk_l2norm_eps: Normalises q and k as ``x * rsqrt(sum(x^2) + eps)``; None takes them as they are.
        rounding: ``"io"`` rounds beta and the normalised q and k to the dtype of q and k, as some references do.
        scale: Factor on the output, default ``K ** -0.5``.

    Returns:
        ``out``, shaped like ``v``.

    Example:
        >>> import numpy as np, undraft
        >>> rng = np.random.default_rng(0)
        >>> q = k = rng.standard_normal((2, 1, 4, 64), np.float32)   # B = 2 sequences, T = 1 token, H = 4 key heads
        >>> v = rng.standard_normal((2, 1, 8, 64), np.float32)       # HV = 8 value heads
        >>> g, beta = -rng.random((2, 1, 8), np.float32), rng.random((2, 1, 8), np.float32)
        >>> state = np.zeros((16, 8, 64, 64), np.float32)            # 16 slots
        >>> o = undraft.fused_recurrent_gated_delta_rule(
        ...     q, k, v, g, beta, state, state_indices=[3, 5], qk_l2norm_eps=1e-6)
        >>> o.shape, bool(state[3].any()), bool(state[0].any())
        ((2, 1, 8, 64), True, False)
    """
    seqlens, slots, _ = _sequences("q", q, cu_seqlens, state_indices, 4)
    out = empty_like("v", v) if out is None else out
    options = _rule(q, decay, beta_is_logit, head_map, qk_l2norm_eps, rounding, scale)
    _recurrent(q, k, v, g, beta, state, out, seqlens, slots, A_log, dt_bias, *options, 0)
    return out


def verify(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    state: Array,
    log: DeltaLog | None = None,
    *,
    capture: Capture = "delta_log",
    captured: Array | None = None,
    state_indices: Integers | None = None,
    cu_seqlens: Integers | None = None,
    parents: Integers | None = None,
    pending_log: DeltaLog | None = None,
    num_pending: Integers | None = None,
    pending_path: Integers | None = None,
    decay: DecayForm = "log",
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    beta_is_logit: bool = False,
    head_map: HeadMap = "grouped",
    qk_l2norm_eps: float | None = None,
    rounding: Rounding = "f32",
    scale: float | None = None,
    out: Array | None = None,
) -> Array:
    """Runs a window of drafted tokens that can be taken back: the states stay, the window goes into the log.

    ``out`` is, bit for bit, that of :func:`fused_recurrent_gated_delta_rule` over the same tokens, however they are cut
    into windows. Afterwards :func:`commit_states` says how many tokens stay; not calling it keeps none.

    The arguments of :func:`fused_recurrent_gated_delta_rule`, and:

    Args:
        log: Filled for the slots of the call; windows have at most ``max_tokens`` tokens.
        capture: ``"delta_log"``, or ``"per_token"``: ``captured`` takes the state after each token,
            ``[B, max_tokens, HV, V, K]``, and there is no log.
        parents: A draft tree in each window: the position in the window of the token that a token follows, -1 = the
            committed state.
        pending_log: The log of the window before, of which ``num_pending`` entries stay and are replayed into the
            states first; another log than ``log``.
        pending_path: Which entries those are, rising.

    Returns:
        ``out``, shaped like ``v``.
    """
    check_capture(capture, log, captured)
    check_together(pending_log=pending_log, num_pending=num_pending)
    seqlens, slots, _ = _sequences("q", q, cu_seqlens, state_indices, 4)
    out = empty_like("v", v) if out is None else out
    _verify(
        *(q, k, v, g, beta, state),
        *(log or (None, None, None)),
        *(captured, out, seqlens, slots),
        _flat(parents),
        *(pending_log or (None, None, None)),
        None if num_pending is None else int32("num_pending", num_pending),
        None if pending_path is None else int32("pending_path", pending_path),
        *(A_log, dt_bias),
        *_rule(q, decay, beta_is_logit, head_map, qk_l2norm_eps, rounding, scale),
        0,
    )
    return out


def commit_states(
    state: Array,
    log: DeltaLog,
    num_kept: Integers,
    *,
    state_indices: Integers | None = None,
    path: Integers | None = None,
    head_map: HeadMap = "grouped",
    conv_state: Array | None = None,
    conv_log: Array | None = None,
) -> None:
    """Replays the kept tokens of a window into the states: all slots, and all layers, in one call.

    The states are then, bit for bit, those of decoding just those tokens. ``state``, ``log``, ``conv_state`` and
    ``conv_log`` may have an axis of layers in front.

    Args:
        num_kept: How many of the log's entries stay of each sequence; 0 leaves the states as before the window.
        path: Which entries stay, of a draft tree: each the parent of the next.
        head_map: As in the call of :func:`verify`.
        conv_state: ``[num_slots, W - 1, C]`` f32: the convolution's state is moved on as well, by the entries of
            ``conv_log``.
        conv_log: ``[num_slots, max_tokens, C]`` f32, filled by :func:`causal_conv1d_update`.
    """
    kept = int32("num_kept", num_kept)
    no_tokens, slots, _ = _sequences("num_kept", kept, None, state_indices, 0)
    entries = None if path is None else int32("path", path)
    check_together(conv_state=conv_state, conv_log=conv_log)
    _commit(state, *log, kept, slots, entries, choice("head_map", head_map, HEAD_MAP))
    if conv_state is not None:
        _commit_conv(conv_state, conv_log, kept, slots, entries, no_tokens)


def causal_conv1d_update(
    x: Array,
    weight: Array,
    state: Array,
    *,
    bias: Array | None = None,
    activation: Activation = "silu",
    state_indices: Integers | None = None,
    cu_seqlens: Integers | None = None,
    log: Array | None = None,
    parents: Integers | None = None,
    num_pending: Integers | None = None,
    pending_path: Integers | None = None,
    out: Array | None = None,
) -> Array:
    """Causal depthwise convolution of a window; with a log it can be taken back, without one the state moves on.

    ``y[t, c] = act(bias[c] + sum_j weight[j, c] * x[t - W + 1 + j, c])``

    Args:
        x: ``[B, T, C]`` or ``[num_tokens, C]``; f32, bf16, f16.
        weight: ``[W, C]`` f32, last tap = the present token; :func:`conv_weight_to_tap_major` makes it of ``[C, W]``.
        state: ``[num_slots, W - 1, C]`` f32, oldest input first.
        bias: ``[C]`` f32.
        activation: ``"silu"`` or ``"none"``.
        log: ``[num_slots, max_tokens, C]`` f32: takes the inputs of the window, and ``state`` stays as it was.
        num_pending: So many entries of ``log`` stay of the window before and are moved into ``state`` first.

    Returns:
        ``out``, shaped like ``x``.
    """
    seqlens, slots, _ = _sequences("x", x, cu_seqlens, state_indices, 3)
    out = empty_like("x", x) if out is None else out
    _conv_update(
        *(x, weight, state, log, out, seqlens, slots, bias, _flat(parents)),
        None if num_pending is None else int32("num_pending", num_pending),
        None if pending_path is None else int32("pending_path", pending_path),
        choice("activation", activation, ACTIVATION),
    )
    return out


def causal_conv1d_fn(
    x: Array,
    weight: Array,
    state: Array,
    *,
    bias: Array | None = None,
    activation: Activation = "silu",
    state_indices: Integers | None = None,
    cu_seqlens: Integers | None = None,
    out: Array | None = None,
) -> Array:
    """:func:`causal_conv1d_update` without a log, for prompts: the same results, bit for bit."""
    seqlens, slots, _ = _sequences("x", x, cu_seqlens, state_indices, 3)
    out = empty_like("x", x) if out is None else out
    _conv_fn(x, weight, state, out, seqlens, slots, bias, choice("activation", activation, ACTIVATION))
    return out


def chunk_gated_delta_rule(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    state: Array,
    *,
    state_indices: Integers | None = None,
    cu_seqlens: Integers | None = None,
    decay: DecayForm = "log",
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    beta_is_logit: bool = False,
    head_map: HeadMap = "grouped",
    qk_l2norm_eps: float | None = None,
    rounding: Rounding = "f32",
    scale: float | None = None,
    checkpoints: Array | None = None,
    checkpoint_every: int = 0,
    out: Array | None = None,
) -> Array:
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
    """
    check_checkpoints(checkpoints, checkpoint_every)
    seqlens, slots, _ = _sequences("q", q, cu_seqlens, state_indices, 4)
    out = empty_like("v", v) if out is None else out
    options = _rule(q, decay, beta_is_logit, head_map, qk_l2norm_eps, rounding, scale)
    _chunk(q, k, v, g, beta, state, checkpoints, out, seqlens, slots, A_log, dt_bias, *options, checkpoint_every)
    return out


def fused_gdn_gating(
    a: Array, b: Array, A_log: Array, dt_bias: Array, *, g: Array | None = None, beta: Array | None = None
) -> tuple[Array, Array]:
    """Log decay and beta from the gate projections: ``g = -exp(A_log) * softplus(a + dt_bias)``, ``beta = sigmoid(b)``.

    Args:
        a: ``[.., HV]``, or ``[.., HV, K]`` with a decay per channel; f32, bf16, f16.
        b: ``[.., HV]``; f32, bf16, f16.
        A_log: ``[HV]`` f32.
        dt_bias: ``[HV]`` f32, or ``[HV, K]``.

    Returns:
        ``g`` and ``beta`` in f32.
    """
    g = np.empty(shape_of("a", a), np.float32) if g is None else g
    beta = np.empty(shape_of("b", b), np.float32) if beta is None else beta
    _gating(a, b, A_log, dt_bias, g, beta)
    return g, beta


def rms_norm_gated(
    x: Array,
    z: Array,
    weight: Array,
    *,
    eps: float = 1e-6,
    activation: GateActivation = "silu",
    out: Array | None = None,
) -> Array:
    """``out = x / sqrt(mean(x^2) + eps) * weight * act(z)``, over the last axis.

    Args:
        x: ``[.., HV, V]``; f32, bf16, f16.
        z: Like ``x``, the gate.
        weight: ``[V]`` f32, plain (no ``1 + w``).

    Returns:
        ``out``, shaped like ``x``.
    """
    out = empty_like("x", x) if out is None else out
    _norm(x, z, weight, out, float(eps), choice("activation", activation, GATE_ACTIVATION))
    return out


def conv_weight_to_tap_major(weight: NDArray[Any]) -> NDArray[np.float32]:
    """A convolution's weight ``[C, W]`` or ``[C, 1, W]`` (transformers, causal-conv1d) as ``[W, C]`` f32: a copy."""
    weight = np.asarray(weight)
    if weight.ndim == 3:
        weight = weight.squeeze(1)
    return np.array(weight.T, np.float32, order="C")


def state_to_value_major(state: NDArray[Any]) -> NDArray[Any]:
    """States ``[.., HV, K, V]`` (transformers, flash-linear-attention) as ``[.., HV, V, K]``: a copy."""
    return np.array(np.asarray(state).swapaxes(-1, -2), order="C")


def state_to_key_major(state: NDArray[Any]) -> NDArray[Any]:
    """States ``[.., HV, V, K]`` as ``[.., HV, K, V]`` (transformers, flash-linear-attention): a copy."""
    return np.array(np.asarray(state).swapaxes(-1, -2), order="C")


def _sequences(
    arg: str, tokens: Array, cu_seqlens: Integers | None, state_indices: Integers | None, batched_rank: int
) -> tuple[Array, Array, int]:
    """``cu_seqlens``, ``state_indices`` and the number of sequences; ``tokens`` as in :mod:`undraft.torch`."""
    shape = shape_of(arg, tokens)
    if not shape:
        raise Error(f"`{arg}` has no axes, expected [B, T, ..] or [num_tokens, ..]")
    if cu_seqlens is not None:
        if len(shape) == batched_rank and shape[0] != 1:
            raise Error(
                f"`cu_seqlens` came with `{arg}` of shape {list(shape)}, expected [num_tokens, ..] or "
                "[1, num_tokens, ..]"
            )
        seqlens = int32("cu_seqlens", cu_seqlens)
        num = shape_of("cu_seqlens", seqlens)[0] - 1
    else:
        num = shape[0]
        window = 0 if batched_rank == 0 else shape[1] if len(shape) == batched_rank else 1
        seqlens = np.arange(num + 1, dtype=np.int32) * np.int32(window)
    if state_indices is None:
        return seqlens, np.arange(num, dtype=np.int32), num
    slots = int32("state_indices", state_indices)
    if shape_of("state_indices", slots) != (num,):
        raise Error(f"`state_indices` has shape {list(shape_of('state_indices', slots))}, expected [num_seqs={num}]")
    return seqlens, slots, num


def _flat(parents: Integers | None) -> Array | None:
    if parents is None:
        return None
    array = int32("parents", parents)
    return array.reshape(-1) if isinstance(array, np.ndarray) else array


def _rule(
    q: Array,
    decay: str,
    beta_is_logit: bool,
    head_map: str,
    qk_l2norm_eps: float | None,
    rounding: str,
    scale: float | None,
) -> tuple[int, bool, int, float, int, float]:
    return (
        choice("decay", decay, DECAY),
        beta_is_logit,
        choice("head_map", head_map, HEAD_MAP),
        -1.0 if qk_l2norm_eps is None else float(qk_l2norm_eps),
        choice("rounding", rounding, ROUNDING),
        1.0 / math.sqrt(max(shape_of("q", q)[-1], 1)) if scale is None else float(scale),
    )
