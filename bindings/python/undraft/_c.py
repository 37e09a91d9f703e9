"""The C interface of undraft (``undraft.h``) as far as devices, pools and rounds need it."""

import ctypes
from typing import Any

import numpy as np

from ._arrays import BF16, F16, F32, I32, Array, view
from ._library import Error, library

F32_DTYPE = 1
STATE_DTYPES = {"f32": 1, "bf16": 2, "f16": 3}
STATE_LAYOUTS = {"value_major": 1, "key_major": 2}
CONV_LAYOUTS = {"time_major": 1, "channel_major": 2}
ACTIVATIONS = {"none": 1, "silu": 2}
HEAD_MAPS = {"grouped": 1, "tiled": 2}
ROUNDINGS = {"f32": 1, "io": 2}
DECAY_SHAPES = {False: 1, True: 2}
VERIFY, FINAL, PREFILL = 1, 2, 3

_DTYPES = {F32: 1, BF16: 2, F16: 3, I32: 4}
_NAMES = {F32: "f32", BF16: "bf16", F16: "f16", I32: "int32"}
_MAX_NDIM = 5


class Tensor(ctypes.Structure):
    """``undraft_tensor``; keeps the memory that it describes."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_uint32),
        ("ndim", ctypes.c_uint32),
        ("shape", ctypes.c_int64 * _MAX_NDIM),
        ("strides", ctypes.c_int64 * _MAX_NDIM),
    ]
    owner: object


class GdnDims(ctypes.Structure):
    """``undraft_gdn_dims``."""

    _fields_ = [
        ("num_k_heads", ctypes.c_uint32),
        ("num_v_heads", ctypes.c_uint32),
        ("head_k_dim", ctypes.c_uint32),
        ("head_v_dim", ctypes.c_uint32),
        ("decay_shape", ctypes.c_uint32),
        ("conv_width", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32 * 2),
    ]


class DeviceOptions(ctypes.Structure):
    """``undraft_device_options``."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("num_threads", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("isa", ctypes.c_char_p),
    ]


class LayerParams(ctypes.Structure):
    """``undraft_layer_params``."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("dims", GdnDims),
        ("conv_weight", Tensor),
        ("conv_bias", Tensor),
        ("a_log", Tensor),
        ("dt_bias", Tensor),
        ("activation", ctypes.c_uint32),
        ("head_map", ctypes.c_uint32),
        ("qk_norm", ctypes.c_uint32),
        ("rounding", ctypes.c_uint32),
        ("qk_eps", ctypes.c_float),
        ("scale", ctypes.c_float),
    ]


class PoolConfig(ctypes.Structure):
    """``undraft_pool_config``."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("layers", ctypes.POINTER(GdnDims)),
        ("num_layers", ctypes.c_size_t),
        ("num_slots", ctypes.c_uint32),
        ("max_window", ctypes.c_uint32),
        ("state_dtype", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class PoolInfo(ctypes.Structure):
    """``undraft_pool_info``."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("num_layers", ctypes.c_size_t),
        ("num_slots", ctypes.c_size_t),
        ("num_free_slots", ctypes.c_size_t),
        ("num_open_rounds", ctypes.c_size_t),
        ("max_window", ctypes.c_size_t),
        ("state_bytes", ctypes.c_size_t),
        ("conv_state_bytes", ctypes.c_size_t),
        ("log_bytes", ctypes.c_size_t),
        ("conv_log_bytes", ctypes.c_size_t),
        ("slot_bytes", ctypes.c_size_t),
        ("total_bytes", ctypes.c_size_t),
    ]


class RoundParams(ctypes.Structure):
    """``undraft_round_params``."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("mode", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("num_seqs", ctypes.c_size_t),
        ("slots", ctypes.POINTER(ctypes.c_int64)),
        ("windows", ctypes.POINTER(ctypes.c_uint32)),
        ("parents", ctypes.POINTER(ctypes.c_int32)),
    ]


class VerifyArgs(ctypes.Structure):
    """``undraft_verify_args``."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("layer", ctypes.c_void_p),
        ("mixed_qkv", Tensor),
        ("a", Tensor),
        ("b", Tensor),
        ("out", Tensor),
    ]


_handle, _out, _size = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
_slot, _path = ctypes.c_int64, ctypes.c_char_p
_SIGNATURES: dict[str, list[Any]] = {
    "undraft_device_names": [_out],
    "undraft_device_new": [ctypes.c_char_p, _out, _out],
    "undraft_layer_new": [_out, _out],
    "undraft_pool_new": [_handle, _out, _out],
    "undraft_pool_free": [_handle],
    "undraft_pool_get_info": [_handle, _out],
    "undraft_pool_rollback_all": [_handle],
    "undraft_slot_alloc": [_handle, _out],
    "undraft_slot_free": [_handle, _slot],
    "undraft_slot_reset": [_handle, _slot],
    "undraft_slot_fork": [_handle, _slot, _out],
    "undraft_slots_settle": [_handle, _out, _size],
    "undraft_slot_save": [_handle, _slot, _path],
    "undraft_slot_load": [_handle, _path, _out],
    "undraft_slot_export_state": [_handle, _slot, _size, ctypes.c_uint32, _out],
    "undraft_slot_import_state": [_handle, _slot, _size, ctypes.c_uint32, _out],
    "undraft_slot_export_conv": [_handle, _slot, _size, ctypes.c_uint32, _out],
    "undraft_slot_import_conv": [_handle, _slot, _size, ctypes.c_uint32, _out],
    "undraft_snapshot_new": [_handle, _slot, _out],
    "undraft_snapshot_restore": [_handle, _handle, _slot],
    "undraft_snapshot_save": [_handle, _path],
    "undraft_snapshot_load": [_path, _out],
    "undraft_round_begin": [_handle, _out, _out],
    "undraft_round_verify": [_handle, ctypes.c_int64, _size, _out],
    "undraft_round_commit": [_handle, ctypes.c_int64, _out, _size],
    "undraft_round_commit_path": [_handle, ctypes.c_int64, _out, _out, _size],
    "undraft_round_rollback": [_handle, ctypes.c_int64],
}
for _name, _arguments in _SIGNATURES.items():
    _function = getattr(library, _name)
    _function.argtypes = [*_arguments, ctypes.POINTER(ctypes.c_void_p)]
    _function.restype = ctypes.c_int32
for _name in ("undraft_string_free", "undraft_device_free", "undraft_layer_free", "undraft_snapshot_free"):
    getattr(library, _name).argtypes = [ctypes.c_void_p]
    getattr(library, _name).restype = None


def call(name: str, *args: Any) -> None:
    """Calls a function that can fail; its sentence becomes an exception."""
    message = ctypes.c_void_p()
    if getattr(library, name)(*args, ctypes.byref(message)) == 0:
        return
    text = ctypes.string_at(message.value).decode("utf-8", "replace") if message.value else f"`{name}` failed"
    library.undraft_string_free(message)
    raise Error(text)


def new(name: str, *args: Any) -> int:
    """Calls a function whose last argument takes a new object."""
    made = ctypes.c_void_p()
    call(name, *args, ctypes.byref(made))
    return made.value or 0


def device_names() -> list[str]:
    """Names of the devices of this machine."""
    names = new("undraft_device_names")
    text = ctypes.string_at(names).decode()
    library.undraft_string_free(names)
    return text.split()


def tensor(arg: str, array: Array | None) -> Tensor:
    """Describes an array; absent where it is None."""
    made = Tensor()
    if array is None:
        return made
    described = view(arg, array)
    if described.elements not in _DTYPES:
        got = array.dtype.name if isinstance(array, np.ndarray) else "of another dtype"
        raise Error(f"`{arg}` is {got}, expected {', '.join(_NAMES.values())}; convert it with `.astype(\"float32\")`")
    if described.rank > _MAX_NDIM:
        raise Error(f"`{arg}` has {described.rank} axes, expected at most {_MAX_NDIM}")
    made.data, made.dtype, made.ndim = described.data, _DTYPES[described.elements], described.rank
    made.shape[:] = described.shape[:_MAX_NDIM]
    made.strides[:] = described.strides[:_MAX_NDIM]
    made.owner = described
    return made


def written(arg: str, array: Array) -> Tensor:
    """Describes an array that a call writes."""
    if not view(arg, array).is_writable:
        raise Error(f"`{arg}` is read-only, expected an array that can be written; pass a copy")
    return tensor(arg, array)
