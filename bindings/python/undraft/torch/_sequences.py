"""Lists of sequences and slots as the operations take them: int32, on the device of the tokens."""

import torch
from torch import Tensor

from .._library import Error

# By number of sequences, tokens of each and device. Nothing is ever taken out: a CUDA graph may have recorded the
# addresses.
_even: dict[tuple[int, int, torch.device], tuple[Tensor, Tensor]] = {}


def int32(arg: str, tensor: Tensor) -> Tensor:
    """The tensor in int32; int64 is converted."""
    if tensor.dtype is torch.int32:
        return tensor
    if tensor.dtype is torch.int64:
        return tensor.to(torch.int32)
    got = str(tensor.dtype).removeprefix("torch.")
    raise Error(f"`{arg}` is {got}, expected int32 or int64; convert it with `.to(torch.int32)`")


def sequences(
    tokens: Tensor, cu_seqlens: Tensor | None, state_indices: Tensor | None, batched_rank: int
) -> tuple[Tensor, Tensor, int]:
    """``cu_seqlens``, ``state_indices`` and the tokens of every sequence, 0 if they differ.

    ``tokens`` is ``[B, T, ..]`` if it has ``batched_rank`` axes, else ``[num_tokens, ..]``; with rank 0 ``[B]``, for
    sequences without tokens.
    """
    shape = tokens.shape
    if not shape:
        raise Error("a tensor of tokens has no axes, expected [B, T, ..] or [num_tokens, ..]")
    if cu_seqlens is not None:
        if len(shape) == batched_rank and shape[0] != 1:
            raise Error(
                f"`cu_seqlens` came with tokens of shape {list(shape)}, expected packed tokens [num_tokens, ..] or "
                "[1, num_tokens, ..]"
            )
        cu_seqlens = int32("cu_seqlens", cu_seqlens)
        num, window = cu_seqlens.shape[0] - 1, 0
    elif batched_rank == 0:
        num, window = shape[0], 0
    elif len(shape) == batched_rank:
        num, window = shape[0], shape[1]
    else:
        num, window = shape[0], 1
    if state_indices is not None:
        state_indices = int32("state_indices", state_indices)
        if state_indices.shape != (num,):
            raise Error(f"`state_indices` has shape {list(state_indices.shape)}, expected [num_seqs={num}]")
    if cu_seqlens is None or state_indices is None:
        even, first = _lists(tokens, num, window)
        cu_seqlens = even if cu_seqlens is None else cu_seqlens
        state_indices = first if state_indices is None else state_indices
    return cu_seqlens, state_indices, window


def _lists(tokens: Tensor, num: int, window: int) -> tuple[Tensor, Tensor]:
    """``cu_seqlens`` of sequences of the same length, and the first slots; kept for the next call of these sizes."""
    device = tokens.device
    if torch.compiler.is_compiling() or type(tokens) not in (Tensor, torch.nn.Parameter):
        return _make(num, window, device)
    key = (num, window, device)
    lists = _even.get(key)
    if lists is None:
        lists = _make(num, window, device)
        if device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                # What is made in a capture is the graph's alone.
                return lists
            # Ready for every stream.
            torch.cuda.current_stream(device).synchronize()
        _even[key] = lists
    return lists


def _make(num: int, window: int, device: torch.device) -> tuple[Tensor, Tensor]:
    first = torch.arange(num + 1, dtype=torch.int32, device=device)
    return first * window, first[:num]
