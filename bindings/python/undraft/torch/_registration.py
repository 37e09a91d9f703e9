"""Registers the operations when it is imported: kernels by the native library, fake kernels here.

All operations work in place and return nothing, so that a fake kernel has nothing to make; it checks the main sizes,
for graphs that are traced and never run.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._library import register_torch

register_torch()


def _check(holds: bool, message: str) -> None:
    # `torch._check` also tells the tracer of symbolic sizes that the condition holds.
    check: Callable[..., None] = torch._check
    check(holds, lambda: message)


def _fake(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a fake kernel, which finds its tensors on one device."""
    names = [argument.name for argument in getattr(torch.ops.undraft, name).default._schema.arguments]
    register: Callable[[Callable[..., None]], Callable[..., None]] = torch.library.register_fake(f"undraft::{name}")

    def decorate(kernel: Callable[..., None]) -> Callable[..., None]:
        def checked(*args: Any) -> None:
            tensors = [(arg, value) for arg, value in zip(names, args, strict=True) if isinstance(value, Tensor)]
            of_arg, first = tensors[0]
            for arg, tensor in tensors[1:]:
                message = f"`{arg}` lies on {tensor.device}, expected {first.device} as `{of_arg}`; move it there first"
                _check(tensor.device == first.device, message)
            kernel(*args)

        return register(checked)

    return decorate


def _check_shape(arg: str, tensor: Tensor, holds: bool, expected: str) -> None:
    _check(holds, f"`{arg}` has shape {list(tensor.shape)}, expected {expected}")


def _check_delta_rule(q: Tensor, k: Tensor, v: Tensor, state: Tensor, out: Tensor) -> None:
    _check_shape("q", q, q.dim() in (3, 4), "[B, T, H, K], or [num_tokens, H, K] with `cu_seqlens`")
    _check_shape("k", k, k.shape == q.shape, f"{list(q.shape)} as `q`")
    _check_shape("v", v, v.dim() == q.dim(), "as many axes as `q`")
    _check_shape("out", out, out.shape == v.shape, f"{list(v.shape)} as `v`")
    expected = [v.shape[-2], v.shape[-1], q.shape[-1]]
    _check_shape("state", state, list(state.shape[1:]) == expected, f"[num_slots, *{expected}]")


@_fake("fused_recurrent_gated_delta_rule")
def _(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, out: Tensor, *rest: Any) -> None:
    _check_delta_rule(q, k, v, state, out)


@_fake("verify")
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    log_k: Tensor | None,
    log_decay: Tensor | None,
    log_delta: Tensor | None,
    captured: Tensor | None,
    out: Tensor,
    *rest: Any,
) -> None:
    _check_delta_rule(q, k, v, state, out)


@_fake("chunk_gated_delta_rule")
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    checkpoints: Tensor | None,
    out: Tensor,
    *rest: Any,
) -> None:
    _check_delta_rule(q, k, v, state, out)


@_fake("commit_states")
def _(state: Tensor, *rest: Any) -> None:
    _check_shape("state", state, state.dim() in (4, 5), "[num_slots, HV, V, K], or layers in front")


@_fake("commit_conv_states")
def _(state: Tensor, *rest: Any) -> None:
    _check_shape("conv_state", state, state.dim() in (3, 4), "[num_slots, W - 1, C], or layers in front")


def _check_conv(x: Tensor, out: Tensor) -> None:
    _check_shape("x", x, x.dim() in (2, 3), "[B, T, C], or [num_tokens, C] with `cu_seqlens`")
    _check_shape("out", out, out.shape == x.shape, f"{list(x.shape)} as `x`")


@_fake("causal_conv1d_update")
def _(x: Tensor, weight: Tensor, state: Tensor, log: Tensor | None, out: Tensor, *rest: Any) -> None:
    _check_conv(x, out)


@_fake("causal_conv1d_fn")
def _(x: Tensor, weight: Tensor, state: Tensor, out: Tensor, *rest: Any) -> None:
    _check_conv(x, out)


@_fake("fused_gdn_gating")
def _(a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor, g: Tensor, beta: Tensor) -> None:
    _check_shape("g", g, g.shape == a.shape, f"{list(a.shape)} as `a`")
    _check_shape("beta", beta, beta.shape == b.shape, f"{list(b.shape)} as `b`")


@_fake("rms_norm_gated")
def _(x: Tensor, z: Tensor, weight: Tensor, out: Tensor, eps: float, silu: bool) -> None:
    _check_shape("out", out, out.shape == x.shape, f"{list(x.shape)} as `x`")
