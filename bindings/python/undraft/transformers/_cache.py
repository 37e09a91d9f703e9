"""States of Gated DeltaNet layers in a transformers cache, with rollback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionCacheLayerMixin

import undraft.torch as ops

Prefill = Literal["chunk", "recurrent"]


@dataclass(frozen=True)
class GdnSizes:
    """Sizes of one Gated DeltaNet layer on this rank."""

    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int
    conv_width: int

    @property
    def key_dim(self) -> int:
        return self.num_k_heads * self.head_k_dim

    @property
    def value_dim(self) -> int:
        return self.num_v_heads * self.head_v_dim

    @property
    def conv_dim(self) -> int:
        return 2 * self.key_dim + self.value_dim


@dataclass(frozen=True)
class GdnParams:
    """Parameters of one layer in the form that the operations take, all f32."""

    sizes: GdnSizes
    conv_weight: Tensor  # [W, C]
    conv_bias: Tensor | None  # [C]
    A_log: Tensor  # [HV]
    dt_bias: Tensor  # [HV]
    norm_weight: Tensor  # [V]
    norm_eps: float


@dataclass(frozen=True)
class _Window:
    """Log entries of a window that was followed by another one before it was decided."""

    log: ops.DeltaLog  # [B, T, ..]
    conv_x: Tensor  # [B, T, C]


class GdnCacheLayer(LinearAttentionCacheLayerMixin):
    """One Gated DeltaNet layer of a transformers cache, `B` sequences.

    The states are those of undraft: `recurrent` `[B, HV, V, K]` and `conv` `[B, W - 1, C]` (oldest input first), both f32. While
    the cache records its past (`Cache.activate_past_recording`, which assisted decoding calls), a window of tokens leaves the
    states as they are and fills a log; `Cache.crop(-n)` then decides that all but the last `n` tokens stay. They are replayed
    into the states by the next window, or by `settle`. The states are, bit for bit, those of the kept tokens alone.

    At most the last `max_window` tokens can be taken back.
    """

    is_compileable = False

    def __init__(
        self,
        sizes: GdnSizes,
        batch_size: int,
        device: torch.device,
        *,
        max_window: int,
        prefill: Prefill,
        record_past: bool,
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self.batch_size = batch_size
        self.device: torch.device = device  # type: ignore[assignment]
        self.dtype: torch.dtype = torch.float32  # type: ignore[assignment]
        self.max_window = max_window
        self.prefill = prefill
        self.record_past = record_past
        self.recurrent = torch.zeros(
            batch_size, sizes.num_v_heads, sizes.head_v_dim, sizes.head_k_dim, dtype=torch.float32, device=device
        )
        self.conv = torch.zeros(batch_size, sizes.conv_width - 1, sizes.conv_dim, dtype=torch.float32, device=device)
        # Two logs take turns: the next window is written to one while the kept entries of the last are read from the other.
        self._log: ops.DeltaLog | None = None
        self._spare_log: ops.DeltaLog | None = None
        self._conv_log: Tensor | None = None
        self._pending = 0  # first entries of `_log` that stay and are not in the states yet
        self._undecided = 0  # entries of `_log` that `crop` decides about
        self._before: list[_Window] = []  # undecided windows before that of `_log`
        self._base: tuple[Tensor, Tensor] | None = None  # states before `_before`

    def window(self, params: GdnParams, mixed_qkv: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Convolution and delta rule of the next tokens.

        Of a long window all but the last `max_window` tokens are final (`prefill` says by which form); those run token by token,
        so that they can be taken back if the past is recorded, and so that the bits do not depend on whether it is.

        Args:
            params: parameters of the layer.
            mixed_qkv: `[B, T, C]`, the joined q, k and v before the convolution.
            a: `[B, T, HV]`, the raw gate.
            b: `[B, T, HV]`, the logit of beta.

        Returns:
            `[B, T, HV, V]` in the dtype of `mixed_qkv`.

        Raises:
            ValueError: `B` is not the batch size of the cache.
        """
        batch_size, num_tokens = mixed_qkv.shape[:2]
        if batch_size != self.batch_size:
            raise ValueError(f"`mixed_qkv` has {batch_size} sequences, the cache holds {self.batch_size}")
        self.has_previous_state[0] = True
        cut = max(num_tokens - self.max_window, 0)
        outs = []
        if cut > 0:
            self.settle()
            outs.append(self._final(params, mixed_qkv[:, :cut], a[:, :cut], b[:, :cut], self.prefill))
        rest = (mixed_qkv[:, cut:], a[:, cut:], b[:, cut:])
        if self.record_past:
            outs.append(self._verify(params, *rest))
        else:
            self.settle()
            outs.append(self._final(params, *rest, "recurrent"))
        return outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)

    def settle(self) -> None:
        """Moves everything that stays into the states, undecided tokens too: nothing can be taken back any more."""
        if kept := self._pending + self._undecided:
            assert self._log is not None and self._conv_log is not None
            ops.commit_states(self.recurrent, self._log, self._counts(kept), conv_state=self.conv, conv_log=self._conv_log)
        self._pending = 0
        self._forget()

    def crop(self, tokens_to_remove: int) -> None:
        """Takes back the last `-tokens_to_remove` tokens; all others stay for good.

        Raises:
            RuntimeError: the number is positive, or more tokens are to be taken back than were recorded.
        """
        removed = -int(tokens_to_remove)
        if removed < 0:
            raise RuntimeError(f"`tokens_to_remove` is {tokens_to_remove}, expected 0 or a negative number of tokens")
        before = sum(entry.conv_x.shape[1] for entry in self._before)
        if removed > self._undecided + before:
            raise RuntimeError(
                f"`crop` takes back {removed} tokens, of which {self._undecided + before} were recorded; at most `max_window` = "
                f"{self.max_window} are, and none while the past is not recorded"
            )
        if removed <= self._undecided:
            self._pending += self._undecided - removed
        else:
            self._rewind(before + self._undecided - removed)
        self._forget()

    def states(self) -> tuple[Tensor, Tensor]:
        """The recurrent state `[B, HV, V, K]` and the convolution's `[B, W - 1, C]`, with all kept tokens in them."""
        self.settle()
        return self.recurrent, self.conv

    def load(self, recurrent: Tensor, conv: Tensor) -> None:
        """Takes the states of a transformers layer over: `[B, HV, K, V]` and `[B, C, W]`."""
        self.recurrent.copy_(recurrent.transpose(-1, -2))
        self.conv.copy_(conv[..., 1 - self.sizes.conv_width :].transpose(-1, -2))
        self.has_previous_state[0] = True

    def reset(self) -> None:
        self.recurrent.zero_()
        self.conv.zero_()
        self._pending = 0
        self._forget()
        self.has_previous_state[0] = False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps the sequences `indices`, in that order."""
        self.settle()
        indices = indices.to(self.device)
        self._rebatch(self.recurrent.index_select(0, indices), self.conv.index_select(0, indices))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Has every sequence `repeats` times."""
        self.settle()
        self._rebatch(self.recurrent.repeat_interleave(repeats, 0), self.conv.repeat_interleave(repeats, 0))

    @property
    def is_croppable(self) -> bool:
        return True

    def offload(self) -> None:
        """The states stay where they are."""

    def prefetch(self) -> None:
        """The states stay where they are."""

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        self._refuse()

    def update_conv_state(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse()

    def update_recurrent_state(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise RuntimeError(
            "this cache holds states of undraft.transformers, which a model that is not patched cannot read; patch the model or "
            "begin with a new cache"
        )

    def _final(self, params: GdnParams, mixed_qkv: Tensor, a: Tensor, b: Tensor, form: Prefill) -> Tensor:
        x = ops.causal_conv1d_fn(mixed_qkv.contiguous(), params.conv_weight, self.conv, bias=params.conv_bias)
        q, k, v = self._split(x)
        rule = ops.chunk_gated_delta_rule if form == "chunk" else ops.fused_recurrent_gated_delta_rule
        return rule(
            q,
            k,
            v,
            a.contiguous(),
            b.contiguous(),
            self.recurrent,
            decay="gate",
            A_log=params.A_log,
            dt_bias=params.dt_bias,
            beta_is_logit=True,
            qk_l2norm_eps=1e-6,
        )

    def _verify(self, params: GdnParams, mixed_qkv: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """The window into the log; the states take what stays of the log before, and nothing of the window."""
        log, spare, conv_log = self._logs()
        if self._undecided:
            self._remember(log, conv_log)
        kept = self._pending + self._undecided
        num_pending = self._counts(kept) if kept else None
        x = ops.causal_conv1d_update(
            mixed_qkv.contiguous(),
            params.conv_weight,
            self.conv,
            bias=params.conv_bias,
            log=conv_log,
            num_pending=num_pending,
        )
        q, k, v = self._split(x)
        out = ops.verify(
            q,
            k,
            v,
            a.contiguous(),
            b.contiguous(),
            self.recurrent,
            spare,
            pending_log=log if kept else None,
            num_pending=num_pending,
            decay="gate",
            A_log=params.A_log,
            dt_bias=params.dt_bias,
            beta_is_logit=True,
            qk_l2norm_eps=1e-6,
        )
        self._log, self._spare_log = spare, log
        self._pending, self._undecided = 0, mixed_qkv.shape[1]
        return out

    def _remember(self, log: ops.DeltaLog, conv_log: Tensor) -> None:
        """Keeps the undecided window of the log and the states before it, so that `crop` can reach behind the next one."""
        if self._base is None:
            self._base = (self.recurrent.clone(), self.conv.clone())
        n = self._undecided
        window = _Window(ops.DeltaLog(*(part[:, :n].clone() for part in log)), conv_log[:, :n].clone())
        self._before.append(window)
        while sum(entry.conv_x.shape[1] for entry in self._before) > self.max_window:
            oldest = self._before.pop(0)
            ops.commit_states(
                self._base[0],
                oldest.log,
                self._counts(oldest.conv_x.shape[1]),
                conv_state=self._base[1],
                conv_log=oldest.conv_x,
            )

    def _rewind(self, kept: int) -> None:
        """States before the undecided windows, and the first `kept` entries of those windows as pending."""
        assert self._base is not None and self._log is not None and self._conv_log is not None
        self.recurrent.copy_(self._base[0])
        self.conv.copy_(self._base[1])
        for name, part in zip(self._log._fields, self._log, strict=True):
            part[:, :kept] = torch.cat([getattr(entry.log, name) for entry in self._before], dim=1)[:, :kept]
        self._conv_log[:, :kept] = torch.cat([entry.conv_x for entry in self._before], dim=1)[:, :kept]
        self._pending = kept

    def _forget(self) -> None:
        self._undecided = 0
        self._before = []
        self._base = None

    def _rebatch(self, recurrent: Tensor, conv: Tensor) -> None:
        self.recurrent, self.conv, self.batch_size = recurrent, conv, recurrent.shape[0]
        self._log = self._spare_log = self._conv_log = None

    def _logs(self) -> tuple[ops.DeltaLog, ops.DeltaLog, Tensor]:
        if self._log is None or self._spare_log is None or self._conv_log is None:
            sizes = self.sizes
            shape = (
                self.batch_size,
                self.max_window,
                sizes.num_k_heads,
                sizes.num_v_heads,
                sizes.head_k_dim,
                sizes.head_v_dim,
            )
            self._log = ops.DeltaLog.empty(*shape, device=self.device)
            self._spare_log = ops.DeltaLog.empty(*shape, device=self.device)
            self._conv_log = torch.zeros(
                self.batch_size, self.max_window, sizes.conv_dim, dtype=torch.float32, device=self.device
            )
        return self._log, self._spare_log, self._conv_log

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`[B, T, C]` as q and k `[B, T, H, K]` and v `[B, T, HV, V]`: views."""
        sizes = self.sizes
        q, k, v = torch.split(x, [sizes.key_dim, sizes.key_dim, sizes.value_dim], dim=-1)
        return (
            q.view(*x.shape[:2], sizes.num_k_heads, sizes.head_k_dim),
            k.view(*x.shape[:2], sizes.num_k_heads, sizes.head_k_dim),
            v.view(*x.shape[:2], sizes.num_v_heads, sizes.head_v_dim),
        )

    def _counts(self, count: int) -> Tensor:
        return torch.full((self.batch_size,), count, dtype=torch.int32, device=self.device)
