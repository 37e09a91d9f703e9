"""The state pool and its rounds: the states of all Gated DeltaNet layers, for many sequences.

    >>> import numpy as np, undraft
    >>> dims = undraft.LayerDims(num_k_heads=2, num_v_heads=4, head_k_dim=64, head_v_dim=64, conv_width=4)
    >>> layer = undraft.GdnLayer(dims, conv_weight=np.full((dims.conv_dim, 4), 0.1, np.float32),
    ...     A_log=np.zeros(4, np.float32), dt_bias=np.full(4, 0.5, np.float32))
    >>> with undraft.StatePool([dims], num_slots=8, max_window=4) as pool:
    ...     slot = pool.alloc()
    ...     qkv, gate = np.full((3, dims.conv_dim), 0.3, np.float32), np.full((3, 4), 0.1, np.float32)
    ...     with pool.begin([slot], [3]) as round:           # three drafted tokens
    ...         o = round.verify(0, layer, qkv, gate, gate)
    ...         round.commit([2])                            # two of them stay; leaving without it would have kept none
    >>> o.shape
    (3, 4, 64)

:doc:`docs/state-pool.md` of the repository says what a round is, how commits are replayed and what a slot may be in.
"""

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from . import _c
from ._arrays import Array
from ._library import Error, library
from ._options import Activation, HeadMap, Rounding, choice

PAD_SLOT = -1
"""A padding sequence of a round: nothing is read or written, its outputs are zero."""

StateDType = Literal["f32", "bf16", "f16"]
StateLayout = Literal["value_major", "key_major"]
ConvLayout = Literal["time_major", "channel_major"]


def devices() -> list[str]:
    """Names of the devices of this machine, as :class:`StatePool` takes them: ``cpu``, ``cuda:0``."""
    return _c.device_names()


@dataclass(frozen=True)
class LayerDims:
    """Sizes of one Gated DeltaNet layer."""

    num_k_heads: int
    """``H``."""
    num_v_heads: int
    """``HV``, a multiple of ``H``."""
    head_k_dim: int
    """``K``, 1 to 256."""
    head_v_dim: int
    """``V``, 1 to 256."""
    conv_width: int = 4
    """``W``, 2 to 8."""
    per_channel: bool = False
    """Whether the decay is one factor a key channel (KDA), not one a value head."""

    @property
    def conv_dim(self) -> int:
        """``2 H K + HV V``, the channels of the convolution over the joined q, k, v."""
        return 2 * self.num_k_heads * self.head_k_dim + self.num_v_heads * self.head_v_dim

    def _as_c(self) -> _c.GdnDims:
        sizes = (self.num_k_heads, self.num_v_heads, self.head_k_dim, self.head_v_dim)
        for name, size in zip(("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim"), sizes, strict=True):
            if not 0 <= size < 2**32:
                raise Error(f"`{name}` is {size}, expected a number of heads or a head size")
        if not 0 <= self.conv_width < 2**32:
            raise Error(f"`conv_width` is {self.conv_width}, expected 2..=8")
        return _c.GdnDims(*sizes, _c.DECAY_SHAPES[self.per_channel], self.conv_width)


class GdnLayer:
    """The parameters of one layer, copied; the defaults are those of Qwen3-Next and Qwen3.5."""

    def __init__(
        self,
        dims: LayerDims,
        *,
        conv_weight: Array,
        A_log: Array,
        dt_bias: Array,
        conv_bias: Array | None = None,
        activation: Activation = "silu",
        head_map: HeadMap = "grouped",
        qk_l2norm_eps: float | None = 1e-6,
        rounding: Rounding = "f32",
        scale: float | None = None,
    ) -> None:
        """Checks and copies the parameters, all f32.

        Args:
            conv_weight: ``[C, W]`` or ``[C, 1, W]``, channels q, k, v; the last tap is the present token.
            A_log: ``[HV]``.
            dt_bias: ``[HV]``, or ``[HV, K]`` with a decay per channel.
            conv_bias: ``[C]``.
            activation: Behind the convolution.
            head_map: Which key head value head ``hv`` reads: ``"grouped"`` ``hv // (HV // H)``, ``"tiled"`` ``hv % H``.
            qk_l2norm_eps: Normalises q and k as ``x * rsqrt(sum(x^2) + eps)``; None takes them as they are.
            rounding: ``"io"`` rounds beta and the normalised q and k to the dtype of q and k.
            scale: Factor on the output, default ``K ** -0.5``.
        """
        self._handle = 0
        self.dims = dims
        tensors = {
            "conv_weight": _c.tensor("conv_weight", conv_weight),
            "conv_bias": _c.tensor("conv_bias", conv_bias),
            "a_log": _c.tensor("A_log", A_log),
            "dt_bias": _c.tensor("dt_bias", dt_bias),
        }
        params = _c.LayerParams(
            size=ctypes.sizeof(_c.LayerParams),
            dims=dims._as_c(),
            activation=choice("activation", activation, _c.ACTIVATIONS),
            head_map=choice("head_map", head_map, _c.HEAD_MAPS),
            qk_norm=1 if qk_l2norm_eps is None else 2,
            rounding=choice("rounding", rounding, _c.ROUNDINGS),
            qk_eps=0.0 if qk_l2norm_eps is None else qk_l2norm_eps,
            scale=0.0 if scale is None else scale,
            **tensors,
        )
        self._handle = _c.new("undraft_layer_new", ctypes.byref(params))

    def __del__(self) -> None:
        if getattr(self, "_handle", 0):
            library.undraft_layer_free(self._handle)


class Snapshot:
    """A slot's states outside of the pool, for prefix caches; made by :meth:`StatePool.snapshot`."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Snapshot":
        """Reads a file of :meth:`save` or :meth:`StatePool.save`."""
        return cls(_c.new("undraft_snapshot_load", os.fsencode(path)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a safetensors file, in one step: an interrupted save leaves what was there."""
        _c.call("undraft_snapshot_save", self._handle, os.fsencode(path))

    def __del__(self) -> None:
        if getattr(self, "_handle", 0):
            library.undraft_snapshot_free(self._handle)


class StatePool:
    """Recurrent and convolution states of all layers, in slots, one a sequence.

    A context manager: leaving it rolls all undecided rounds back and frees the memory. Slots are numbers, none of which
    is given out twice; :data:`PAD_SLOT` stands for a padding sequence of a round.
    """

    def __init__(
        self,
        layers: Sequence[LayerDims],
        *,
        num_slots: int,
        max_window: int,
        state_dtype: StateDType = "f32",
        device: str = "cpu",
        num_threads: int | None = None,
    ) -> None:
        """A pool with all slots free.

        Args:
            layers: Sizes of the model's Gated DeltaNet layers, in order.
            num_slots: Sequences at once.
            max_window: Most tokens of a window that can be taken back.
            state_dtype: 16-bit states are rounded after every token.
            device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``; see :func:`devices`. On CUDA the pool copies its states at
                every call; :mod:`undraft.torch` works on tensors that stay there.
            num_threads: Threads on the CPU, default all.
        """
        self._handle = 0
        self.layers = list(layers)
        dims = (_c.GdnDims * len(layers))(*(layer._as_c() for layer in layers))
        for name, number in (("num_slots", num_slots), ("max_window", max_window)):
            if not 0 <= number < 2**32:
                raise Error(f"`{name}` is {number}, expected 0..{2**32}")
        threads = (os.cpu_count() or 1) if num_threads is None else num_threads
        if not 1 <= threads <= 1024:
            raise Error(f"`num_threads` is {threads}, expected 1..=1024")
        config = _c.PoolConfig(
            size=ctypes.sizeof(_c.PoolConfig),
            layers=dims,
            num_layers=len(layers),
            num_slots=num_slots,
            max_window=max_window,
            state_dtype=choice("state_dtype", state_dtype, _c.STATE_DTYPES),
        )
        options = _c.DeviceOptions(size=ctypes.sizeof(_c.DeviceOptions), num_threads=threads)
        options_of = ctypes.byref(options) if device == "cpu" else None
        opened = _c.new("undraft_device_new", device.encode(), options_of)
        try:
            self._handle = _c.new("undraft_pool_new", opened, ctypes.byref(config))
        finally:
            library.undraft_device_free(opened)

    def close(self) -> None:
        """Rolls all undecided rounds back and frees the memory; the pool is of no use afterwards."""
        if self._handle:
            handle, self._handle = self._handle, 0
            _c.call("undraft_pool_rollback_all", handle)
            _c.call("undraft_pool_free", handle)

    def __enter__(self) -> "StatePool":
        self._open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", 0):
            self.close()

    def _open(self) -> int:
        if not self._handle:
            raise Error("the pool is closed, expected an open one")
        return self._handle

    def _info(self) -> _c.PoolInfo:
        info = _c.PoolInfo(size=ctypes.sizeof(_c.PoolInfo))
        _c.call("undraft_pool_get_info", self._open(), ctypes.byref(info))
        return info

    @property
    def num_slots(self) -> int:
        """Sequences at once."""
        return int(self._info().num_slots)

    @property
    def num_free_slots(self) -> int:
        """Slots that :meth:`alloc` can give out."""
        return int(self._info().num_free_slots)

    @property
    def max_window(self) -> int:
        """Most tokens of a window that can be taken back."""
        return int(self._info().max_window)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot, over all layers: states and logs."""
        return int(self._info().slot_bytes)

    def alloc(self) -> int:
        """A free slot, all states zero."""
        return self._slot("undraft_slot_alloc")

    def free(self, slot: int) -> None:
        """Gives a slot back; its number is dead from here on."""
        _c.call("undraft_slot_free", self._open(), slot)

    def reset(self, slot: int) -> None:
        """Sets all states of a slot to zero; ends its round, and mends a slot that a prefill was abandoned in."""
        _c.call("undraft_slot_reset", self._open(), slot)

    def fork(self, slot: int) -> int:
        """Copies a slot, tokens not yet replayed included, into a free one."""
        return self._slot("undraft_slot_fork", slot)

    def settle(self, slots: Sequence[int]) -> None:
        """Replays what was committed now instead of in the next round."""
        _c.call("undraft_slots_settle", self._open(), (ctypes.c_int64 * len(slots))(*slots), len(slots))

    def save(self, slot: int, path: str | os.PathLike[str]) -> None:
        """Writes a slot to a safetensors file, in one step: an interrupted save leaves what was there."""
        _c.call("undraft_slot_save", self._open(), slot, os.fsencode(path))

    def load(self, path: str | os.PathLike[str]) -> int:
        """Reads such a file into a free slot."""
        return self._slot("undraft_slot_load", os.fsencode(path))

    def snapshot(self, slot: int) -> Snapshot:
        """A copy of a slot's states outside of the pool."""
        return Snapshot(_c.new("undraft_snapshot_new", self._open(), slot))

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        """Overwrites a slot's states with those of a snapshot of the same layers and dtype."""
        _c.call("undraft_snapshot_restore", snapshot._handle, self._open(), slot)

    def recurrent_state(self, slot: int, layer: int, layout: StateLayout = "value_major") -> NDArray[np.float32]:
        """A layer's recurrent state in f32, settled: ``[HV, V, K]``, or ``[HV, K, V]`` key-major."""
        dims = self._layer(layer)
        inner = (dims.head_v_dim, dims.head_k_dim)
        state = np.empty((dims.num_v_heads, *(inner if layout == "value_major" else inner[::-1])), np.float32)
        self._move("undraft_slot_export_state", slot, layer, choice("layout", layout, _c.STATE_LAYOUTS), state)
        return state

    def set_recurrent_state(self, slot: int, layer: int, state: Array, layout: StateLayout = "value_major") -> None:
        """Overwrites a layer's recurrent state: f32 or the pool's dtype."""
        self._layer(layer)
        self._move("undraft_slot_import_state", slot, layer, choice("layout", layout, _c.STATE_LAYOUTS), state)

    def conv_state(self, slot: int, layer: int, layout: ConvLayout = "time_major") -> NDArray[np.float32]:
        """A layer's convolution state, settled, oldest input first: ``[W - 1, C]``, or ``[C, W - 1]`` channel-major."""
        dims = self._layer(layer)
        shape = (dims.conv_width - 1, dims.conv_dim)
        state = np.empty(shape if layout == "time_major" else shape[::-1], np.float32)
        self._move("undraft_slot_export_conv", slot, layer, choice("layout", layout, _c.CONV_LAYOUTS), state)
        return state

    def set_conv_state(self, slot: int, layer: int, state: Array, layout: ConvLayout = "time_major") -> None:
        """Overwrites a layer's convolution state, f32."""
        self._layer(layer)
        self._move("undraft_slot_import_conv", slot, layer, choice("layout", layout, _c.CONV_LAYOUTS), state)

    def begin(self, slots: Sequence[int], windows: Sequence[int]) -> "Round":
        """Opens a round: ``windows[s]`` drafted tokens on ``slots[s]``, ``max_window`` at most; 0 to all will stay."""
        return self._begin(_c.VERIFY, slots, windows, None)

    def begin_tree(self, slots: Sequence[int], parents: Sequence[Sequence[int]]) -> "Round":
        """Opens a draft tree on each slot.

        Args:
            slots: One a sequence.
            parents: ``parents[s][i]`` is the position in the window of the token that token ``i`` follows, -1 for the
                committed state; parents come before their children.
        """
        return self._begin(_c.VERIFY, slots, [len(tree) for tree in parents], [p for tree in parents for p in tree])

    def begin_final(self, slots: Sequence[int], windows: Sequence[int]) -> "Round":
        """Opens windows of any length that keep all tokens, bit for bit as decoding; they cannot be taken back."""
        return self._begin(_c.FINAL, slots, windows, None)

    def begin_prefill(self, slots: Sequence[int], windows: Sequence[int]) -> "Round":
        """:meth:`begin_final` in the matrix form: faster for prompts, close to decoding and not bit-equal to it."""
        return self._begin(_c.PREFILL, slots, windows, None)

    def _begin(
        self, mode: int, slots: Sequence[int], windows: Sequence[int], parents: Sequence[int] | None
    ) -> "Round":
        if len(slots) != len(windows):
            raise Error(f"`windows` has {len(windows)} entries, expected {len(slots)}, one a sequence")
        if any(not 0 <= n < 2**31 for n in windows):
            raise Error(f"`windows` is {list(windows)}, expected numbers of tokens")
        params = _c.RoundParams(
            size=ctypes.sizeof(_c.RoundParams),
            mode=mode,
            num_seqs=len(slots),
            slots=(ctypes.c_int64 * len(slots))(*slots),
            windows=(ctypes.c_uint32 * len(windows))(*windows),
        )
        if parents is not None:
            params.parents = (ctypes.c_int32 * max(len(parents), 1))(*parents)
        number = ctypes.c_int64()
        _c.call("undraft_round_begin", self._open(), ctypes.byref(params), ctypes.byref(number))
        return Round(self, number.value, list(windows))

    def _slot(self, name: str, *args: Any) -> int:
        slot = ctypes.c_int64()
        _c.call(name, self._open(), *args, ctypes.byref(slot))
        return slot.value

    def _layer(self, layer: int) -> LayerDims:
        if not 0 <= layer < len(self.layers):
            raise Error(f"`layer` is {layer}, expected 0..{len(self.layers)}")
        return self.layers[layer]

    def _move(self, name: str, slot: int, layer: int, layout: int, state: Array) -> None:
        tensor = _c.tensor("state", state)
        _c.call(name, self._open(), slot, layer, layout, ctypes.byref(tensor))


class Round:
    """An undecided window on some slots of a pool; made by :meth:`StatePool.begin`.

    :meth:`verify` every layer, then :meth:`commit`. A context manager: leaving it undecided, by an exception or not,
    rolls it back, and every slot is, bit for bit, as it was.
    """

    def __init__(self, pool: StatePool, number: int, windows: list[int]) -> None:
        self._pool = pool
        self._number = number
        self._windows = windows
        self._is_open = True

    @property
    def num_tokens(self) -> int:
        """Tokens of all windows."""
        return sum(self._windows)

    def verify(
        self, layer: int, params: GdnLayer, mixed_qkv: Array, a: Array, b: Array, *, out: Array | None = None
    ) -> Array:
        """Runs convolution, gates and recurrence of one layer over the windows: each layer once, in any order.

        Args:
            layer: Number of the layer.
            params: Its parameters.
            mixed_qkv: ``[N, C]``, the joined q, k, v before the convolution, of the tokens of all windows; f32, bf16,
                f16.
            a: ``[N, HV]`` f32, the decay's gate projection; ``[N, HV, K]`` with a decay per channel.
            b: ``[N, HV]`` f32, the logit of beta.
            out: ``[N, HV, V]``; f32, bf16, f16; made in f32 where it is None.

        Returns:
            ``out``.

        Raises:
            Error: Names what is wrong; the round is then as it was before the call.
        """
        dims = self._pool._layer(layer)
        if out is None:
            out = np.empty((self.num_tokens, dims.num_v_heads, dims.head_v_dim), np.float32)
        tensors = {
            "mixed_qkv": _c.tensor("mixed_qkv", mixed_qkv),
            "a": _c.tensor("a", a),
            "b": _c.tensor("b", b),
            "out": _c.written("out", out),
        }
        args = _c.VerifyArgs(size=ctypes.sizeof(_c.VerifyArgs), layer=params._handle, **tensors)
        _c.call("undraft_round_verify", self._open(), self._number, layer, ctypes.byref(args))
        return out

    def commit(self, num_kept: Sequence[int]) -> None:
        """Keeps the first ``num_kept[s]`` tokens of each window, in all layers; 0 leaves a slot as it was.

        The round is over whatever comes: a commit that is refused rolls it back.
        """
        kept = self._counts("num_kept", list(num_kept))
        handle = self._open()
        self._is_open = False
        _c.call("undraft_round_commit", handle, self._number, kept, len(kept))

    def commit_path(self, paths: Sequence[Sequence[int]]) -> None:
        """Keeps a path through each draft tree: positions, each the parent of the next; empty keeps nothing."""
        flat = self._counts("paths", [position for path in paths for position in path])
        kept = self._counts("paths", [len(path) for path in paths])
        handle = self._open()
        self._is_open = False
        _c.call("undraft_round_commit_path", handle, self._number, flat, kept, len(kept))

    def rollback(self) -> None:
        """Keeps nothing."""
        handle = self._open()
        self._is_open = False
        _c.call("undraft_round_rollback", handle, self._number)

    def __enter__(self) -> "Round":
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_open and self._pool._handle:
            self.rollback()

    def __del__(self) -> None:
        if getattr(self, "_is_open", False) and self._pool._handle:
            self.rollback()

    def _open(self) -> int:
        if not self._is_open:
            raise Error("the round is decided, expected an undecided one; begin another")
        return self._pool._open()

    @staticmethod
    def _counts(arg: str, numbers: list[int]) -> "ctypes.Array[ctypes.c_uint32]":
        for number in numbers:
            if not 0 <= number < 2**32:
                raise Error(f"`{arg}` has {number}, expected 0 or more")
        return (ctypes.c_uint32 * len(numbers))(*numbers)
