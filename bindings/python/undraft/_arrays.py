"""Arrays in host memory as the native library takes them: NumPy's, and anything that speaks DLPack."""

import ctypes
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ._library import Error

MAX_RANK = 6
F32, BF16, F16, I32, F64, I64, OTHER = range(7)
_NUMPY = {"float32": F32, "bfloat16": BF16, "float16": F16, "int32": I32, "float64": F64, "int64": I64}
# DLPack's code (0 int, 2 float, 4 bfloat) and bits.
_DLPACK = {(2, 32): F32, (4, 16): BF16, (2, 16): F16, (0, 32): I32, (2, 64): F64, (0, 64): I64}
_HOST_DEVICES = (1, 3, 11)  # CPU, and host memory that CUDA or ROCm has pinned
_DEVICES = {2: "a CUDA device", 8: "a Metal device", 10: "a ROCm device"}


class SupportsDLPack(Protocol):
    """An array of any library that exports DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, int]: ...


Array: TypeAlias = NDArray[Any] | SupportsDLPack


class ArrayView(ctypes.Structure):
    """The native library's description of an array; keeps the array's memory."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("elements", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("is_writable", ctypes.c_int32),
        ("element_size", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_RANK),
        ("strides", ctypes.c_int64 * MAX_RANK),
    ]
    owner: object


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", _DLTensor),
    ]


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _fill(
    arg: str, data: int, elements: int, size: int, is_writable: bool, shape: tuple[int, ...], strides: tuple[int, ...]
) -> ArrayView:
    if len(shape) > MAX_RANK:
        raise Error(f"`{arg}` has {len(shape)} axes, expected at most {MAX_RANK}")
    view = ArrayView(data, elements, len(shape), is_writable, size)
    view.shape[: len(shape)] = shape
    view.strides[: len(shape)] = strides
    return view


def view(arg: str, array: Array) -> ArrayView:
    """Describes an array; the view keeps its memory."""
    if isinstance(array, np.ndarray):
        size = array.itemsize
        if any(stride % size for stride in array.strides):
            raise Error(
                f"`{arg}` has strides of {array.strides} bytes, expected multiples of its element's {size}; pass a copy"
            )
        strides = tuple(stride // size for stride in array.strides)
        elements = _NUMPY.get(array.dtype.name, OTHER) if array.dtype.isnative else OTHER
        made = _fill(arg, array.ctypes.data, elements, size, array.flags.writeable, array.shape, strides)
        made.owner = array
        return made
    if not hasattr(array, "__dlpack__"):
        raise Error(f"`{arg}` is a {type(array).__name__}, expected a NumPy array or one that exports DLPack")
    return _dlpack(arg, array)


def _dlpack(arg: str, array: SupportsDLPack) -> ArrayView:
    device = int(array.__dlpack_device__()[0])
    if device not in _HOST_DEVICES:
        where = _DEVICES.get(device, "another device")
        raise Error(f"`{arg}` lies on {where}, expected host memory; use `undraft.torch` with tensors on CUDA")
    try:
        capsule = array.__dlpack__(max_version=(1, 0))
    except TypeError:
        capsule = array.__dlpack__()
    is_read_only = False
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        tensor, is_read_only = managed.dl_tensor, bool(managed.flags & 1)
    else:
        tensor = _DLTensor.from_address(_pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim))
    else:
        strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(tensor.ndim))
    elements = _DLPACK.get((tensor.code, tensor.bits), OTHER) if tensor.lanes == 1 else OTHER
    data = (tensor.data or 0) + tensor.byte_offset
    made = _fill(arg, data, elements, max(tensor.bits // 8, 1), not is_read_only, shape, strides)
    # Its destructor gives the memory back.
    made.owner = capsule
    return made


def shape_of(arg: str, array: Array) -> tuple[int, ...]:
    """Sizes of an array's axes."""
    if isinstance(array, np.ndarray):
        return array.shape
    described = view(arg, array)
    return tuple(described.shape[: described.rank])


def int32(arg: str, array: object) -> Array:
    """Integers as int32: as they are, or converted."""
    if isinstance(array, np.ndarray | list | tuple):
        converted = np.asarray(array)
        if converted.size and converted.dtype.kind not in "iu":
            raise Error(f"`{arg}` is {converted.dtype.name}, expected integers")
        return np.ascontiguousarray(converted, dtype=np.int32)
    return array  # type: ignore[return-value]


def empty_like(arg: str, array: Array) -> NDArray[Any]:
    """A new array of the shape and dtype of another one."""
    if isinstance(array, np.ndarray):
        return np.empty(array.shape, array.dtype)
    described = view(arg, array)
    dtypes = {F32: np.float32, F16: np.float16}
    if described.elements not in dtypes:
        raise Error(f"`out` is missing, expected it with `{arg}` of a dtype that NumPy does not have")
    return np.empty(tuple(described.shape[: described.rank]), dtypes[described.elements])
