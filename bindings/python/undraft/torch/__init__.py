"""undraft's operations on torch tensors: dispatcher operations, in place, on the CPU and on CUDA.

They work under ``torch.compile(fullgraph=True)`` and in CUDA graphs. See :mod:`undraft.torch.ops` for shapes.
"""

from collections.abc import Callable

import torch as _torch

from .._library import load_cuda as _load_cuda
from .ops import *  # noqa: F403
from .ops import __all__ as _ops_all

__all__ = [*_ops_all, "load"]


def load(device: "_torch.device | str | int" = 0) -> None:
    """Loads the kernels of a CUDA device, which the first call on it does otherwise.

    Needed before a capture in which the device is used for the first time: a CUDA graph cannot record the loading.
    """
    if not isinstance(device, int):
        device = _torch.device(device)
        device = _torch.cuda.current_device() if device.index is None else device.index
    init: Callable[[], None] = _torch.cuda.init
    init()
    _load_cuda(device)
