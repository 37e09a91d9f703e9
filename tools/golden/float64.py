"""Runs torch code that casts to float32 by itself in float64 instead."""

import contextlib

import torch


class _Torch:
    """`torch`, but float32 is float64."""

    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def lifted(*modules):
    """Within it, `torch.float32`, `torch.float` and `Tensor.float()` mean float64 in the code of these modules."""
    plain = torch.Tensor.float
    try:
        for module in modules:
            module.torch = _Torch()
        torch.Tensor.float = torch.Tensor.double
        torch.set_default_dtype(torch.float64)
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.Tensor.float = plain
        for module in modules:
            module.torch = torch
