"""Loads the native library, and turns its answers into exceptions."""

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

_NAME = {"darwin": "libundraft_python.dylib", "win32": "undraft_python.dll"}.get(sys.platform, "libundraft_python.so")


class Error(RuntimeError):
    """A call was wrong, or the device failed; the sentence names the argument, what was expected and what came."""


def _load() -> ctypes.CDLL:
    path = Path(os.environ.get("UNDRAFT_LIBRARY") or Path(__file__).parent / _NAME)
    if not path.exists():
        raise ImportError(
            f"the native library {path.name} is not beside the package undraft, expected it there: pip install ."
        )
    return ctypes.CDLL(str(path))


library = _load()
_CAPACITY = 2048


def _declare() -> None:
    message: list[Any] = [ctypes.c_char_p, ctypes.c_size_t]
    library.undraft_python_register_torch.argtypes = message
    library.undraft_python_load_cuda.argtypes = [ctypes.c_int, *message]
    library.undraft_python_find.argtypes = [ctypes.c_char_p]
    library.undraft_python_find.restype = ctypes.c_ssize_t
    library.undraft_python_call.argtypes = [ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, *message]
    library.undraft_python_set_num_threads.argtypes = [ctypes.c_size_t]
    library.undraft_python_set_num_threads.restype = None


_declare()


def _failed(message: ctypes.Array[ctypes.c_char]) -> Error:
    return Error(message.value.decode("utf-8", "replace"))


def register_torch() -> None:
    """Registers the operations with the torch that this process has imported."""
    message = ctypes.create_string_buffer(_CAPACITY)
    if library.undraft_python_register_torch(message, _CAPACITY):
        raise _failed(message)


def load_cuda(index: int) -> None:
    """Loads the CUDA kernels of a device."""
    message = ctypes.create_string_buffer(_CAPACITY)
    if library.undraft_python_load_cuda(index, message, _CAPACITY):
        raise _failed(message)


def find(name: str) -> int:
    """Number of an operation."""
    op: int = library.undraft_python_find(name.encode())
    if op < 0:
        raise Error(f"the native library has no operation `{name}`, expected the library of this package's version")
    return op


def call(op: int, values: ctypes.Array[ctypes.c_uint64]) -> None:
    """Runs operation ``op`` on arrays."""
    message = ctypes.create_string_buffer(_CAPACITY)
    if library.undraft_python_call(op, values, len(values), message, _CAPACITY):
        raise _failed(message)


def set_num_threads(num_threads: int) -> None:
    """Sets how many threads the operations use on the CPU; by default all of the machine.

    The results do not depend on it.
    """
    if not 1 <= num_threads <= 1024:
        raise Error(f"`num_threads` is {num_threads}, expected 1..=1024")
    library.undraft_python_set_num_threads(num_threads)


if hasattr(os, "register_at_fork"):
    # The child has none of the threads, and makes its own with the first call.
    os.register_at_fork(after_in_child=lambda: library.undraft_python_set_num_threads(0))
