"""`generate` of a patched model: the tokens of plain decoding, whatever drafts."""

from __future__ import annotations

import doctest
import importlib
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import undraft.transformers  # noqa: E402
from transformers_support import (  # noqa: E402
    BUNDLED,
    DEVICE,
    GOLDEN,
    RANDOM_MODELS,
    REPOSITORY,
    counted,
    golden_prompts,
    greedy,
    load,
    prompt_ids,
    tokens_before_tie,
)
from undraft.transformers import _mtp  # noqa: E402

DRAFTS: dict[str, dict[str, Any]] = {
    "lookup": {"prompt_lookup_num_tokens": 5},
    "mtp": {"use_mtp": True},
}


@pytest.fixture(scope="module")
def model() -> Any:
    return load(BUNDLED)


@pytest.fixture
def patched(model: Any) -> Iterator[Any]:
    with undraft.transformers.patch(model) as handle:
        yield handle


@pytest.mark.parametrize("name", ["one_token", "code", "non_ascii"])
def test_plain_text_is_that_of_transformers(patched: Any, name: str) -> None:
    ids = prompt_ids(name)
    text = greedy(patched.model, ids, 64)
    assert text[0, ids.shape[1] :].tolist() == golden_prompts()[name]["greedy_f32"]


@pytest.mark.parametrize("prefill", ["chunk", "recurrent"])
@pytest.mark.parametrize("name", ["one_token", "long"])
@torch.no_grad()
def test_logits_are_those_of_transformers(model: Any, name: str, prefill: Any) -> None:
    ids = prompt_ids(name)
    expected = model(ids).logits
    with undraft.transformers.patch(model, prefill=prefill):
        logits = model(ids).logits
    torch.testing.assert_close(logits, expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("drafts", DRAFTS)
@pytest.mark.parametrize("name", ["one_token", "chat"])
def test_drafts_change_nothing(patched: Any, name: str, drafts: str) -> None:
    ids = prompt_ids(name)
    plain = greedy(patched.model, ids, 40)
    with counted(patched.model) as forwards:
        drafted = greedy(patched.model, ids, 40, **DRAFTS[drafts])
    assert torch.equal(drafted, plain)
    assert forwards.count < 40


@pytest.mark.parametrize("drafts", DRAFTS)
def test_speed_ratio(patched: Any, drafts: str, capsys: pytest.CaptureFixture[str]) -> None:
    ids = prompt_ids("code")
    greedy(patched.model, ids, 8, **DRAFTS[drafts])
    with counted(patched.model) as plain:
        text = greedy(patched.model, ids, 64)
    with counted(patched.model) as drafted:
        assert torch.equal(greedy(patched.model, ids, 64, **DRAFTS[drafts]), text)
    with capsys.disabled():
        print(
            f"\n{drafts}: 64 tokens in {drafted.count} forward passes and {drafted.seconds:.2f} s, plain {plain.count} and "
            f"{plain.seconds:.2f} s, speed ratio {plain.seconds / drafted.seconds:.2f}"
        )
    assert drafted.count * 2 < plain.count


@pytest.mark.parametrize("tokens", [1, 4])
def test_mtp_drafts_are_those_of_the_reference(model: Any, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drafted: list[tuple[int, list[int]]] = []
    inner = _mtp.MtpCandidates.get_candidates

    def recorded(self: Any, input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        candidates = inner(self, input_ids, *args, **kwargs)
        length = input_ids.shape[1]
        if candidates[0].shape[1] > length:
            drafted.append((length - 1, candidates[0][0, length:].tolist()))
        return candidates

    monkeypatch.setattr(_mtp.MtpCandidates, "get_candidates", recorded)
    with undraft.transformers.patch(model, mtp_tokens=tokens):
        greedy(model, prompt_ids("code"), 64, use_mtp=True)
    trace = json.loads((GOLDEN / "mtp.json").read_text(encoding="utf-8"))["speculative_traces_f64"]["code"][str(tokens)]
    expected = [(rounds["at"], rounds["drafts"]) for rounds in trace]
    compared = min(len(drafted), len(expected)) - 1  # the last round may be cut by the length
    assert compared > 10
    assert drafted[:compared] == expected[:compared]


def test_assistant_drafts_change_nothing(patched: Any) -> None:
    """The assistant is a hybrid model as well, whose own states are taken back: the same model, and one of other weights."""
    ids = prompt_ids("short")
    plain = greedy(patched.model, ids, 32)
    assistant = load(BUNDLED)
    with undraft.transformers.patch(assistant):
        with counted(patched.model) as forwards:
            assert torch.equal(greedy(patched.model, ids, 32, assistant_model=assistant), plain)
        assert forwards.count < 16
        with torch.no_grad():
            assistant.model.layers[0].mlp.down_proj.weight.mul_(0.9)
            assistant.model.layers[6].mlp.down_proj.weight.mul_(0.5)
        assistant.generation_config.num_assistant_tokens = 6
        with counted(patched.model) as forwards:
            assert torch.equal(greedy(patched.model, ids, 32, assistant_model=assistant), plain)
        assert 6 < forwards.count < 32


@pytest.mark.parametrize("name", ["qwen3_next-random", "qwen3_5-odd-random"])
def test_other_layouts(name: str) -> None:
    """Experts and fused projections; three value heads a key head, K unlike V."""
    folder = RANDOM_MODELS / name
    model = load(folder)
    ids = torch.arange(40, device=DEVICE).reshape(1, 40) * 7 % 500
    with torch.no_grad():
        expected = model(ids).logits
    with undraft.transformers.patch(model):
        with torch.no_grad():
            torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-3)
        plain = greedy(model, ids, 32)
        sure = tokens_before_tie(model, plain, ids.shape[1], margin=1e-4)
        assert sure > ids.shape[1] + 8
        for drafts in DRAFTS.values():
            assert torch.equal(greedy(model, ids, 32, **drafts)[:, :sure], plain[:, :sure])


def test_end_of_text_and_length(patched: Any) -> None:
    ids = prompt_ids("chat")
    plain = patched.model.generate(ids, max_new_tokens=60, do_sample=False)
    for drafts in DRAFTS.values():
        assert torch.equal(patched.model.generate(ids, max_new_tokens=60, do_sample=False, **drafts), plain)
    for length in (1, 2, 5):
        for drafts in DRAFTS.values():
            drafted = greedy(patched.model, ids, length, **drafts)
            assert torch.equal(drafted, greedy(patched.model, ids, length))


def test_left_padding(patched: Any) -> None:
    long, short = prompt_ids("code"), prompt_ids("short")
    width = long.shape[1] - short.shape[1]
    ids = torch.cat([long, torch.nn.functional.pad(short, (width, 0), value=4086)])
    mask = torch.ones_like(ids)
    mask[1, :width] = 0
    together = greedy(patched.model, ids, 16, attention_mask=mask)
    assert torch.equal(together[:1], greedy(patched.model, long, 16))
    assert torch.equal(together[1:, width:], greedy(patched.model, short, 16))


def test_beams(model: Any) -> None:
    ids = prompt_ids("english")
    expected = greedy(model, ids, 12, num_beams=3)
    with undraft.transformers.patch(model):
        assert torch.equal(greedy(model, ids, 12, num_beams=3), expected)


def test_a_cache_goes_on(patched: Any) -> None:
    """Turns that share a cache, plain and drafted in turn, give the text of one long turn."""
    model, ids = patched.model, prompt_ids("code")
    whole = greedy(model, ids, 40)
    cache, text = None, ids
    turns: list[dict[str, Any]] = [{}, DRAFTS["lookup"], DRAFTS["mtp"], {}]
    for drafts in turns:
        given: dict[str, Any] = {} if cache is None else {_mtp.CACHE_ARGUMENT: cache}
        out = greedy(model, text, 10, return_dict_in_generate=True, **given, **drafts)
        cache, text = getattr(out, _mtp.CACHE_ARGUMENT), out.sequences
    assert torch.equal(text, whole)


def test_sampling_draws_allowed_tokens(patched: Any) -> None:
    ids = prompt_ids("code")
    torch.manual_seed(3)
    drafted = patched.model.generate(ids, max_new_tokens=24, do_sample=True, top_k=1, use_mtp=True, eos_token_id=None)
    assert torch.equal(drafted, greedy(patched.model, ids, 24))


def test_bfloat16() -> None:
    model = load(BUNDLED, torch.bfloat16)
    ids = prompt_ids("code")
    with torch.no_grad():
        expected = model(ids).logits.float()
        with undraft.transformers.patch(model):
            logits = model(ids).logits.float()
            text = greedy(model, ids, 24, use_mtp=True)
    error = (logits - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error < 0.03
    assert text.shape[1] == ids.shape[1] + 24


@torch.no_grad()
def test_unpatch_restores(model: Any) -> None:
    ids = prompt_ids("code")
    expected = model(ids).logits
    attributes = {name: set(module.__dict__) for name, module in model.named_modules()}
    handle = undraft.transformers.patch(model)
    assert undraft.transformers.is_patched(model)
    greedy(model, ids, 4, use_mtp=True)
    handle.unpatch()
    assert not undraft.transformers.is_patched(model)
    assert {name: set(module.__dict__) for name, module in model.named_modules()} == attributes
    assert torch.equal(model(ids).logits, expected)
    with pytest.raises(ValueError, match="stateful"):
        greedy(model, ids, 4, prompt_lookup_num_tokens=3)


def test_one_object_is_patched(patched: Any) -> None:
    other = load(BUNDLED)
    assert not undraft.transformers.is_patched(other)
    with pytest.raises(ValueError, match="stateful"):
        greedy(other, prompt_ids("short"), 4, prompt_lookup_num_tokens=3)


@pytest.mark.parametrize("name", ["_patch", "_versions"])
def test_examples_of_docstrings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    result = doctest.testmod(importlib.import_module(f"undraft.transformers.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_example_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    page = (REPOSITORY / "docs" / "transformers.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block.replace("max_new_tokens=64", "max_new_tokens=8"), "docs/transformers.md", "exec"), {})
