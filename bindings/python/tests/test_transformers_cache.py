"""States of a cache layer after windows and rollbacks: bit for bit those of the kept tokens, one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from transformers_support import DEVICE  # noqa: E402
from undraft.transformers._cache import GdnCacheLayer, GdnParams, GdnSizes  # noqa: E402

# Three value heads a key head, K unlike V.
SIZES = GdnSizes(num_k_heads=2, num_v_heads=6, head_k_dim=16, head_v_dim=24, conv_width=4)


@dataclass
class Tokens:
    """What the projections of a layer give for a sequence of tokens."""

    mixed_qkv: Tensor  # [B, T, C]
    a: Tensor  # [B, T, HV]
    b: Tensor  # [B, T, HV]

    def __getitem__(self, at: slice) -> tuple[Tensor, Tensor, Tensor]:
        return self.mixed_qkv[:, at], self.a[:, at], self.b[:, at]


@pytest.fixture
def params() -> GdnParams:
    generator = torch.Generator().manual_seed(1)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE)

    return GdnParams(
        sizes=SIZES,
        conv_weight=randn(SIZES.conv_width, SIZES.conv_dim) / 2,
        conv_bias=None,
        A_log=randn(SIZES.num_v_heads),
        dt_bias=randn(SIZES.num_v_heads),
        norm_weight=torch.ones(SIZES.head_v_dim, device=DEVICE),
        norm_eps=1e-6,
    )


def tokens(batch_size: int, count: int, seed: int = 2, dtype: torch.dtype = torch.float32) -> Tokens:
    generator = torch.Generator().manual_seed(seed)

    def randn(width: int) -> Tensor:
        return torch.randn(batch_size, count, width, generator=generator).to(DEVICE, dtype)

    return Tokens(randn(SIZES.conv_dim), randn(SIZES.num_v_heads), randn(SIZES.num_v_heads))


def layer(batch_size: int = 1, *, record_past: bool, **kwargs: Any) -> GdnCacheLayer:
    options: dict[str, Any] = {"max_window": 8, "prefill": "recurrent", **kwargs}
    return GdnCacheLayer(SIZES, batch_size, DEVICE, record_past=record_past, **options)


def one_by_one(params: GdnParams, given: Tokens, batch_size: int = 1) -> tuple[Tensor, GdnCacheLayer]:
    alone = layer(batch_size, record_past=False)
    outs = [alone.window(params, *given[t : t + 1]) for t in range(given.a.shape[1])]
    return torch.cat(outs, dim=1), alone


def assert_same_states(got: GdnCacheLayer, expected: GdnCacheLayer) -> None:
    for one, other in zip(got.states(), expected.states(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_windows_and_rollbacks(params: GdnParams, batch_size: int, dtype: torch.dtype) -> None:
    """Windows of every length up to the capacity, of which every number stays."""
    kept_tokens = tokens(batch_size, 120, dtype=dtype)
    rejected = tokens(batch_size, 8, seed=3, dtype=dtype)
    expected, alone = one_by_one(params, kept_tokens, batch_size)
    cache = layer(batch_size, record_past=True)
    outs, at = [], 0
    for window in range(1, 9):
        for kept in range(window + 1):
            if at + kept > 120:
                break
            good, bad = kept_tokens[at : at + kept], rejected[: window - kept]
            out = cache.window(params, *(torch.cat(pair, dim=1) for pair in zip(good, bad, strict=True)))
            cache.crop(kept - window)
            outs.append(out[:, :kept])
            at += kept
    assert at == 120
    assert torch.equal(torch.cat(outs, dim=1), expected)
    assert_same_states(cache, alone)


def test_rollback_behind_several_windows(params: GdnParams) -> None:
    """As an assistant does it: single tokens, and then a crop that reaches behind some of them."""
    kept_tokens, rejected = tokens(1, 60), tokens(1, 60, seed=3)
    expected, alone = one_by_one(params, kept_tokens)
    cache = layer(record_past=True)
    outs, at, round_number = [], 0, 0
    while at < 60:
        windows = [1, 1, 2, 1][: 1 + round_number % 4]
        kept = min(round_number % (sum(windows) + 1), 60 - at)
        joined = [torch.cat(pair, dim=1) for pair in zip(kept_tokens[at : at + kept], rejected[:5], strict=True)]
        out, start = [], 0
        for window in windows:
            out.append(cache.window(params, *(part[:, start : start + window] for part in joined)))
            start += window
        cache.crop(kept - start)
        outs.append(torch.cat(out, dim=1)[:, :kept])
        at, round_number = at + kept, round_number + 1
    assert torch.equal(torch.cat(outs, dim=1), expected)
    assert_same_states(cache, alone)


def test_many_undecided_windows(params: GdnParams) -> None:
    """More undecided tokens than the capacity: the oldest are final, the last `max_window` can go."""
    given = tokens(1, 30)
    for removed in (0, 1, 5, 8):
        cache = layer(record_past=True)
        for at in range(0, 30, 3):
            cache.window(params, *given[at : at + 3])
        cache.crop(-removed)
        assert_same_states(cache, one_by_one(params, Tokens(*given[: 30 - removed]))[1])


@pytest.mark.parametrize("prefill", ["recurrent", "chunk"])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 70, 150])
def test_prompts(params: GdnParams, length: int, prefill: str) -> None:
    """A prompt gives the same bits whether its past is recorded or not, and the end of it can be taken back."""
    given = tokens(2, length)
    plain, recording = (layer(2, record_past=past, prefill=prefill) for past in (False, True))
    assert torch.equal(plain.window(params, *given[:]), recording.window(params, *given[:]))
    removed = min(3, length - 1)
    recording.crop(-removed)
    for one, other in zip(recording.states(), one_by_one(params, Tokens(*given[: length - removed]), 2)[1].states(), strict=True):
        if prefill == "recurrent":
            assert torch.equal(one, other)
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_recording_goes_on_and_off(params: GdnParams) -> None:
    given = tokens(1, 12)
    cache = layer(record_past=False)
    cache.window(params, *given[:4])
    cache.record_past = True
    cache.window(params, *given[4:7])
    cache.crop(-1)
    cache.record_past = False
    cache.window(params, *given[6:12])
    assert_same_states(cache, one_by_one(params, given)[1])


def test_sequences_are_chosen(params: GdnParams) -> None:
    given = tokens(3, 6)
    cache = layer(3, record_past=True)
    cache.window(params, *given[:4])
    cache.crop(-1)
    cache.batch_select_indices(torch.tensor([2, 0]))
    cache.batch_repeat_interleave(2)
    cache.window(params, *(part[[2, 2, 0, 0]] for part in given[3:6]))
    chosen = Tokens(*(part[[2, 2, 0, 0]] for part in given[:]))
    assert_same_states(cache, one_by_one(params, chosen, 4)[1])


def test_reset(params: GdnParams) -> None:
    given = tokens(1, 5)
    cache = layer(record_past=True)
    cache.window(params, *given[:5])
    cache.reset()
    assert not cache.has_previous_state[0]
    cache.window(params, *given[:5])
    assert_same_states(cache, one_by_one(params, given)[1])


def test_states_of_transformers_are_taken_over() -> None:
    recurrent = torch.randn(2, SIZES.num_v_heads, SIZES.head_k_dim, SIZES.head_v_dim, device=DEVICE)
    conv = torch.randn(2, SIZES.conv_dim, SIZES.conv_width, device=DEVICE)
    cache = layer(2, record_past=False)
    cache.load(recurrent, conv)
    assert torch.equal(cache.states()[0], recurrent.transpose(-1, -2))
    assert torch.equal(cache.states()[1], conv[:, :, 1:].transpose(-1, -2))


def test_errors(params: GdnParams) -> None:
    given = tokens(1, 20)
    cache = layer(record_past=True)
    with pytest.raises(RuntimeError, match="takes back 1 tokens, of which 0 were recorded"):
        cache.crop(-1)
    cache.window(params, *given[:20])
    with pytest.raises(RuntimeError, match="takes back 9 tokens, of which 8 were recorded; at most `max_window` = 8"):
        cache.crop(-9)
    with pytest.raises(RuntimeError, match="`tokens_to_remove` is 2, expected 0 or a negative number"):
        cache.crop(2)
    with pytest.raises(ValueError, match="`mixed_qkv` has 2 sequences, the cache holds 1"):
        cache.window(params, *tokens(2, 1)[:])
    with pytest.raises(RuntimeError, match="a model that is not patched cannot read"):
        cache.update_recurrent_state(torch.zeros(1))
